from .agents import AgentError, LocalAgents, Pace, RayAgents, SimulatedAgents
from .clocks import (
    EventClock,
    Exponential,
    Failure,
    Lognormal,
    Timeline,
    Trace,
    async_rate,
    largest_delay,
    speedup,
    sync_rate,
    timeline,
)
from .estimator import Episode, Estimator, policy_gradient, reward_to_go
from .federation import Federation, Update
from .policies import CategoricalMLP, GaussianMLP, TabularSoftmax
from .sampling import Gradient, Sampler
from .schedules import THEORY_ALPHA, THEORY_ETA, Constant, LinearDecay, PowerDecay
from .settings import Settings
from .tabular import TabularMDP, noisy_run
from .training import METHODS, PG, AFedPG, AsyncPG, FedPG, Result, TrainedPolicy, evaluate, load_policy
from .updates import Rule, Server, lookahead, momentum, normalized_step

__all__ = [
    "METHODS",
    "PG",
    "THEORY_ALPHA",
    "THEORY_ETA",
    "AFedPG",
    "AgentError",
    "AsyncPG",
    "CategoricalMLP",
    "Constant",
    "Episode",
    "Estimator",
    "EventClock",
    "Exponential",
    "Failure",
    "FedPG",
    "Federation",
    "GaussianMLP",
    "Gradient",
    "LinearDecay",
    "LocalAgents",
    "Lognormal",
    "Pace",
    "PowerDecay",
    "RayAgents",
    "Result",
    "Rule",
    "Sampler",
    "Server",
    "Settings",
    "SimulatedAgents",
    "TabularMDP",
    "TabularSoftmax",
    "Timeline",
    "Trace",
    "TrainedPolicy",
    "Update",
    "async_rate",
    "evaluate",
    "largest_delay",
    "load_policy",
    "lookahead",
    "momentum",
    "noisy_run",
    "normalized_step",
    "policy_gradient",
    "reward_to_go",
    "speedup",
    "sync_rate",
    "timeline",
]
