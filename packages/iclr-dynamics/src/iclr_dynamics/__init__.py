"""Training dynamics you can solve: the UV model, linear networks, and sharpness-aware minimisation late in training."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
