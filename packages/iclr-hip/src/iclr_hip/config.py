"""The settings of hierarchically pruned attention."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from iclr_shared.errors import InputError

Sample = Literal["center", "first", "last", "random", "oracle"]

SAMPLES = ("center", "first", "last", "random", "oracle")
BACKENDS = ("auto", "torch", "triton", "cupy")


@dataclass(frozen=True)
class HiPConfig:
    """How many keys each query attends and how they are found (arXiv 2406.09827). Sizes are tokens.

    Args:
        mask_k: keys that the tree search keeps for each block of queries; a multiple of `block_size_k`. 512 is the
            default of the official code, 1024 is also reported for prefill; 0 leaves sinks and window alone.
        block_size_q: queries that share one search (official code: 64; 32 in its serving scripts).
        block_stride_q: every so many-th query of a block takes part in scoring (official code: 2).
        block_size_k: neighbouring keys kept or dropped together (official code: 2).
        block_stride_k: every so many-th key of a block takes part in scoring (official code: 1).
        sliding_window_size: latest keys that are always attended, the query's own included (official code: 256).
        sink_token_size: first keys that are always attended (official code: 16).
        dense_layers: first layers of a model left with full attention (official code: 3 for 8B models, 4 for 13B).
        refresh_interval: decoding steps that share one search (official code: 8).
        sample: block that stands for a branch: "center" (the paper), "first", "last", "random", or "oracle", which
            takes the best score of the whole branch and costs O(T²): for tests.
        align_init: snap the first nodes to a power-of-two grid, so that neighbouring query blocks look at the same
            representatives (official code v1.1; off in the paper).
        backend: "torch", "triton", "cupy" (scores only); "auto" is Triton on CUDA and torch elsewhere.
        check_finite: refuse NaN and infinities in queries and keys, which would scramble the search. Off: it costs a
            pass over the data.

    Raises:
        InputError: for sizes that do not fit each other.
    """

    mask_k: int = 512
    block_size_q: int = 64
    block_stride_q: int = 2
    block_size_k: int = 2
    block_stride_k: int = 1
    sliding_window_size: int = 256
    sink_token_size: int = 16
    dense_layers: int = 3
    refresh_interval: int = 8
    sample: str = "center"
    align_init: bool = False
    backend: str = "auto"
    check_finite: bool = False

    def __post_init__(self):
        for name in ("block_size_q", "block_stride_q", "block_size_k", "block_stride_k", "sliding_window_size"):
            _check(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("mask_k", "sink_token_size", "dense_layers"):
            _check(getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}")
        _check(self.refresh_interval >= 1, f"refresh_interval must be at least 1, got {self.refresh_interval}")
        for whole, part in (
            ("mask_k", "block_size_k"), ("block_size_q", "block_stride_q"), ("block_size_k", "block_stride_k")
        ):  # fmt: skip
            a, b = getattr(self, whole), getattr(self, part)
            _check(a % b == 0, f"{whole} must be a multiple of {part}, got {a} and {b}")
        _check(self.sample in SAMPLES, f"sample must be one of {', '.join(SAMPLES)}, got {self.sample!r}")
        _check(self.backend in BACKENDS, f"backend must be one of {', '.join(BACKENDS)}, got {self.backend!r}")

    @property
    def nodes(self) -> int:
        """m: tree nodes kept at every level, m = mask_k / b_k."""
        return self.mask_k // self.block_size_k

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields, for `model.config.hip`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "HiPConfig":
        """The inverse of `to_dict`; fields left out take their defaults.

        Raises:
            InputError: for names that are no field.
        """
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        _check(not unknown, f"HiPConfig has no field {', '.join(unknown)}")
        return cls(**values)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> "HiPConfig":
        """The inverse of `to_json`."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"The HiP settings are not JSON: {error}.") from None
        _check(isinstance(values, dict), "the HiP settings must be a JSON object")
        return cls.from_dict(values)


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise InputError(f"{message}.")
