"""What the paper is, and which of its statements are checked here."""

from iclr_shared.spec import Claim, Command, Method, Paper

_CHECKS = "iclr_subset.claims:"
_VERBS = "iclr_subset.commands:"

PAPER = Paper(
    title="A Stochastic Approach to the Subset Selection Problem via Mirror Descent",
    authors=(
        "Dan Greenstein", "Elazar Gershuni", "Ilan Ben-Bassat", "Yaroslav Fyodorov", "Ran Moshe", "Fiana Raiber",
        "Alex Shtoff", "Oren Somekh", "Nadav Hallak",
    ),
    year=2025,
    venue="ICLR 2025",
    proceedings="https://proceedings.iclr.cc/paper_files/paper/2025/hash/50623630a2372839c078474efa6c0cb8-Abstract-Conference.html",
    bibtex="""@inproceedings{greenstein2025stochastic,
  title     = {A Stochastic Approach to the Subset Selection Problem via Mirror Descent},
  author    = {Greenstein, Dan and Gershuni, Elazar and Ben-Bassat, Ilan and Fyodorov, Yaroslav and Moshe, Ran and
               Raiber, Fiana and Shtoff, Alex and Somekh, Oren and Hallak, Nadav},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
}""",
)  # fmt: skip


def _claim(id, statement, metric, direction, threshold, check, seconds, unit=None, tier="exact"):
    return Claim(
        id=id, statement=statement, figure=None, metric=metric, direction=direction, threshold=threshold, unit=unit,
        tier=tier, check=_CHECKS + check, seconds=seconds,
    )  # fmt: skip


CLAIMS = (
    _claim(
        "C1a", "The closed-form gradient of draws without replacement is unbiased.",
        "largest error of its mean over all orders", "<=", 1e-8, "sequence_is_unbiased", 1,
    ),
    _claim(
        "C1b", "So is that of the set, whatever the order.", "largest error of its mean over all sets", "<=", 1e-8,
        "set_is_unbiased", 1,
    ),
    _claim(
        "C1c", "So is that of independent choices.", "largest error of its mean over all subsets", "<=", 1e-8,
        "independent_is_unbiased", 1,
    ),
    _claim(
        "C1d", "A million draws agree with all three.", "largest deviation of 18 means", "<=", 4.0, "samples_agree", 3,
        unit="standard errors",
    ),
    _claim(
        "C1e", "Sorting the indices before the score biases it.", "largest error of its mean", ">=", 0.01,
        "sorted_is_biased", 1,
    ),
    _claim(
        "C2a", "Formulation A always draws exactly k items.", "draws of another size in 100,000", "<=", 0,
        "sizes_are_exact", 1,
    ),
    _claim(
        "C2b", "Formulation B draws k items in the mean.", "deviation of the mean size", "<=", 4.0, "mean_size", 1,
        unit="standard errors",
    ),
    _claim(
        "C2c", "The variance of its size is sum w (1 - w).", "relative error of the variance", "<=", 0.02,
        "variance_of_size", 1,
    ),
    _claim(
        "C3", "The sampler follows the law of weighted draws without replacement.",
        "total variation of 200,000 draws over 20 sets", "<=", 0.01, "sampler_law", 1,
    ),
    _claim(
        "C4a", "The KL projection is exact.", "largest violation of optimality, sum and bounds", "<=", 1e-12,
        "kl_is_exact", 1,
    ),
    _claim(
        "C4b", "An outside solver agrees.", "largest distance to SLSQP", "<=", 1e-6, "kl_against_solver", 2,
    ),
    _claim(
        "C4c", "Plain renormalisation is another map.", "median distance to the projection", ">=", 0.001,
        "renormalising_differs", 1,
    ),
    _claim(
        "C4d", "The steps of formulation B are exact.", "largest violation of optimality, sum and bounds", "<=", 1e-12,
        "box_is_exact", 1,
    ),
    _claim(
        "C5", "The stationarity measure falls as 1 / sqrt(T).", "log-log slope of the measure in T", "<=", -0.4,
        "convergence_rate", 55, tier="laptop",
    ),
    _claim(
        "C6", "The geometry's dependence on n is favourable.", "growth exponent in n of the first passage, KL",
        "report", None, "dependence_on_n", 35, tier="laptop",
    ),
    _claim(
        "C7a", "Formulation A finds 5 planted items of 20 in 2000 evaluations.", "share of seeds", ">=", 0.9,
        "exact_recovers", 10, tier="laptop",
    ),
    _claim(
        "C7b", "So does formulation B.", "share of seeds", ">=", 0.9, "expected_recovers", 15, tier="laptop",
    ),
    _claim(
        "C7c", "Random search does not.", "share of seeds", "<=", 0.5, "random_does_not", 15, tier="laptop",
    ),
    _claim(
        "C7d", "On a subset sum, a needle without slope, little is gained over chance.",
        "share of exact hits, formulation A", "report", None, "needle", 35, tier="laptop",
    ),
    _claim(
        "C8a", "The chosen blocks to fine-tune are among the best.", "median test rank over the number of sets", "<=",
        0.1, "layers_rank", 25, tier="laptop",
    ),
    _claim(
        "C8b", "They beat the last k.", "share of runs with a lower test error", ">=", 0.5, "layers_beat_last", 12,
        tier="laptop",
    ),
    _claim(
        "C8c", "They cost less than enumeration.", "inner runs over those of enumeration", "<=", 0.4, "layers_cost", 12,
        tier="laptop",
    ),
    _claim(
        "C8d", "With 12 blocks the choice outranks random search with as many inner runs.",
        "median test rank of random search minus ours, of 495", "report", None, "layers_against_random", 40,
        tier="laptop", unit="ranks",
    ),
    _claim(
        "C9a", "Under noise formulation A still finds the planted items.", "share of seeds", ">=", 0.8, "noise_exact",
        45, tier="laptop",
    ),
    _claim(
        "C9b", "So does formulation B.", "share of seeds", ">=", 0.8, "noise_expected", 24, tier="laptop",
    ),
    _claim(
        "C9c", "Random search does not.", "share of seeds", "<=", 0.3, "noise_random", 18, tier="laptop",
    ),
)  # fmt: skip

METHOD = Method(
    name="subset",
    title="Subset selection by stochastic mirror descent",
    summary="Choose k of n by an expensive black box: features, layers, or whatever a program can judge",
    paper=PAPER,
    claims=CLAIMS,
    extras=("iclr-subset[controls]",),
    commands=(
        Command("select", "choose items at the least cost that a program prints", _VERBS + "select"),
        Command("features", "choose columns of a table for a model", _VERBS + "features"),
        Command("layers", "choose which blocks of a network to fine-tune", _VERBS + "layers"),
        Command("ask", "subsets to measure elsewhere", _VERBS + "ask"),
        Command("tell", "what they cost", _VERBS + "tell"),
    ),
)
