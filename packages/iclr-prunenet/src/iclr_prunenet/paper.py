"""What the paper is, and which of its statements are checked here."""

from iclr_shared.spec import Claim, Command, Method, Paper

_CHECKS = "iclr_prunenet.claims:"
_VERBS = "iclr_prunenet.commands:"

PAPER = Paper(
    title="You Only Prune Once: Designing Calibration-Free Model Compression With Policy Learning",
    authors=("Ayan Sengupta", "Siddhant Chaudhary", "Tanmoy Chakraborty"),
    year=2025,
    venue="ICLR 2025",
    arxiv="2501.15296",
    openreview="5RZoYIT3u6",
    code="https://github.com/LCS2-IIITD/PruneNet",
    bibtex="""@inproceedings{sengupta2025you,
  title     = {You Only Prune Once: Designing Calibration-Free Model Compression With Policy Learning},
  author    = {Sengupta, Ayan and Chaudhary, Siddhant and Chakraborty, Tanmoy},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
  note      = {arXiv:2501.15296},
}""",
)


def _claim(id, statement, metric, direction, threshold, check, seconds, unit=None, tier="exact", figure=None):
    return Claim(
        id=id, statement=statement, figure=figure, metric=metric, direction=direction, threshold=threshold, unit=unit,
        tier=tier, check=_CHECKS + check, seconds=seconds,
    )  # fmt: skip


CLAIMS = (
    _claim(
        "C1", "Removing rows shrinks the spectrum in an interlaced way.",
        "largest violation over 200 matrices, relative to sigma_1", "<=", 1e-5, "spectra_interlace", 2,
        figure="section 3",
    ),
    _claim(
        "C2", "A cut model is the model with the removed hidden units set to zero.",
        "largest difference of logits over 11 architectures", "<=", 1e-5, "pruned_equals_masked", 2,
    ),
    _claim(
        "C3", "The policy learns to preserve the spectra of planted matrices.",
        "seeds of 6 with mean KS <= 0.06 and >= 95 % of the strong rows kept", ">=", 5, "policy_learns", 5,
        tier="laptop",
    ),
    _claim(
        "C4a", "A small language model pruned by the policy is better than with random rows.",
        "perplexity over that with random rows, mean over ratios 0.1 to 0.3", "<=", 1.0, "keeps_performance", 120,
        tier="laptop", figure="abstract",
    ),
    _claim(
        "C4b", "The same against the rows of largest norm.",
        "perplexity over that with the largest rows, mean over ratios 0.1 to 0.3", "report", None,
        "against_magnitude", 1, tier="laptop",
    ),
    _claim(
        "C5", "No calibration data: the model is never run.",
        "forward passes while training and pruning", "<=", 0, "no_calibration_data", 2, figure="abstract",
    ),
    _claim(
        "C6", "One policy serves any ratio.",
        "mean KS above policies trained at the target ratio, worst of 0.1, 0.2, 0.4", "<=", 0.03125,
        "one_policy_any_ratio", 10, tier="laptop", figure="title",
    ),
    _claim(
        "C7", "An episode is faster than the official way.",
        "official seconds per episode over ours", ">=", 2.0, "faster_than_official", 30, tier="laptop",
    ),
    _claim(
        "C8", "Cutting 30 % of the hidden units raises throughput.",
        "tokens per second over the dense model's", ">=", 1.1, "throughput", 20, tier="laptop",
    ),
    _claim(
        "C9", "A compressed directory loads as an ordinary model and has the promised parameters.",
        "largest difference over 11 architectures", "<=", 0, "promised_parameters", 5, unit="parameters",
    ),
)  # fmt: skip

COMMANDS = (
    Command("compress", "cut a model directory to a ratio", _VERBS + "compress"),
    Command("train", "learn a policy from a model's weights", _VERBS + "train"),
    Command("evaluate", "size, speed and perplexity of model directories", _VERBS + "evaluate"),
)

METHOD = Method(
    name="prunenet",
    title="PruneNet",
    summary="Cut the feed-forward layers of a language model by a policy learned from its weights alone",
    paper=PAPER,
    claims=CLAIMS,
    commands=COMMANDS,
    extras=("iclr-prunenet[recovery]",),
)
