"""What the paper is, and which of its statements are checked here."""

from iclr_shared.spec import Claim, Command, Method, Paper

_CHECKS = "iclr_afedpg.claims:"
_VERBS = "iclr_afedpg.commands:"

PAPER = Paper(
    title=(
        "Asynchronous Federated Reinforcement Learning with Policy Gradient Updates: "
        "Algorithm Design and Convergence Analysis"
    ),
    authors=(
        "Guangchen Lan", "Dong-Jun Han", "Abolfazl Hashemi", "Vaneet Aggarwal", "Christopher G. Brinton"
    ),
    year=2025,
    venue="ICLR 2025",
    arxiv="2404.08003",
    bibtex="""@inproceedings{lan2025asynchronous,
  title     = {Asynchronous Federated Reinforcement Learning with Policy Gradient Updates: Algorithm Design and
               Convergence Analysis},
  author    = {Lan, Guangchen and Han, Dong-Jun and Hashemi, Abolfazl and Aggarwal, Vaneet and
               Brinton, Christopher G.},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
  note      = {arXiv:2404.08003},
}""",
)  # fmt: skip


def _claim(id, statement, metric, direction, threshold, check, seconds, unit=None, tier="exact", figure=None):
    return Claim(
        id=id, statement=statement, figure=figure, metric=metric, direction=direction, threshold=threshold, unit=unit,
        tier=tier, check=_CHECKS + check, seconds=seconds,
    )  # fmt: skip


CLAIMS = (
    _claim(
        "C1a", "Without a barrier the server applies sum(1 / t_i) updates per second.",
        "largest relative error of K / T over four clocks, K = 20,000", "<=", 0.001, "asynchronous_rate", 2,
        figure="abstract",
    ),
    _claim(
        "C1b", "The speed-up over a barrier is max(t) over the harmonic mean of t.",
        "largest relative error of the speed-up over four clocks", "<=", 0.001, "speedup_is_harmonic", 2,
        figure="abstract",
    ),
    _claim(
        "C2a", "Real processes of unequal speed reach that rate.",
        "updates per second over sum(1 / t_i)", ">=", 0.8, "real_rate", 60, tier="laptop",
    ),
    _claim(
        "C2b", "Real processes consume several times the gradients that a barrier lets through.",
        "gradients per second over those with a barrier", ">=", 4.0, "real_speedup", 1, tier="laptop",
    ),
    _claim(
        "C3", "Delays and ages in flight add up to K (N - 1), so the mean delay is N - 1, whatever the times.",
        "largest absolute deviation over seven clocks", "<=", 0.0, "delay_identity", 2, unit="updates",
    ),
    _claim(
        "C4a", "With the lookahead the momentum is the exact gradient of a quadratic at every update.",
        "largest distance of direction and gradient over 1,000 updates", "<=", 1e-10, "lookahead_cancels", 1,
    ),
    _claim(
        "C4b", "Without the lookahead it is not.",
        "largest distance of direction and gradient over 1,000 updates", ">=", 0.01, "no_lookahead_does_not", 1,
    ),
    _claim(
        "C5a", "One agent: the gap falls as K^(-2/5) or faster.",
        "log-log slope of the seed-mean gap against K", "<=", -0.36, "rate_of_one_agent", 8, tier="laptop",
        figure="Theorem: sample complexity",
    ),
    _claim(
        "C5b", "Four agents: the gap falls as K^(-2/5) or faster.",
        "log-log slope of the seed-mean gap against K", "<=", -0.36, "rate_of_four_agents", 8, tier="laptop",
        figure="Theorem: sample complexity",
    ),
    _claim(
        "C5c", "Normalised gradient steps without momentum fall more slowly.",
        "log-log slope of the seed-mean gap against K", ">=", -0.36, "rate_without_momentum", 8, tier="laptop",
    ),
    _claim(
        "C5d", "So they end several times further away.",
        "their seed-mean gap over AFedPG's at K = 20,000", ">=", 4.0, "gap_without_momentum", 1, tier="laptop",
    ),
    _claim(
        "C6a", "Staleness costs no extra updates: the gap after K of them does not depend on the number of agents.",
        "largest relative difference from one agent, N = 2, 4, 8", "<=", 0.1, "staleness_is_free", 20, tier="laptop",
    ),
    _claim(
        "C6b", "So the time to a given gap falls as 1 / N.",
        "log-log slope of the time to a gap of 0.05 against N", "in", (-1.1, -0.9), "time_falls_with_agents", 1,
        tier="laptop", figure="abstract",
    ),
    _claim(
        "C7a", "With agents of unequal speed AFedPG learns to balance a pendulum.",
        "mean return of the last 10 gradients of at most 200, median of seeds", ">=", 120.0, "learns_to_balance", 40,
        tier="laptop", figure="MuJoCo figures",
    ),
    _claim(
        "C7b", "In the same time a barrier does not.",
        "that return over FedPG's", ">=", 5.0, "barrier_does_not", 1, tier="laptop", figure="MuJoCo figures",
    ),
    _claim(
        "C8a", "Four agents learn to swim.",
        "mean return of the last 10 gradients minus the untrained policy's, median of seeds", ">=", 10.0,
        "learns_to_swim", 120, tier="laptop", figure="MuJoCo figures",
    ),
    _claim(
        "C8b", "At equal time, speeds unequal, AFedPG swims further than FedPG.",
        "difference of their final returns, median of seeds", ">=", 10.0, "swims_further_in_time", 90, tier="laptop",
        figure="MuJoCo figures",
    ),
    _claim(
        "C8c", "At equal samples there is no such gain: the gain is in time.",
        "difference of their final returns after the same environment steps, median of seeds", "report", None,
        "swims_per_sample", 1, tier="laptop",
    ),
)  # fmt: skip

METHOD = Method(
    name="afedpg",
    title="Asynchronous federated policy gradient",
    summary="One policy from many agents of unequal speed, without a barrier; predict the speed-up, then train",
    paper=PAPER,
    claims=CLAIMS,
    commands=(
        Command("train", "train a policy on a gymnasium environment", _VERBS + "train"),
        Command("predict", "speed-up and delays that given speeds will bring", _VERBS + "predict"),
        Command("evaluate", "returns of a trained policy", _VERBS + "evaluate"),
    ),
    extras=("ray",),
)
