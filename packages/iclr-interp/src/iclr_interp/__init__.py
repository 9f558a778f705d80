"""Are explanations of networks unique, and where do language models read and retrieve?"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
