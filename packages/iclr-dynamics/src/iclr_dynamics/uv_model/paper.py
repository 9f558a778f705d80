"""What the paper is, and which of its statements are checked here."""

from iclr_shared.spec import Claim, Command, Method, Paper

_CHECKS = "iclr_dynamics.uv_model.claims:"
_NETWORKS = "iclr_dynamics.uv_model.network_claims:"
_VERBS = "iclr_dynamics.uv_model.commands:"

PAPER = Paper(
    title=(
        "Universal Sharpness Dynamics in Neural Network Training: Fixed Point Analysis, Edge of Stability, "
        "and Route to Chaos"
    ),
    authors=("Dayal Singh Kalra", "Tianyu He", "Maissam Barkeshli"),
    year=2025,
    venue="ICLR 2025",
    arxiv="2311.02076",
    bibtex="""@inproceedings{kalra2025universal,
  title     = {Universal Sharpness Dynamics in Neural Network Training: Fixed Point Analysis, Edge of Stability,
               and Route to Chaos},
  author    = {Kalra, Dayal Singh and He, Tianyu and Barkeshli, Maissam},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
  note      = {arXiv:2311.02076},
}""",
)


def _claim(id, statement, metric, direction, threshold, check, seconds, unit=None, tier="exact"):
    return Claim(
        id=id,
        statement=statement,
        figure=None,  # the paper's figures could not be read
        metric=metric,
        direction=direction,
        threshold=threshold,
        unit=unit,
        tier=tier,
        check=check if ":" in check else _CHECKS + check,
        seconds=seconds,
    )


