from . import layers, transfer
from .baselines import STRATEGIES, Found, expected_random_rank, search
from .descent import Trace, descend, descend_many, exact_gradient
from .distributions import ExactK, ExpectedK, inclusion_probabilities, two_sided_gradient
from .evaluate import CostError, Evaluator
from .ledger import Evaluation, Ledger, read_known
from .minimize import Result, minimize
from .mirror import MirrorStep, mirror_step
from .optimizer import Settings, SubsetOptimizer
from .planted import Overlap, SubsetSum, plant
from .programs import CommandCost
from .schedules import Power, default_eta, horizon
from .selector import SubsetSelector

__all__ = [
    "STRATEGIES",
    "CommandCost",
    "CostError",
    "Evaluation",
    "Evaluator",
    "ExactK",
    "ExpectedK",
    "Found",
    "Ledger",
    "MirrorStep",
    "Overlap",
    "Power",
    "Result",
    "Settings",
    "SubsetOptimizer",
    "SubsetSelector",
    "SubsetSum",
    "Trace",
    "default_eta",
    "descend",
    "descend_many",
    "exact_gradient",
    "expected_random_rank",
    "horizon",
    "inclusion_probabilities",
    "layers",
    "minimize",
    "mirror_step",
    "plant",
    "read_known",
    "search",
    "transfer",
    "two_sided_gradient",
]
