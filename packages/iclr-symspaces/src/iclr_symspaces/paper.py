"""What the paper is, and which of its statements are checked here."""

from iclr_shared.spec import Claim, Command, Method, Paper

_CHECKS = "iclr_symspaces.claims:"
_EXPERIMENTS = "iclr_symspaces.experiment_claims:"
_VERBS = "iclr_symspaces.commands:"

PAPER = Paper(
    title="Neural Networks on Symmetric Spaces of Noncompact Type",
    authors=("Xuan Son Nguyen", "Shuo Yang", "Aymeric Histace"),
    year=2025,
    venue="ICLR 2025",
    arxiv="2601.01097",
    code="https://github.com/nguyenxuanson10/symspaces-ic",
    bibtex="""@inproceedings{nguyen2025neural,
  title     = {Neural Networks on Symmetric Spaces of Noncompact Type},
  author    = {Nguyen, Xuan Son and Yang, Shuo and Histace, Aymeric},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
  note      = {arXiv:2601.01097},
}""",
)


def _claim(id, statement, metric, direction, threshold, check, seconds, unit=None, tier="exact", figure=None):
    return Claim(
        id=id, statement=statement, figure=figure, metric=metric, direction=direction, threshold=threshold, unit=unit,
        tier=tier, check=check, seconds=seconds,
    )  # fmt: skip


