"""What the paper on modularity is, and which of its statements are checked here."""

from iclr_shared.spec import Claim, Command, Method, Paper

_CHECKS = "iclr_generalization.modular.claims:"
_VERBS = "iclr_generalization.modular.commands:"


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
    name="modular",
    title="Modular networks and their sample complexity",
    summary="How many samples modular and monolithic networks need, and a kernel rule that finds modules",
    paper=Paper(
        title="Breaking Neural Network Scaling Laws with Modularity",
        authors=(
            "Akhilan Boopathy", "Sunshine Jiang", "William Yue", "Jaedong Hwang", "Abhiram Iyer", "Ila Fiete",
        ),
        year=2025,
        venue="ICLR 2025",
        arxiv="2409.05780",
        bibtex="""@inproceedings{boopathy2025breaking,
  title     = {Breaking Neural Network Scaling Laws with Modularity},
  author    = {Boopathy, Akhilan and Jiang, Sunshine and Yue, William and Hwang, Jaedong and Iyer, Abhiram
               and Fiete, Ila},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
}""",
    ),
    claims=(
        _claim(
            "C1", "Least squares on p of P features has the test and training losses of the closed forms.",
            "largest deviation, in units of what is allowed (3 s.e. or 5 %)", "<=", 1.0, "closed_forms", 6,
            tier="exact",
        ),
        _claim(
            "C2a", "Without modules, the samples needed grow exponentially with the dimension, as 3^m.",
            "slope of ln n against m", "in", (0.9 * 1.0986122886681098, 1.1 * 1.0986122886681098),
            "monolithic_exponent", 4,
        ),
        _claim(
            "C2b", "With modules, the samples needed do not depend on the dimension.",
            "|slope of ln n against m|", "<=", 0.05, "modular_exponent", 10,
        ),
        _claim(
            "C3a", "A monolithic network's loss on sums of sine waves rises with the dimension.",
            "test loss at m = 16 over that at m = 2", ">=", 3.0, "monolithic_loss_rises", 98,
        ),
        _claim(
            "C3b", "That of a modular network with found modules hardly does.",
            "largest test loss over that at m = 2", "<=", 1.5, "rule_loss_stays", 1,
        ),
        _claim(
            "C3c", "Found modules are better than random ones.",
            "ratio of test losses, worst m >= 8", "<=", 1.0, "rule_beats_random_modules", 1,
        ),
        _claim(
            "C4", "The kernel rule recovers the true projections.",
            "recovery: mean cosine to the true ones", ">=", 0.95, "rule_recovers_modules", 132,
        ),
        _claim(
            "C5a", "At twice the inputs' scale, found modules are better than random ones.",
            "ratio of losses, mean over m", "<=", 1.0, "rule_extrapolates", 1,
        ),
        _claim(
            "C5b", "There, even random modules are better than a monolithic network.",
            "ratio of losses, mean over m", "<=", 1.0, "random_modules_extrapolate", 1,
        ),
        _claim(
            "C5c", "On pairs of digits never seen together, found modules are better than random ones.",
            "ratio of errors", "<=", 1.0, "rule_composes", 60,
        ),
        _claim(
            "C5d", "There, even random modules are better than a monolithic network.",
            "ratio of errors", "<=", 1.0, "random_modules_compose", 1,
        ),
        _claim(
            "C6", "With more images side by side, a network with found modules loses less accuracy.",
            "accuracy lost from k = 1 to 4: monolithic minus found modules", ">=", 5.0, "rule_keeps_accuracy", 150,
            unit="points",
        ),
        _claim(
            "C7a", "At a fixed ratio of samples to features the loss does not depend on the number of modules.",
            "largest relative deviation from the mean", "<=", 0.1, "modules_leave_the_loss", 5,
        ),
        _claim(
            "C7b", "The loss shows double descent as the closed form says.",
            "largest relative deviation off the peak", "<=", 0.1, "double_descent", 8,
        ),
    ),
    commands=(
        Command("samples", "predict the sample sizes that monolithic and modular networks need", _VERBS + "samples"),
        Command("train", "find the modules in a CSV and fit a modular network", _VERBS + "train"),
    ),
)  # fmt: skip
