"""What the paper is, and which of its statements are checked here."""

from iclr_shared.spec import Claim, Command, Method, Paper

_CHECKS = "iclr_interp.identifiability.claims:"
_VERBS = "iclr_interp.identifiability.commands:"

PAPER = Paper(
    title="Everything, Everywhere, All at Once: Is Mechanistic Interpretability Identifiable?",
    authors=("Maxime Méloux", "Silviu Maniu", "François Portet", "Maxime Peyrard"),
    year=2025,
    venue="ICLR 2025",
    arxiv="2502.20914",
    code="https://github.com/MelouxM/MI-identifiability",
    bibtex="""@inproceedings{meloux2025everything,
  title     = {Everything, Everywhere, All at Once: Is Mechanistic Interpretability Identifiable?},
  author    = {Méloux, Maxime and Maniu, Silviu and Portet, François and Peyrard, Maxime},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
  note      = {arXiv:2502.20914},
}""",
)


def _claim(id, statement, metric, direction, threshold, check, seconds, unit=None, tier="laptop", figure=None):
    return Claim(
        id=id, statement=statement, figure=figure, metric=metric, direction=direction, threshold=threshold, unit=unit,
        tier=tier, check=_CHECKS + check, seconds=seconds,
    )  # fmt: skip


CLAIMS = (
    _claim(
        "C1a", "Many circuits replicate the behaviour of a small XOR network.",
        "fewest perfect circuits of 20 networks", ">=", 2, "many_circuits", 15, unit="circuits",
        figure="example with 85 perfect circuits",
    ),
    _claim(
        "C1b", "There are some tens of them.", "mean number of perfect circuits of 20 networks", "in", (30, 90),
        "mean_circuits", 1, unit="circuits",
    ),
    _claim(
        "C2a", "Each circuit has many interpretations.",
        "median over 8 networks of the interpretations of all perfect circuits", ">=", 1000, "many_interpretations", 3,
        unit="interpretations", figure="example with 45,543 interpretations",
    ),
    _claim(
        "C2b", "Their number varies widely between networks.", "largest over smallest of the 8 totals", ">=", 10,
        "interpretations_vary", 1,
    ),
    _claim(
        "C3", "Several algorithms align with one network.", "most aligned formulas of one of 20 networks", ">=", 2,
        "several_algorithms", 3, unit="formulas", figure="example with 2 algorithms",
    ),
    _claim(
        "C4", "One algorithm aligns with several subspaces.",
        "most minimal mappings of one formula into one network", ">=", 2, "several_subspaces", 1, unit="mappings",
        figure="example with 159 mappings",
    ),
    _claim(
        "C5", "The number of circuits grows with the width.", "smallest rise of the mean, widths 2, 3, 4", ">=", 0.1,
        "circuits_grow_with_width", 25, unit="circuits",
    ),
    _claim(
        "C6", "Training more gates at once lowers the number of circuits of each.",
        "change of the mean number of XOR circuits for each further gate", "report", None, "more_gates", 20,
        unit="circuits",
    ),
    _claim(
        "C7", "Noise, skewed data and other loss targets do not make explanations unique.",
        "smallest mean number of circuits over settings", ">=", 1.16, "no_setting_is_unique", 60, unit="circuits",
    ),
    _claim(
        "C8", "The head of a network on digits already has many perfect circuits.",
        "perfect circuits of the last three layers", ">=", 2, "digits_head", 30, unit="circuits",
        figure="MNIST: 4,702 circuits",
    ),
    _claim(
        "C9", "Identifiable networks exist: a hand-built one has one circuit and one interpretation. All known counts "
        "of spaces, circuits, interpretations and formulas are met.",
        "largest difference from the known counts", "<=", 0, "known_counts", 2, tier="exact",
    ),
    _claim(
        "C10", "The vectorised enumeration gives what plain loops over all 9,625 sub-networks give.",
        "circuits whose accuracy, agreement or similarity differs", "<=", 0, "fast_is_exact", 5, unit="circuits",
        tier="exact",
    ),
)  # fmt: skip

METHOD = Method(
    name="identifiability",
    title="Identifiability of mechanistic explanations",
    summary="Count every circuit, reading and algorithm of a small network: is an explanation unique?",
    paper=PAPER,
    claims=CLAIMS,
    commands=(
        Command("enumerate", "count all explanations of a saved network", _VERBS + "enumerate_network"),
        Command(
            "circuits", "count the circuits of a network, or of its last layers, on given data", _VERBS + "circuits"
        ),
        Command("train", "train networks on a gate and count their explanations", _VERBS + "train"),
    ),
)
