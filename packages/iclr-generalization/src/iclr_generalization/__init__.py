"""What modules and ensemble members buy: sample sizes of modular networks, and losses of larger ensembles."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
