"""What the paper on homogeneous ensembles is, and which of its statements are checked here."""

from iclr_shared.spec import Claim, Command, Method, Paper

_CHECKS = "iclr_generalization.ensembles.claims:"
_VERBS = "iclr_generalization.ensembles.commands:"


def _claim(id, statement, metric, direction, threshold, check, seconds, unit=None, tier="laptop"):
    return Claim(
        id=id,
        statement=statement,
        figure=None,  # the paper's figures could not be read
        metric=metric,
        direction=direction,
        threshold=threshold,
        unit=unit,
        tier=tier,
        check=_CHECKS + check,
        seconds=seconds,
    )


METHOD = Method(
    name="ensembles",
    title="Homogeneous deep ensembles",
    summary="How much more members bring: exact 1/M law, forecasts from a few, tests of equivalence",
    paper=Paper(
        title="Agree to Disagree: Demystifying Homogeneous Deep Ensembles through Distributional Equivalence",
        authors=("Yipei Wang", "Xiaoqian Wang"),
        year=2025,
        venue="ICLR 2025",
        openreview="XYRPm8rAGM",
        bibtex="""@inproceedings{wang2025agree,
  title     = {Agree to Disagree: Demystifying Homogeneous Deep Ensembles through Distributional Equivalence},
  author    = {Wang, Yipei and Wang, Xiaoqian},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
}""",
    ),
    claims=(
        _claim(
            "C1", "The squared loss of an ensemble of M members is B + V/M, exactly, over all subsets.",
            "largest difference from enumerated subsets", "<=", 1e-12, "law_is_exact", 8, tier="exact",
        ),
        _claim(
            "C2a", "Four members foretell the Brier score of larger ensembles.",
            "median relative error of forecasts for M = 8, 16, 32", "<=", 0.03, "brier_forecast", 10,
        ),
        _claim(
            "C2b", "Four members foretell the negative log-likelihood of larger ensembles.",
            "median relative error of forecasts for M = 8, 16, 32", "<=", 0.05, "nll_forecast", 6,
        ),
        _claim(
            "C2c", "The error bars of the forecasts are honest.",
            "share of forecasts within two standard errors", ">=", 0.85, "forecast_covers", 1,
        ),
        _claim(
            "C3a", "Members of one kind have outputs of one law, though they differ point by point.",
            "median equivalence ratio of pairs", "<=", 0.25, "members_are_equivalent", 1,
        ),
        _claim(
            "C3b", "So no member is the good one.",
            "spread of the members' losses, standard deviation over mean", "<=", 0.1, "losses_are_alike", 18,
        ),
        _claim(
            "C3c", "Members of other widths or training lengths are not equivalent.",
            "their equivalence ratio over that of one kind", ">=", 2.0, "other_kinds_are_not_equivalent", 5,
        ),
        _claim(
            "C4a", "The ensemble is better than any of its members.",
            "share of draws of 8 members whose ensemble beats the best", ">=", 0.95, "better_than_any_member", 1,
        ),
        _claim(
            "C4b", "Jensen's gap does not explain it: with one strong and seven weak members the gap is large, yet the "
            "ensemble is worse than the best member.",
            "smallest excess of the ensemble's loss over the best member's", ">=", 0.0, "gap_explains_nothing", 1,
        ),
        _claim(
            "C5a", "Convexity is not needed: zero-one error and Welsch loss fall with M, too.",
            "largest rise of a loss from one size to the next", "<=", 0.0, "other_losses_fall", 1,
        ),
        _claim(
            "C5b", "The zero-one error of larger ensembles is foretold by normal margins.",
            "median relative error of forecasts for M = 8, 16, 32", "<=", 0.1, "error_forecast_holds", 20,
        ),
        _claim(
            "C5c", "Where the mean margin is negative, the error rises with M.",
            "smallest rise of the error from one size to the next", ">=", 0.0, "negative_margins_rise", 1, tier="exact",
        ),
        _claim(
            "C6a", "More members leave B alone: disjoint groups of members agree on it.",
            "largest drift of B between groups", "<=", 2.0, "limit_stays", 1, unit="standard errors",
        ),
        _claim(
            "C6b", "More width changes B.",
            "change of B from width 10 to 160", ">=", 5.0, "width_changes_the_limit", 7, unit="standard errors",
        ),
        _claim(
            "C6c", "Across widths, the gain by ensembling and the gain by widening may go together all the same.",
            "correlation of the two gains", "report", None, "gains_correlate", 1,
        ),
    ),
    commands=(
        Command("capacity", "forecast the loss of more members from measured predictions", _VERBS + "capacity"),
        Command("equivalence", "test whether members are of one kind", _VERBS + "equivalence"),
        Command("train", "train members side by side on your arrays or on digits", _VERBS + "train"),
    ),
)  # fmt: skip
