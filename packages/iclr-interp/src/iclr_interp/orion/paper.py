"""What the paper is, and which of its statements are checked here."""

from iclr_shared.spec import Claim, Command, Method, Paper

_CHECKS = "iclr_interp.orion.claims:"
_VERBS = "iclr_interp.orion.commands:"

PAPER = Paper(
    title=(
        "Look Before You Leap: Universal Emergent Mechanism for Retrieval in Language Models"
    ),
    authors=("Alexandre Variengien", "Eric Winsor"),
    year=2025,
    venue="ICLR 2025",
    arxiv="2312.10091",
    code="https://github.com/aVariengien/causal-checker",
    bibtex="""@inproceedings{variengien2025look,
  title     = {Look Before You Leap: Universal Emergent Mechanism for Retrieval in Language Models},
  author    = {Variengien, Alexandre and Winsor, Eric},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
  note      = {arXiv:2312.10091},
}""",
)  # fmt: skip


def _claim(id, statement, metric, direction, threshold, check, seconds, unit=None, tier="laptop", figure=None):
    return Claim(
        id=id, statement=statement, figure=figure, metric=metric, direction=direction, threshold=threshold, unit=unit,
        tier=tier, check=_CHECKS + check, seconds=seconds,
    )  # fmt: skip


CLAIMS = (
    _claim(
        "C1a", "In a model whose weights are written by hand, patching finds the layers that are known.",
        "smallest probability of the answer expected at layers 0, 1, 2", ">=", 0.999, "compiled_layers", 3,
        tier="exact",
    ),
    _claim(
        "C1b", "The last token first holds nothing, then the request, then the answer.",
        "share of three trained models with the order of the peaks", ">=", 1.0, "tiny_order", 30,
        figure="layer heat maps",
    ),
    _claim(
        "C1c", "The trained models know their task.", "unpatched accuracy, worst of three", ">=", 0.95,
        "tiny_baseline", 1,
    ),
    _claim(
        "C1d", "Before the first block the last token holds nothing specific.",
        "normalised P[R2(C2)] at layer 0, worst of three", ">=", 0.9, "tiny_first_layer", 1, figure="layer heat maps",
    ),
    _claim(
        "C1e", "After the last block it holds the answer.", "normalised P[R1(C1)] at layer N, worst of three", ">=",
        0.95,
        "tiny_last_layer", 1, figure="layer heat maps",
    ),
    _claim(
        "C1f", "In between, the request alone can be moved.",
        "highest normalised P[R1(C2)] of six models (two depths, three seeds)", ">=", 0.7, "tiny_height", 40,
        figure="98 of 106 pairs reach 0.7",
    ),
    _claim(
        "C2", "The same holds over tasks and models.",
        "share of twelve models (two grammars, two depths, three seeds) with the order and a peak of 0.7", "report",
        None, "across_grammars", 180, figure="98 of 106 pairs",
    ),
    _claim(
        "C3", "Request-patching does more than trivial patches.",
        "normalised P[R1(C2)] at L2 minus the best of three controls, worst of three", ">=", 0.3, "beats_controls", 5,
    ),
    _claim(
        "C4a", "An injected request hijacks the model.", "accuracy on hijacked prompts, best of three", "<=", 0.1,
        "attack_works", 35, figure="prompt injection",
    ),
    _claim(
        "C4b", "One trusted prompt undoes it.", "gain in accuracy by repair at L2, worst of three", ">=", 0.5,
        "repair_works", 2, figure="15.5 % to 97.5 %",
    ),
    _claim(
        "C4c", "Repair leaves clean prompts as they were.", "accuracy on clean prompts under the patch, worst of three",
        "report", None, "repair_keeps_clean", 1,
    ),
    _claim(
        "C4d", "Patching both ways detects altered requests.",
        "rate of A or B on hijacked prompts minus on clean ones, worst of three", "report", None, "detection", 1,
    ),
    _claim(
        "C4e", "An attack that gives the answer itself is not undone.", "accuracy after repair", "report", None,
        "injected_answers", 15,
    ),
    _claim(
        "C5a", "The prompts of all six domains hold the contract.", "breaches over 18 data sets of 100 prompts",
        "<=", 0,
        "well_formed", 10, tier="exact",
    ),
    _claim(
        "C5b", "Their answers follow from the text alone.", "share of prompts on which a second parser agrees", ">=",
        1.0,
        "read_again", 5, tier="exact",
    ),
    _claim(
        "C6a", "The heads with the largest direct effect attend to the answer.",
        "mean attention of the top three of the retrieval blocks, worst of three", ">=", 0.5, "movers_attend", 10,
        figure="case study",
    ),
    _claim(
        "C6b", "They are needed.", "accuracy lost by ablating them, worst of three", ">=", 0.3, "movers_matter", 1,
        figure="case study",
    ),
    _claim(
        "C6c", "Others beside them are not.", "accuracy lost by random heads over that lost by them, worst of three",
        "<=", 0.5, "others_matter_less", 1, figure="case study",
    ),
)  # fmt: skip

METHOD = Method(
    name="orion",
    title="Request-patching for retrieval and oversight",
    summary="Where does a language model read the request and where does it retrieve? Undo injected requests",
    paper=PAPER,
    claims=CLAIMS,
    commands=(
        Command("tasks", "retrieval prompts of six domains, as files", _VERBS + "tasks"),
        Command("patch", "find the layers of request and answer in a model directory", _VERBS + "patch"),
        Command("oversee", "repair and inspect prompts with one trusted prompt", _VERBS + "oversee"),
    ),
)
