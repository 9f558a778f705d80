"""Modular networks: how many samples they need, and how to find their modules from data."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
