"""Fully connected layer between symmetric spaces, attention, and activations."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclr_shared.errors import InputError
from iclr_symspaces.hyperbolic import _Hyperbolic
from iclr_symspaces.hyperplanes import Hyperplanes
from iclr_symspaces.means import Mean, weighted_mean
from iclr_symspaces.space import SymmetricSpace
from iclr_symspaces.symmetric import reeig

Construction = Literal["iwasawa", "tangent"]
Score = Literal["distance", "matt"]


class SymFC(nn.Module):
    """Fully connected layer X → Y: dim Y signed distances v_j = s(x; ξ_j, p_j); the first `rank` make A, the rest N.

    Y = SPD(m): y = N diag(e^{v_1}, …, e^{v_m}) Nᵀ; its composite distance gives them back, A(y, I) = (v_1, …, v_m).
    Hyperbolic Y: the point of height e^{√c v_1} over (v_2, …), so −B_∞(y) = v_1.

    Args:
        source: X.
        target: Y.
        generator: source of the initial values.
        construction: "iwasawa" is the above; "tangent" the earlier exp(sym v) (SPD) and sinh (HNN++), without an
            inverse.
        **options: of `Hyperplanes`.

    Raises:
        InputError: for options that do not fit.
    """

    def __init__(
        self,
        source: SymmetricSpace,
        target: SymmetricSpace,
        generator: torch.Generator,
        *,
        construction: Construction = "iwasawa",
        **options: Any,
    ):
        super().__init__()
        if construction not in ("iwasawa", "tangent"):
            raise InputError(f"construction must be 'iwasawa' or 'tangent', got {construction!r}.")
        self.source, self.target, self.construction = source, target, construction
        self.hyperplanes = Hyperplanes(source, target.dim, generator, **options)

    def coordinates(self, x: Tensor) -> Tensor:
        """v: (..., *source.point_shape) to (..., target.dim)."""
        return self.hyperplanes(x)

    def forward(self, x: Tensor) -> Tensor:
        """(..., *source.point_shape) to (..., *target.point_shape)."""
        v = self.coordinates(x)
        return self.target.iwasawa(v) if self.construction == "iwasawa" else self.target.tangent_point(v)


class SymAttention(nn.Module):
    """Attention over T points: Q, K, V by fully connected layers, softmax of −τ d(q_i, k_j), weighted means of V.

    Args:
        source: X, of the tokens.
        target: Y, of queries, keys, values and results.
        generator: source of the initial values.
        score: "distance" is −τ d with a learned τ > 0 that starts at 1; "matt" is τ/(1 + log(1 + d)).
        mean: for SPD targets: "logeuclid" or "karcher".
        **options: of `SymFC`.

    Raises:
        InputError: for options that do not fit.
    """

    def __init__(
        self,
        source: SymmetricSpace,
        target: SymmetricSpace,
        generator: torch.Generator,
        *,
        score: Score = "distance",
        mean: Mean = "logeuclid",
        **options: Any,
    ):
        super().__init__()
        if score not in ("distance", "matt"):
            raise InputError(f"score must be 'distance' or 'matt', got {score!r}.")
        if mean not in ("logeuclid", "karcher"):
            raise InputError(f"mean must be 'logeuclid' or 'karcher', got {mean!r}.")
        self.target, self.score, self.mean = target, score, mean
        self.query, self.key, self.value = (SymFC(source, target, generator, **options) for _ in range(3))
        first = next(self.query.parameters())
        self.log_tau = nn.Parameter(torch.zeros((), dtype=first.dtype, device=first.device))

    def weights(self, x: Tensor) -> Float[Tensor, "*batch t t"]:
        """The attention of each token to each: (..., T, *point_shape) to (..., T, T)."""
        n = len(self.target.point_shape)
        q, k = self.query(x).unsqueeze(-n - 1), self.key(x).unsqueeze(-n - 2)
        d = self.target.dist(q, k)
        scores = -d if self.score == "distance" else 1 / (1 + torch.log1p(d))
        return torch.softmax(self.log_tau.exp() * scores, -1)

    def forward(self, x: Tensor) -> Tensor:
        """(..., T, *source.point_shape) to (..., T, *target.point_shape)."""
        return weighted_mean(self.target, self.value(x), self.weights(x), self.mean)


class ReEig(nn.Module):
    """Activation for SPD matrices: eigenvalues raised to at least `eps`."""

    def __init__(self, eps: float = 1e-4):
        super().__init__()
        if not eps > 0:
            raise InputError(f"eps must be positive, got {eps}.")
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
        """max(λ, eps)."""
        return reeig(x, self.eps)


class TangentReLU(nn.Module):
    """Activation for hyperbolic points: exp_o(relu(log_o x))."""

    def __init__(self, space: SymmetricSpace):
        super().__init__()
        if not isinstance(space, _Hyperbolic):
            raise InputError(f"TangentReLU is for hyperbolic spaces; for {space} use ReEig.")
        self.space = space

    def forward(self, x: Tensor) -> Tensor:
        """Points to points."""
        return self.space.exp0(torch.relu(self.space.log0(x)))
