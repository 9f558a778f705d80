"""The layers, as `torch.nn.Module`s."""

from iclr_symspaces.classifiers import BusemannMLR, GeodesicMLR
from iclr_symspaces.hyperplanes import Hyperplanes
from iclr_symspaces.layers import ReEig, SymAttention, SymFC, TangentReLU
from iclr_symspaces.means import FrechetMean

__all__ = ["BusemannMLR", "FrechetMean", "GeodesicMLR", "Hyperplanes", "ReEig", "SymAttention", "SymFC", "TangentReLU"]
