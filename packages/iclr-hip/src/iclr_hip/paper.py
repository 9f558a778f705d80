"""What the paper is, and which of its statements are checked here."""

from iclr_shared.spec import Claim, Command, Method, Paper

_CHECKS = "iclr_hip."
_VERBS = "iclr_hip.commands:"

PAPER = Paper(
    title="A Training-Free Sub-quadratic Cost Transformer Model Serving Framework with Hierarchically Pruned Attention",
    authors=(
        "Heejun Lee", "Geon Park", "Youngwan Lee", "Jaduk Suh", "Jina Kim", "Wonyong Jeong", "Bumsik Kim",
        "Hyemin Lee", "Myeongjae Jeon", "Sung Ju Hwang"
    ),
    year=2025,
    venue="ICLR 2025",
    arxiv="2406.09827",
    openreview="PTcMzQgKmn",
    code="https://github.com/DeepAuto-AI/hip-attention",
    bibtex="""@inproceedings{lee2025hip,
  title     = {A Training-Free Sub-quadratic Cost Transformer Model Serving Framework with Hierarchically Pruned
               Attention},
  author    = {Lee, Heejun and Park, Geon and Lee, Youngwan and Suh, Jaduk and Kim, Jina and Jeong, Wonyong and
               Kim, Bumsik and Lee, Hyemin and Jeon, Myeongjae and Hwang, Sung Ju},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
  note      = {arXiv:2406.09827},
}""",
)  # fmt: skip


def _claim(id, statement, metric, direction, threshold, check, seconds, unit=None, tier="laptop", figure=None):
    return Claim(
        id=id, statement=statement, figure=figure, metric=metric, direction=direction, threshold=threshold, unit=unit,
        tier=tier, check=_CHECKS + check, seconds=seconds,
    )  # fmt: skip


