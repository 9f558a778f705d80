from .attention import block_sparse_attention, dense_attention, hip_attention
from .cache import BlockCache, OffloadedCache, OffloadedLayer
from .config import HiPConfig
from .controls import random_mask, window_config
from .decoding import DecodingState, capacity
from .mask import HiPMask, hip_mask
from .serving import disable_hip, enable_hip, register
from .tree import search_scores

__all__ = [
    "BlockCache",
    "DecodingState",
    "HiPConfig",
    "HiPMask",
    "OffloadedCache",
    "OffloadedLayer",
    "block_sparse_attention",
    "capacity",
    "dense_attention",
    "disable_hip",
    "enable_hip",
    "hip_attention",
    "hip_mask",
    "random_mask",
    "register",
    "search_scores",
    "window_config",
]
