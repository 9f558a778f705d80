from .capacity import Capacity, capacity_study
from .curves import METRICS, loss_curve
from .decomposition import Decomposition, Law, decompose, law_from_two
from .equivalence import Equivalence, equivalence_test
from .forecasts import Forecast, binary_error, error_forecast, forecast
from .predictions import check, combine, from_sklearn, read, read_labels, read_table, targets
from .training import MLP, Training, digits, predict, train_ensemble

__all__ = [
    "METRICS",
    "MLP",
    "Capacity",
    "Decomposition",
    "Equivalence",
    "Forecast",
    "Law",
    "Training",
    "binary_error",
    "capacity_study",
    "check",
    "combine",
    "decompose",
    "digits",
    "equivalence_test",
    "error_forecast",
    "forecast",
    "from_sklearn",
    "law_from_two",
    "loss_curve",
    "predict",
    "read",
    "read_labels",
    "read_table",
    "targets",
    "train_ensemble",
]