CLAIMS = (
    _claim(
        "C1a", "Where near tokens have similar scores, the search finds the highest one as often as expected.",
        "largest deviation of P(top-1 found) from 0.384, 0.685, 0.806 for lengths 4, 16, 64, m = 4", "<=", 0.04,
        "claims:finds_the_top", 3, figure="Theorem 1",
    ),
    _claim(
        "C1b", "It finds it more often than a random choice of as many tokens.",
        "smallest ratio of (P - 3 standard errors) to m / T over nine cases", ">=", 1.0, "claims:beats_random_pruning",
        3, figure="Theorem 1",
    ),
    _claim(
        "C1c", "The more similar near scores are, the more often.",
        "smallest step of P(top-1 found) from one length to the next, m = 1, 4, 16", ">=", 0.0,
        "claims:locality_helps", 3, figure="Theorem 1",
    ),
    _claim(
        "C2", "Trained models have this attention locality.",
        "share of heads where E|s_i - s_(i+d)| rises with d, Spearman > 0.8 over d = 1..32", ">=", 0.5,
        "language_claims:locality_in_a_trained_model", 120,
    ),
    _claim(
        "C3a", "The search looks at 2 m scores a level.", "largest deviation of counted evaluations from 2 m levels",
        "<=", 0.0, "claims:counts_evaluations", 2, tier="exact",
    ),
    _claim(
        "C3b", "Prefill takes O(T log T) time.", "log-log slope of prefill seconds, T = 1k to 32k", "<=", 1.35,
        "cost_claims:prefill_slope", 90, figure="abstract",
    ),
    _claim(
        "C3c", "Dense attention takes O(T^2).", "log-log slope of dense seconds, last three lengths", ">=", 1.8,
        "cost_claims:dense_slope", 1,
    ),
    _claim(
        "C3d", "At 32k tokens prefill is faster than dense attention.", "dense seconds over HiP's at the last length",
        ">=", 1.5, "cost_claims:prefill_speedup", 1, figure="abstract",
    ),
    _claim(
        "C3e", "From some length on, HiP is faster.", "shortest length from which on HiP is faster", "<=", 32768,
        "cost_claims:crossing", 1, unit="tokens",
    ),
    _claim(
        "C3f", "Decoding one token at 32k is several times faster than dense.",
        "dense seconds over HiP's for a token, refresh included", ">=", 3.0, "cost_claims:decoding_speedup", 10,
        figure="abstract",
    ),
    _claim(
        "C4a", "Memory is O(T).", "log-log slope of the most bytes alive in new tensors at T = 4k, 8k, 16k, 32k",
        "<=", 1.15, "cost_claims:memory_slope", 10, figure="abstract",
    ),
    _claim(
        "C4b", "No (T, T) tensor is ever made, at T = 131,072.", "entries of the largest new tensor over T^2", "<=",
        0.01, "cost_claims:no_square_tensor", 30,
    ),
    _claim(
        "C5a", "A trained model loses little, without retraining.", "perplexity over dense, minus 1", "<=", 0.03,
        "language_claims:little_is_lost", 1, figure="LongBench, PG19",
    ),
    _claim(
        "C5b", "It loses less than with random blocks of the same budget.",
        "perplexity increase with random blocks minus HiP's", ">=", 0.0, "language_claims:less_than_random", 1,
    ),
    _claim(
        "C5c", "It loses less than with sinks and a window of the same budget.",
        "perplexity increase with sinks and window minus HiP's", ">=", 0.0, "language_claims:less_than_window", 1,
    ),
    _claim(
        "C6a", "With mask_k of all keys it is dense attention.", "largest difference from dense outputs, float32",
        "<=", 1e-5, "claims:dense_limit", 2, tier="exact",
    ),
    _claim(
        "C6b", "Its mask is then the full causal one.", "pairs in which the two masks differ", "<=", 0.0,
        "claims:full_mask", 2, tier="exact",
    ),
    _claim(
        "C7a", "A needle far outside of the window is found.", "share of 60 centres kept, sigma = 32, T = 8192",
        ">=", 0.95, "claims:finds_the_needle", 6, figure="passkey",
    ),
    _claim(
        "C7b", "Sinks and a window of the same budget never find it.", "share of 60 centres kept", "<=", 0.0,
        "claims:window_misses_the_needle", 1,
    ),
    _claim(
        "C8a", "Offloading changes no output.", "largest difference over all decoded outputs", "<=", 0.0,
        "cache_claims:offloading_is_exact", 10, tier="exact", figure="offloading",
    ),
    _claim(
        "C8b", "O(log T) tokens stay on the device.", "resident tokens over C(T) + w + r_m + n_sink, largest", "<=",
        1.0, "cache_claims:resident_tokens", 1, figure="abstract",
    ),
    _claim(
        "C8c", "C(T) grows by mask_k s G at each doubling of T.", "growth from T = 65,536 to 131,072 over mask_k s G",
        "in", (0.98, 1.0), "cache_claims:capacity_growth", 1, tier="exact",
    ),
    _claim(
        "C8d", "Most blocks are found on the device.", "hit rate of decoding over smooth keys, lowest of the lengths",
        ">=", 0.8, "cache_claims:hit_rate", 30, figure="offloading",
    ),
    _claim(
        "C9", "On a GPU prefill is faster than flash attention at 32k.", "flash attention's time over HiP's", ">=", 1.0,
        "cost_claims:gpu_speedup", 60, tier="full", figure="speed-up figures",
    ),
)  # fmt: skip

METHOD = Method(
    name="hip",
    title="Hierarchically pruned attention",
    summary="Serve a pretrained LLM on long prompts: sub-quadratic prefill, cheap decoding, offloaded KV cache",
    paper=PAPER,
    claims=CLAIMS,
    commands=(
        Command("generate", "continue a prompt with a local model, pruned", _VERBS + "generate"),
        Command("bench", "time and memory against dense attention", _VERBS + "bench"),
        Command("inspect", "which keys a prompt attends, as pictures", _VERBS + "inspect"),
    ),
    extras=("iclr-hip[cuda12]", "iclr-hip[cuda13]"),
)
