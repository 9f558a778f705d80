"""Exact learning dynamics of a one-hidden-layer linear network on one-dimensional data (Xu and Ziyin, ICLR 2025)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
