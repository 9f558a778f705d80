"""What the paper is, and which of its statements are checked here."""

from iclr_shared.spec import Claim, Command, Method, Paper

_CLAIMS = "iclr_dynamics.late_sam.claims:"
_VALLEY = "iclr_dynamics.late_sam.valley_claims:"
_SWITCH = "iclr_dynamics.late_sam.switch_claims:"
_VERBS = "iclr_dynamics.late_sam.commands:"

PAPER = Paper(
    title="Sharpness-Aware Minimization Efficiently Selects Flatter Minima Late In Training",
    authors=("Zhanpeng Zhou", "Mingze Wang", "Yuchen Mao", "Bingrui Li", "Junchi Yan"),
    year=2025,
    venue="ICLR 2025",
    arxiv="2410.10373",
    code="https://github.com/zzp1012/SAM-in-Late-Phase",
    bibtex="""@inproceedings{zhou2025sharpness,
  title     = {Sharpness-Aware Minimization Efficiently Selects Flatter Minima Late In Training},
  author    = {Zhou, Zhanpeng and Wang, Mingze and Mao, Yuchen and Li, Bingrui and Yan, Junchi},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
  note      = {arXiv:2410.10373},
}""",
)


def _claim(id, statement, metric, direction, threshold, check, seconds, unit=None, tier="laptop", figure=None):
    return Claim(
        id=id,
        statement=statement,
        figure=figure,
        metric=metric,
        direction=direction,
        threshold=threshold,
        unit=unit,
        tier=tier,
        check=check,
        seconds=seconds,
    )


# C2 to C7, C8, and the minibatch claims share their runs, whose seconds are counted where they come first.
_EXACT = {"tier": "exact", "seconds": 3}

