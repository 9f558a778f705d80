from .bifurcations import Bifurcation, bifurcation, period
from .exponents import Exponents, lyapunov, lyapunov_spectrum
from .fixed_points import FixedPoint, Nullclines, Phase, critical_lr, fixed_points, nullclines, phase
from .hessian import HessianSpectrum, hessian_spectrum, sharpness
from .maps import (
    Trajectory,
    VectorField,
    coordinates,
    eos_map,
    final_state,
    function_space_map,
    gradient_flow,
    gradient_flow_limit,
    limiting_ntk,
    manifold_start,
    observables,
    simulate,
    unbalancedness,
    vector_field,
)
from .period_doubling import accumulation, gap_ratios, onsets, two_cycle, two_cycle_multiplier
from .regime_labels import Regimes, regimes
from .tracking import Track, train_and_track
from .weights import UVParams, UVState, init, initial_coordinates, reconstruct, to_function_space