CLAIMS = (
    _claim(
        "C1a", "Two numbers follow gradient descent on all the weights of the UV model exactly.",
        "largest relative error of residual and kernel over 200 steps", "<=", 1e-10, "map_is_exact", 10,
    ),
    _claim(
        "C1b", "The sharpness has a closed form in these two numbers.",
        "largest relative error against dense Hessians", "<=", 1e-10, "sharpness_is_exact", 5,
    ),
    _claim(
        "C2a", "At small learning rates the sharpness rises if |f_0| < |y| and falls if |f_0| > |y|.",
        "fraction of inits whose change has the predicted sign", ">=", 0.99, "sharpening_or_reduction", 5,
    ),
    _claim(
        "C2b", "The kernel of gradient flow ends at sqrt(lambda_0^2 + 4 k^2 (y^2 - f_0^2)).",
        "largest relative error", "<=", 0.02, "limiting_kernel", 1,
    ),
    _claim(
        "C2c", "In the lazy limit (p = 0, large width) the sharpness hardly moves.",
        "largest relative change of the kernel", "<=", 0.01, "lazy_kernel_rests", 3,
    ),
    _claim(
        "C3", "Catapult: from eta lambda_0 > 2 the loss first rises, then vanishes at a flatter minimum.",
        "fraction of inits that catapult", ">=", 0.95, "catapult", 3,
    ),
    _claim(
        "C4a", "Below the critical rate eta_c = 1 / (k y) training converges.",
        "smallest fraction of converged inits over c <= 0.98", ">=", 1.0, "converges_below_critical", 5,
    ),
    _claim(
        "C4b", "Above the critical rate it never converges.",
        "largest fraction of converged inits over c >= 1.02", "<=", 0.0, "never_converges_above_critical", 1,
    ),
    _claim(
        "C4c", "Above the critical rate training ends on the edge-of-stability manifold.",
        "largest unbalancedness D / lambda^2 at the end", "<=", 1e-8, "ends_on_manifold", 1,
    ),
    _claim(
        "C4d", "There eta times the kernel oscillates with geometric mean exactly 2.",
        "largest distance of the mean of ln(eta lambda) from ln 2 on the 2-cycle", "<=", 1e-6,
        "geometric_mean_is_two", 1,
    ),
    _claim(
        "C5a", "Period doubling: periods 2, 4, ..., 64 are born at these learning rates.",
        "largest error of the six onsets in c", "<=", 1e-6, "onsets_of_doubling", 4,
    ),
    _claim(
        "C5b", "The gaps between doublings shrink by Feigenbaum's ratio.",
        "relative distance of the fourth ratio from 4.6692", "<=", 0.002, "feigenbaum_ratio", 1,
    ),
    _claim(
        "C5c", "Chaos: at twice the critical rate the Lyapunov exponent is ln 3.",
        "distance of the exponent from ln 3", "<=", 0.005, "chebyshev_exponent", 1, unit="1/step",
    ),
    _claim(
        "C5d", "Before the onset of chaos the Lyapunov exponent is negative.",
        "largest exponent over c < 1.30 off the onsets", "<=", 0.0, "negative_exponent_before_chaos", 1, unit="1/step",
    ),
    _claim(
        "C6a", "Up to twice the critical rate training stays bounded on the manifold.",
        "fraction of bounded starts at c = 1.98", ">=", 1.0, "bounded_below_twice_critical", 1,
    ),
    _claim(
        "C6b", "Above twice the critical rate it diverges.",
        "fraction of bounded starts at c = 2.01", "<=", 0.0, "diverges_above_twice_critical", 1,
    ),
    _claim(
        "C6c", "Off the manifold the largest trainable rate falls as the initial weights grow.",
        "largest distance from the table of bounded inits", "<=", 5.0, "basin_shrinks_with_scale", 2, unit="points",
    ),
    _claim(
        "C7a", "At a fixed fraction of the initial sharpness, eta / eta_c rises with the parameterisation p.",
        "smallest factor of c for a quarter step of p", ">=", 1.5, "rate_rises_with_parameterisation", 1,
    ),
    _claim(
        "C7b", "So the edge of stability appears only for large p.",
        "fraction of inits at the edge for p = 1 minus the largest for p <= 1/2", ">=", 0.9, "edge_needs_large_p", 1,
    ),
    _claim(
        "C8a", "Real network: at rates above gradient flow's limit, eta * sharpness ends at the edge, not below it.",
        "lowest end of eta * sharpness", "in", (1.8, 2.4), _NETWORKS + "ends_above_the_lower_edge", 120, tier="laptop",
    ),
    _claim(
        "C8b", "Real network: nor above it.",
        "highest end of eta * sharpness", "in", (1.8, 2.4), _NETWORKS + "ends_below_the_upper_edge", 1, tier="laptop",
    ),
    _claim(
        "C8c", "Real network: at smaller rates eta * sharpness ends below 2.",
        "highest end of eta * sharpness", "<=", 2.0, _NETWORKS + "slow_rates_stay_below_two", 1, tier="laptop",
    ),
    _claim(
        "C8d", "Real network: from large weights the sharpness falls early.",
        "least early sharpness over its start, largest over inits", "<=", 0.95,
        _NETWORKS + "large_init_flattens_early", 20, tier="laptop",
    ),
    _claim(
        "C8e", "Real network: from small weights the sharpness rises.",
        "largest sharpness over an earlier minimum, smallest over inits", ">=", 1.05,
        _NETWORKS + "small_init_sharpens", 1, tier="laptop",
    ),
)  # fmt: skip

METHOD = Method(
    name="uv_model",
    title="Sharpness dynamics of the UV model",
    summary="Sharpness, catapults, edge of stability and the route to chaos, solved in two numbers per step",
    paper=PAPER,
    claims=CLAIMS,
    commands=(
        Command("phase", "say what a learning rate will do from a given start", _VERBS + "phase"),
        Command("simulate", "train the UV model and record loss, kernel and sharpness", _VERBS + "simulate"),
        Command("bifurcation", "diagram of eta * sharpness over a grid of learning rates", _VERBS + "bifurcation"),
        Command("onsets", "where the period doublings sit, and Feigenbaum's ratio", _VERBS + "onsets"),
        Command("train", "train a real network at several rates and name its regimes", _VERBS + "train"),
        Command("sharpness", "top Hessian eigenvalues of a saved network on your data", _VERBS + "sharpness"),
    ),
)
