"""Sharpness dynamics of the UV model (Kalra, He, Barkeshli, ICLR 2025, arXiv 2311.02076)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
