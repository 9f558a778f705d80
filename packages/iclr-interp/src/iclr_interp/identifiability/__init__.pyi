from .alignments import Mapping, find_alignments, interchange_accuracy
from .circuits import Circuit, count_circuits, enumerate_circuits, sample_circuits
from .formulas import Formula, candidate_formulas, parse_formula, skeletons
from .gates import GATES, corners, dataset, truth_table
from .interpretations import Interpretation, count_interpretations, iter_interpretations
from .networks import MLP, from_torch, load
from .report import Report, identifiability_report, whole_network
from .search import CircuitTable, SearchTooLargeError, circuit_activations, find_circuits, masked_outputs, search_space
from .training import NotConvergedError, Trained, Training, train_gates

__all__ = [
    "GATES",
    "MLP",
    "Circuit",
    "CircuitTable",
    "Formula",
    "Interpretation",
    "Mapping",
    "NotConvergedError",
    "Report",
    "SearchTooLargeError",
    "Trained",
    "Training",
    "candidate_formulas",
    "circuit_activations",
    "corners",
    "count_circuits",
    "count_interpretations",
    "dataset",
    "enumerate_circuits",
    "find_alignments",
    "find_circuits",
    "from_torch",
    "identifiability_report",
    "interchange_accuracy",
    "iter_interpretations",
    "load",
    "masked_outputs",
    "parse_formula",
    "sample_circuits",
    "search_space",
    "skeletons",
    "train_gates",
    "truth_table",
    "whole_network",
]