CLAIMS = (
    _claim(
        "C1a", "In a two-parameter valley, USAM leaves a too sharp minimum at the rate (1 - eta h (1 + rho h))^2.",
        "largest error of the log factor per step", "<=", 1e-3, _VALLEY + "escape_rate_is_exact", **_EXACT,
    ),
    _claim(
        "C1b", "It settles at a flatter minimum of the same valley.",
        "largest difference of the final curvature from the reference table", "<=", 1e-3,
        _VALLEY + "escape_lands_where_predicted", **_EXACT,
    ),
    _claim(
        "C1c", "The new minimum is one that USAM can hold.",
        "largest final curvature over h_SAM", "<=", 1.0, _VALLEY + "escape_ends_below_the_threshold", **_EXACT,
    ),
    _claim(
        "C1d", "After the escape the loss is zero again.",
        "largest final loss", "<=", 1e-20, _VALLEY + "escape_returns_to_the_valley", **_EXACT,
    ),
    _claim(
        "C2a", "SAM in the last 10 % of training finds minima as flat as SAM throughout.",
        "share of the log gap in sharpness that is closed", ">=", 0.85, _CLAIMS + "late_sam_is_as_flat", 110,
        figure="Fig. 1",
    ),
    _claim(
        "C2b", "The same with minibatches of 10 and normalised SAM in the last 10 %.",
        "share of the log gap in sharpness that is closed", ">=", 0.6,
        _CLAIMS + "late_sam_is_flatter_in_minibatches", 25, figure="Fig. 1",
    ),
    _claim(
        "C2c", "SAM in the last 5 % of training finds minima as flat as SAM throughout.",
        "share of the log gap in sharpness that is closed", ">=", 0.85, _CLAIMS + "later_sam_is_as_flat", 2,
        figure="Fig. 1",
    ),
    _claim(
        "C2d", "Gradient descent ends at its edge of stability, sharpness 2/eta = 8.",
        "relative deviation of the mean sharpness", "in", (-0.015, 0.015), _CLAIMS + "gd_ends_at_its_edge", 1,
    ),
    _claim(
        "C2e", "USAM throughout ends at its own edge, h_SAM = 5.247.",
        "relative deviation of the mean sharpness", "in", (-0.05, 0.05), _CLAIMS + "full_sam_ends_at_its_edge", 1,
    ),
    _claim(
        "C2f", "USAM in the last 10 % ends at the edge of USAM, h_SAM = 5.247.",
        "relative deviation of the mean sharpness", "in", (-0.05, 0.05), _CLAIMS + "late_sam_ends_at_its_edge", 1,
    ),
    _claim(
        "C3a", "Late SAM generalises better than gradient descent.",
        "test error of GD minus late SAM", ">=", 0.3, _CLAIMS + "late_sam_generalises_better_than_gd", 1,
        unit="points", figure="Fig. 1",
    ),
    _claim(
        "C3b", "Late SAM generalises as well as SAM throughout.",
        "test error of late minus full SAM", "<=", 1.0, _CLAIMS + "late_sam_generalises_like_full_sam", 1,
        unit="points", figure="Fig. 1",
    ),
    _claim(
        "C4a", "SAM in the first 80 % has little effect: gradient descent sharpens again (edge: 8).",
        "final sharpness", ">=", 7.0, _CLAIMS + "early_sam_sharpens_again", 1,
    ),
    _claim(
        "C4b", "SAM in the first half has little effect.",
        "final sharpness", ">=", 7.8, _CLAIMS + "half_early_sam_sharpens_again", 1,
    ),
    _claim(
        "C4c", "After early SAM the end is nearer to that of gradient descent than to that of SAM.",
        "share of the log gap that early SAM keeps", "<=", 0.5, _CLAIMS + "early_sam_is_nearer_to_gd", 1,
    ),
    _claim(
        "C4d", "Early SAM with minibatches of 10: SGD has 1,200 steps to sharpen again.",
        "share of the log gap that early SAM keeps", "report", None, _CLAIMS + "early_sam_in_minibatches", 1,
    ),
    _claim(
        "C5a", "Whenever the switch comes in the first 90 % of training, the end is as flat.",
        "smallest share of the log gap that is closed", ">=", 0.85, _CLAIMS + "sweep_is_flat", 1,
        figure="Fig. 1",
    ),
    _claim(
        "C5b", "With later switches the sharpness only rises, up to that of gradient descent.",
        "largest fall of the mean log sharpness over its rise", "<=", 0.05, _CLAIMS + "sweep_rises_monotonically", 1,
        figure="Fig. 1",
    ),
    _claim(
        "C6", "Late SAM ends in the valley that gradient descent was in.",
        "loss barrier to GD's end, over that between two GD runs", "<=", 0.05,
        _VALLEY + "late_sam_stays_in_the_valley", 10,
    ),
    _claim(
        "C7a", "On a network, USAM leaves gradient descent's end point exponentially at the predicted rate.",
        "relative error of the log growth in the first 5 steps", "<=", 0.15, _VALLEY + "escape_from_the_end_of_gd", 15,
    ),
    _claim(
        "C7b", "The same from gradient descent's end point brought to rest, over 10 steps.",
        "relative error of the log growth in the first 10 steps", "<=", 0.15, _VALLEY + "escape_from_rest", 15,
    ),
    _claim(
        "C8a", "Adversarial training in the last 20 % makes networks nearly as robust as throughout.",
        "share of the gap in robust error that is closed", ">=", 0.7,
        _SWITCH + "late_adversarial_training_is_robust", 20,
    ),
    _claim(
        "C8b", "It costs no clean accuracy beyond that of adversarial training throughout.",
        "clean test error of late minus full AT", "<=", 1.0, _SWITCH + "late_adversarial_training_is_as_clean", 1,
        unit="points",
    ),
    _claim(
        "C9a", "SAM in the last 10 % costs a tenth more gradients, SAM throughout twice as many.",
        "gradient evaluations over those of SGD", "<=", 1.1, _SWITCH + "late_sam_costs_a_tenth_more", 3,
    ),
    _claim(
        "C9b", "And hardly more time.",
        "wall time over that of SGD", "<=", 1.15, _SWITCH + "late_sam_takes_little_longer", 25,
    ),
    _claim(
        "C10a", "Where it fails: cross-entropy with smoothing, rate divided by 5 at half time, SAM in the last 20 %.",
        "share of the log gap in sharpness that is closed", "report", None,
        _CLAIMS + "late_sam_after_the_rate_has_dropped", 20,
    ),
    _claim(
        "C10b", "Where it fails: cross-entropy without smoothing at a constant rate, SAM in the last 10 %.",
        "sharpness of late SAM over that of SGD", "report", None, _CLAIMS + "late_sam_without_smoothing", 20,
    ),
)  # fmt: skip

METHOD = Method(
    name="late_sam",
    title="SAM late in training",
    summary="SGD first, sharpness-aware or adversarial training only at the end: when to switch, and what it buys",
    paper=PAPER,
    claims=CLAIMS,
    commands=(
        Command("train", "train a network with a switch of optimiser late in training", _VERBS + "train"),
        Command("sweep", "train with the switch at several epochs, sharing the trunk", _VERBS + "sweep"),
        Command(
            "sharpness", "leading Hessian eigenvalues and Frobenius norm of trained networks", _VERBS + "sharpness"
        ),
        Command("connect", "loss along the straight line between two trained networks", _VERBS + "connect"),
        Command("attack", "clean and robust error of trained networks under PGD", _VERBS + "attack"),
        Command("stability", "the sharpest minima that SGD and SAM can hold", _VERBS + "stability"),
    ),
)
