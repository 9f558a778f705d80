from .data import LineData, fit_stats, read_csv, unit_data
from .deep import DeepResult, DeepRun, ridge_accuracy, train
from .descent import gd_map, integrate_flow, simulate_gd
from .initialisations import draw, init_layers, prototypes
from .layers import LayerChange, LayerPair, kernel_similarity, layer_alignment, layer_changes, tangent_kernel
from .mechanisms import Mechanism, classify, mechanism
from .network import (
    Invariants,
    Layers,
    LinearNet,
    Setting,
    alignment,
    function_space,
    invariants,
    kernel,
    layer_norms,
    log_ntk_ratio,
    ntk_ratio,
    output_slope,
)
from .phases import (
    PARAMETERISATIONS,
    Exponents,
    FinitePhase,
    Measured,
    Phase,
    PhaseGrid,
    measure,
    phase,
    phase_numeric,
    scaling_exponents,
)
from .trajectory import Trajectory, default_times, rate, solve, solve_lazy, time_to
