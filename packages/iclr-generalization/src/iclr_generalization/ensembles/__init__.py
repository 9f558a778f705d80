"""Homogeneous deep ensembles: what more members bring, exactly, and how to foresee it from a few."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