CLAIMS = (
    _claim(
        "C1a", "The closed form is the limit d(x, γ(t)) − t in every rank: on SPD(n) the error falls as 1/t.",
        "largest |log-log slope of the error + 1| over t = 20, 40, 80; n = 2..6, three metrics", "<=", 0.1,
        _CHECKS + "limit_in_every_rank", 6, figure="theorem",
    ),
    _claim(
        "C1b", "On the ball and the hyperboloid the limit is reached exponentially.",
        "largest error at t = 15", "<=", 1e-10, _CHECKS + "limit_in_rank_one", 1, figure="theorem",
    ),
    _claim(
        "C1c", "The lower-triangular factorisation does not converge to its formula.",
        "median error at t = 80", ">=", 0.1, _CHECKS + "wrong_factor_does_not_converge", 3,
    ),
    _claim(
        "C1d", "The coefficient of 1/t is (‖A‖² − ⟨H, A⟩²)/2.",
        "largest relative error of t·e(t) at t = 80", "report", None, _CHECKS + "limit_at_second_order", 3,
    ),
    _claim(
        "C2a", "|B(x) − B(p)| is the distance to the horosphere through p.",
        "largest difference from the optimised distance, SPD(3)", "<=", 1e-5, _CHECKS + "distance_is_exact", 4,
        figure="theorem",
    ),
    _claim(
        "C2b", "The log-Euclidean formula is another distance.",
        "median difference from the optimised distance", ">=", 0.01, _CHECKS + "log_euclidean_differs", 4,
    ),
    _claim(
        "C3a", "Differences of Busemann functions are invariant under the group, the boundary point going along.",
        "largest error over 20 random g, SPD(3) and ball", "<=", 1e-9, _CHECKS + "cocycle", 1, figure="theorem",
    ),
    _claim(
        "C3b", "So is the layer, with the rotation u of its transvections.",
        "largest error over 20 random g, SPD(3) and ball", "<=", 1e-9, _CHECKS + "layer_invariance", 1,
        figure="theorem",
    ),
    _claim(
        "C3c", "With gξ in place of uξ the layer changes.",
        "median difference over 20 random g", ">=", 0.01, _CHECKS + "wrong_boundary_differs", 1,
    ),
    _claim(
        "C3d", "The log-Euclidean layer is not invariant.",
        "median difference over 20 random g", ">=", 0.001, _CHECKS + "log_euclidean_changes", 1,
    ),
    _claim(
        "C4a", "The log-Euclidean hyperplane distance is recovered.",
        "largest error", "<=", 1e-10, _CHECKS + "recovers_log_euclidean", 1, figure="proposition",
    ),
    _claim(
        "C4b", "The log-Cholesky hyperplane distance is recovered.",
        "largest error", "<=", 1e-10, _CHECKS + "recovers_log_cholesky", 1, figure="proposition",
    ),
    _claim(
        "C4c", "The Euclidean hyperplane distance is recovered.",
        "largest error", "<=", 1e-10, _CHECKS + "recovers_euclidean", 1, figure="proposition",
    ),
    _claim(
        "C4d", "SPD(2) of determinant 1 is the half plane: B_SPD = √2 B_H².",
        "largest error", "<=", 1e-10, _CHECKS + "half_plane_is_spd2", 1, figure="proposition",
    ),
    _claim(
        "C5a", "The fully connected layer returns its distances: A(y, I) = (v_11, …, v_mm).",
        "largest error, m = 2..5", "<=", 1e-9, _CHECKS + "layer_has_inverse", 1,
    ),
    _claim(
        "C5b", "The exp(sym v) construction does not.",
        "least over m = 2..5 of the largest error", ">=", 0.01, _CHECKS + "exponential_has_none", 1,
    ),
    _claim(
        "C6a", "SPD head on EEG-like data, subject shift 0.05, δ 0.05.",
        "test accuracy, mean of 5 seeds", "report", None, _EXPERIMENTS + "eeg_small_shift", 45, tier="laptop",
        figure="EEG tables",
    ),
    _claim(
        "C6b", "SPD head on EEG-like data, subject shift 0.1, δ 0.1.",
        "test accuracy, mean of 5 seeds", "report", None, _EXPERIMENTS + "eeg_middle_shift", 50, tier="laptop",
        figure="EEG tables",
    ),
    _claim(
        "C6c", "SPD head on EEG-like data, subject shift 0.25, δ 0.15.",
        "test accuracy, mean of 5 seeds", "report", None, _EXPERIMENTS + "eeg_large_shift", 90, tier="laptop",
        figure="EEG tables",
    ),
    _claim(
        "C6d", "SPD head on EEG-like data without a shift, δ 0.05: the control, in which all heads are right.",
        "test accuracy, mean of 5 seeds", "report", None, _EXPERIMENTS + "eeg_no_shift", 40, tier="laptop",
    ),
    _claim(
        "C7a", "Hyperbolic head on a hierarchy in the ball, d = 2.",
        "test accuracy, mean of 5 seeds", "report", None, _EXPERIMENTS + "tree_in_2d", 45, tier="laptop",
        figure="image tables",
    ),
    _claim(
        "C7b", "Hyperbolic head on a hierarchy in the ball, d = 4.",
        "test accuracy, mean of 5 seeds", "report", None, _EXPERIMENTS + "tree_in_4d", 45, tier="laptop",
        figure="image tables",
    ),
    _claim(
        "C7c", "Hyperbolic head on a hierarchy in the ball, d = 8.",
        "test accuracy, mean of 5 seeds", "report", None, _EXPERIMENTS + "tree_in_8d", 45, tier="laptop",
        figure="image tables",
    ),
    _claim(
        "C8a", "With a flag shared by the classes the invariant head costs no more than the log-Euclidean one, n = 16.",
        "time of the log-Euclidean head over it", ">=", 1.0, _EXPERIMENTS + "shared_flag_at_16", 35, tier="laptop",
    ),
    _claim(
        "C8b", "The same at n = 64.",
        "time of the log-Euclidean head over it", ">=", 1.0, _EXPERIMENTS + "shared_flag_at_64", 35, tier="laptop",
    ),
    _claim(
        "C8c", "With a flag per class it is several times slower.",
        "time of the log-Euclidean head over it, n = 32", "report", None, _EXPERIMENTS + "flags_per_class", 35,
        tier="laptop",
    ),
)  # fmt: skip

METHOD = Method(
    name="symspaces",
    title="Neural networks on symmetric spaces",
    summary="Linear layers, classifiers and attention on hyperbolic space, SPD matrices and their products",
    paper=PAPER,
    claims=CLAIMS,
    commands=(
        Command("classify", "cross-validated accuracies on your covariances or points", _VERBS + "classify"),
        Command("fit", "train a classifier and write it to a file", _VERBS + "fit"),
        Command("predict", "labels and logits of new samples", _VERBS + "predict"),
        Command("images", "the paper's ResNet-18 with a hyperbolic head on your copy of CIFAR", _VERBS + "images"),
        Command("distance", "signed distances of points to hyperplanes", _VERBS + "distance"),
    ),
)
