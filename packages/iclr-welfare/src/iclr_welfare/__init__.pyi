from .conditions import (
    Assumption,
    Verdict,
    assumptions,
    burn_in,
    is_absorbing,
    rate_rawls,
    regime,
    ruin,
    ruin_margin,
    survival,
    survival_margin,
    who_wins,
    wins_whatever_happens,
)
from .dynamics import RECORDS, Noise, State, gini, step
from .growth import (
    best_locked_set,
    equalized_mean,
    equalized_rate,
    equalized_shares,
    one_step_gain,
    rate_locked,
    rate_random,
    rate_rawls_down,
    rate_rawls_up,
    worst_locked_set,
)
from .incomes import from_incomes, load_401ksubs, read_csv, read_population
from .policies import LOCKING, POLICIES, select
from .population import Population
from .response import Concave, Constant, LinearClipped, Logistic, Response, Step
from .scenarios import concave, heat_map_cell, heterogeneous, homogeneous, linear, monotonicity, ruin_example
from .simulation import compare, simulate, simulate_many
from .trajectories import Result, crossing_time
