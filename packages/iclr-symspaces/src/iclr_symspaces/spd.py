"""SPD matrices under the GL(n)-invariant metrics ⟨U, V⟩_P = α tr(P⁻¹UP⁻¹V) + β tr(P⁻¹U) tr(P⁻¹V)."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from iclr_shared.errors import InputError
from iclr_symspaces.space import CHUNK_BYTES, Norm, SymmetricSpace, only_riemannian, vanish_at_points
from iclr_symspaces.symmetric import expm, logm, reverse_cholesky_logdiag, rsqrtm, safe_norm, sqrtm, sym

Transvection = Literal["symmetric", "triangular"]


class Flag(NamedTuple):
    """K boundary points ξ = (k, a) of SPD(n): geodesics t ↦ k diag(e^{ta}) kᵀ.

    Args:
        k: orthogonal matrices, K of them or a single one that all K share (then log D is computed once per sample).
        a: descending, of unit length in the metric.
    """

    k: Float[Tensor, "m n n"]
    a: Float[Tensor, "k n"]


class _Matrices(SymmetricSpace):
    """Checks that all spaces of SPD matrices share."""

    n: int

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of a point."""
        return (self.n, self.n)

    @property
    def tangent_shape(self) -> tuple[int, ...]:
        """Shape of a tangent vector at the identity."""
        return (self.n, self.n)

    @property
    def dim(self) -> int:
        """n(n + 1)/2."""
        return self.n * (self.n + 1) // 2

    def check(self, x: Float[Tensor, "..."], what: str = "matrix") -> Float[Tensor, "..."]:
        """`x`, symmetrised if its asymmetry is below 1e-6 relative.

        Raises:
            InputError: for the first matrix that holds NaN, is not symmetric, or not positive definite.
        """
        self._check_array(x, self.point_shape, what)
        flat = x.detach().reshape(-1, self.n, self.n)
        skew = (flat - flat.mT).abs().amax((-2, -1))
        off = skew > 1e-6 * flat.abs().amax((-2, -1))
        if bool(off.any()):
            bad = int(off.nonzero()[0, 0])
            raise InputError(
                f"{what} {bad} is not symmetric: entries differ by up to {float(skew[bad]):.3g}; use (X + Xᵀ)/2."
            )
        if bool((skew > 0).any()):
            x = sym(x)
        info = torch.linalg.cholesky_ex(sym(flat)).info
        if bool((info > 0).any()):
            bad = int((info > 0).nonzero()[0, 0])
            values = torch.linalg.eigvalsh(sym(flat[bad]).double())
            if x.dtype == torch.float32 and float(values[0]) > torch.finfo(torch.float64).eps * float(values[-1]):
                raise InputError(
                    f"{what} {bad} is not positive definite in float32, eigenvalues {float(values[0]):.2g} to "
                    f"{float(values[-1]):.2g}: use float64, or another unit."
                )
            raise InputError(
                f"{what} {bad} is not positive definite: min eigenvalue {float(values[0]):.2g}; add shrinkage, "
                "e.g. pyriemann Covariances('oas')."
            )
        return x

    def project(self, x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
        """Symmetrised, eigenvalues raised to eps · n · the largest."""
        w, v = torch.linalg.eigh(sym(x))
        floor = torch.finfo(x.dtype).eps * self.n * w[..., -1:].clamp_min(torch.finfo(x.dtype).tiny)
        return (v * torch.maximum(w, floor).unsqueeze(-2)) @ v.mT

    def _tangent(self, v: Tensor) -> Tensor:
        return sym(v)

    def tangent_point(self, v: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch n n"]:
        """exp of the symmetric matrix with diagonal v_1 … v_n and the rest above it in row order."""
        upper = self._upper(v[..., self.n :])
        return expm(torch.diag_embed(v[..., : self.n]) + upper + upper.mT)

    def _upper(self, v: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch n n"]:
        i, j = torch.triu_indices(self.n, self.n, 1, device=v.device)
        flat = v.new_zeros(*v.shape[:-1], self.n * self.n).index_copy(-1, i * self.n + j, v)
        return flat.unflatten(-1, (self.n, self.n))


@dataclass(frozen=True, eq=False)
class SPD(_Matrices):
    """SPD(n) = GL(n)/O(n), of rank n.

    Args:
        n: order of the matrices.
        alpha: α > 0.
        beta: β > −α/n.
        transvection: "symmetric" is X ↦ P^{-1/2}XP^{-1/2}; "triangular" is L⁻¹XL⁻ᵀ with P = LLᵀ, L lower. Both are
            isometries; they give different layers.
    """

    n: int
    alpha: float = 1.0
    beta: float = 0.0
    transvection: Transvection = "symmetric"

    def __post_init__(self):
        if self.n < 1:
            raise InputError(f"SPD needs n of at least 1, got {self.n}.")
        if not (self.alpha > 0 and self.alpha + self.n * self.beta > 0):
            raise InputError(
                f"alpha={self.alpha:g}, beta={self.beta:g} is no metric on SPD({self.n}): it needs alpha > 0 and "
                f"beta > -alpha/n = {-self.alpha / self.n:g}."
            )
        if self.transvection not in ("symmetric", "triangular"):
            raise InputError(f"transvection must be 'symmetric' or 'triangular', got {self.transvection!r}.")

    @property
    def rank(self) -> int:
        """n."""
        return self.n

    def exp0(self, v: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
        """expm of the symmetric part."""
        return expm(sym(v))

    def log0(self, x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
        """logm."""
        return logm(x)

    def dist(self, x: Float[Tensor, "*b1 n n"], y: Float[Tensor, "*b2 n n"]) -> Float[Tensor, "*b3"]:
        """√(α‖L‖² + β(ΣL)²), L = log eig(x^{-1/2} y x^{-1/2}); near x from the difference y − x, exactly 0 at y = x."""
        x, y = torch.broadcast_tensors(x, y)
        lower = torch.linalg.cholesky(x)
        m = _between(lower, y)
        excess = (m - torch.eye(self.n, dtype=m.dtype, device=m.device)).detach()
        near = excess.flatten(-2).norm(dim=-1, keepdim=True) < 0.5
        if not bool(near.any()):
            logs = torch.linalg.eigvalsh(m).log()
        else:
            w = torch.linalg.eigvalsh(torch.where(near.unsqueeze(-1), _between(lower, y - x), m))
            zero = torch.zeros_like(w)
            logs = torch.where(near, torch.log1p(torch.where(near, w, zero)), torch.where(near, zero + 1, w).log())
        return safe_norm(self._square(logs).clamp_min(0))

    def transvect(self, p: Float[Tensor, "*b1 n n"], x: Float[Tensor, "*b2 n n"]) -> Float[Tensor, "*b3 n n"]:
        """⊖p⊕x."""
        t = self._to_origin(p)
        return sym(t @ x @ t.mT)

    def boundary(self, direction: Float[Tensor, "..."] | tuple[Float[Tensor, "..."], Float[Tensor, "..."]]) -> Flag:
        """Boundary points from symmetric matrices W = k diag(a) kᵀ, (K, n, n), or from pairs (k, a).

        Where a is not descending, the columns of k are permuted along; a is scaled to unit length in the metric.

        Raises:
            InputError: for a zero direction, a k that is not orthogonal, or unsorted a with a k shared by several
                classes.
        """
        if isinstance(direction, Tensor):
            direction = self._directions(direction)
            finite = torch.isfinite(direction.detach()).flatten(1).all(1)
            if not bool(finite.all()):
                raise InputError(f"direction {int((~finite).nonzero()[0, 0])} must be non-zero and finite.")
            a, k = torch.linalg.eigh(sym(direction))
            return Flag(k.flip(-1), self._unit(a.flip(-1)))
        k, a = direction
        fits = k.ndim == 3 and a.ndim == 2 and tuple(k.shape[1:]) == (self.n, self.n) and a.shape[-1] == self.n
        if not fits or not len(a) or len(k) not in (1, len(a)):
            raise InputError(
                f"{self} needs k of shape (K or 1, n, n) and a of (K, n), K at least 1; got {(*k.shape,)} and "
                f"{(*a.shape,)}."
            )
        off = (k.detach().mT @ k.detach() - torch.eye(self.n, dtype=k.dtype, device=k.device)).abs().amax()
        if not float(off) < 1e3 * self.n * torch.finfo(k.dtype).eps:
            raise InputError(f"k must hold orthogonal matrices; kᵀk differs from the identity by {float(off):.3g}.")
        return self.sorted_flag(k, a)

    def sorted_flag(self, k: Float[Tensor, "m n n"], a: Float[Tensor, "k n"]) -> Flag:
        """`boundary` of pairs (k, a) without the check that k is orthogonal."""
        if bool((a.detach()[:, 1:] > a.detach()[:, :-1]).any()):
            order = a.detach().argsort(dim=-1, descending=True, stable=True)
            if len(k) == 1 and bool((order != order[:1]).any()):
                raise InputError(
                    "a must be descending where the classes share k: its columns cannot be permuted for each."
                )
            k = k.gather(-1, order[: len(k), None, :].expand(-1, self.n, -1))
            a = a.gather(-1, order)
        return Flag(k, self._unit(a))

    def random_boundary(self, size: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Flag:
        """k Haar, a = sort(N(0, 1)) normalised."""
        free = torch.randn(size, self.n, self.n, generator=generator, dtype=dtype, device=generator.device)
        a = torch.randn(size, self.n, generator=generator, dtype=dtype, device=generator.device)
        return self.boundary((orthogonal(free), a.sort(-1, descending=True).values))

    def composite(self, x: Float[Tensor, "*batch n n"], k: Float[Tensor, "n n"]) -> Float[Tensor, "*batch n"]:
        """A(x, k) = log D of kᵀxk = N D Nᵀ: the composite distance, in units where exp acts on x."""
        return reverse_cholesky_logdiag(k.T @ x @ k)

    def busemann(self, x: Float[Tensor, "*batch n n"], xi: Flag) -> Float[Tensor, "*batch k"]:
        """B = −[α Σ a_i log D_i + β (Σ a_i)(Σ log D_i)] with kᵀxk = N D Nᵀ."""
        return -self._along(x, xi.k.mT, self._sorted(xi.a))

    def signed_distance(
        self,
        x: Float[Tensor, "*batch n n"],
        xi: Flag,
        p: Float[Tensor, "m n n"],
        norm: Norm = "riemannian",
        to_origin: Float[Tensor, "m n n"] | None = None,
    ) -> Float[Tensor, "*batch k"]:
        """s = −B_ξ(⊖p⊕x): M = T x Tᵀ with T = kᵀP^{-1/2} for each class, then one batched Cholesky.

        `to_origin` is P^{-1/2} (or L⁻¹) where the caller has it; gradients with respect to p flow through it then.
        """
        only_riemannian(self, norm)
        s = self._along(x, xi.k.mT @ (self._to_origin(p) if to_origin is None else to_origin), self._sorted(xi.a))
        flat = vanish_at_points(s.reshape(-1, s.shape[-1]), x.reshape(-1, self.n, self.n), p)
        return flat.reshape(s.shape)

    def iwasawa(self, v: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch n n"]:
        """N diag(e^{v_1}, …, e^{v_n}) Nᵀ, N unit upper triangular with the rest: A(y, I) = (v_1, …, v_n)."""
        unipotent = self._upper(v[..., self.n :]) + torch.eye(self.n, dtype=v.dtype, device=v.device)
        return sym((unipotent * v[..., : self.n].exp().unsqueeze(-2)) @ unipotent.mT)

    def _square(self, logs: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
        return self.alpha * logs.square().sum(-1) + self.beta * logs.sum(-1).square()

    def _unit(self, a: Float[Tensor, "k n"]) -> Float[Tensor, "k n"]:
        squares = self._square(a)
        if not bool((squares > 0).all() & torch.isfinite(squares).all()):
            bad = int((~((squares > 0) & torch.isfinite(squares))).nonzero()[0, 0])
            raise InputError(f"direction {bad} must be non-zero and finite.")
        return a / squares.sqrt()[:, None]

    def _sorted(self, a: Float[Tensor, "k n"]) -> Float[Tensor, "k n"]:
        if bool((a.detach()[:, 1:] > a.detach()[:, :-1] + 1e-6).any()):
            raise InputError("a of a boundary point must be descending; make it with .boundary((k, a)), which sorts.")
        return a

    def _to_origin(self, p: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
        """g_p⁻¹ with g_p g_pᵀ = p."""
        if self.transvection == "symmetric":
            return rsqrtm(p)
        lower, eye = torch.linalg.cholesky(p), torch.eye(self.n, dtype=p.dtype, device=p.device)
        return torch.linalg.solve_triangular(lower, eye.expand_as(lower), upper=False)

    def _along(
        self, x: Float[Tensor, "*batch n n"], t: Float[Tensor, "m n n"], a: Float[Tensor, "k n"]
    ) -> Float[Tensor, "*batch k"]:
        """⟨a, log D(t x tᵀ)⟩ in the metric, for all pairs; in chunks of classes that bound the memory."""
        flat = x.reshape(-1, self.n, self.n)
        weights = self.alpha * a + self.beta * a.sum(-1, keepdim=True)
        t = t.flip(-2)  # the flip of reverse_cholesky_logdiag, taken where it is cheapest
        if len(t) == 1:
            values = _flipped_logdiag(flat, t)[:, 0].flip(-1) @ weights.T
        else:
            size = max(1, CHUNK_BYTES // (x.element_size() * max(1, flat.numel())))
            parts = zip(t.split(size), weights.split(size), strict=True)
            values = torch.cat([(_flipped_logdiag(flat, u).flip(-1) * w).sum(-1) for u, w in parts], -1)
        return values.reshape(*x.shape[:-2], len(a))


def _flipped_logdiag(x: Float[Tensor, "b n n"], t: Float[Tensor, "m n n"]) -> Float[Tensor, "b m n"]:
    """Diagonals of log D of t x tᵀ (all symmetric), by two large matrix products and one batched Cholesky."""
    b, m, n = len(x), len(t), x.shape[-1]
    half = (x.reshape(b * n, n) @ t.reshape(m * n, n).T).reshape(b, n, m, n)
    lower, info = torch.linalg.cholesky_ex((half.permute(2, 0, 3, 1).reshape(m, b * n, n) @ t.mT).reshape(m, b, n, n))
    if bool((info > 0).any()):
        bad = int((info > 0).nonzero()[0, 1])
        raise InputError(
            f"matrix {bad} is not positive definite after the transvection; use float64, or add shrinkage, "
            "e.g. pyriemann Covariances('oas')."
        )
    return 2 * lower.diagonal(dim1=-2, dim2=-1).log().transpose(0, 1)


def _between(lower: Float[Tensor, "*batch n n"], y: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """L⁻¹ y L⁻ᵀ, symmetric."""
    half = torch.linalg.solve_triangular(lower, y, upper=False)
    return sym(torch.linalg.solve_triangular(lower, half.mT, upper=False))


def orthogonal(free: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """The Q of a QR factorisation with positive diagonal of R: Haar for Gaussian input, smooth in it."""
    q, r = torch.linalg.qr(free)
    signs = torch.where(r.detach().diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(free.dtype)
    return q * signs.unsqueeze(-2)


def act(g: Float[Tensor, "n n"], x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """g·x = g x gᵀ."""
    return sym(g @ x @ g.mT)


def act_on_boundary(g: Float[Tensor, "n n"], xi: Flag) -> Flag:
    """gξ = (k', a) with g k = k'R, R upper triangular with positive diagonal; B_ξ(g⁻¹x) = B_{gξ}(x) − B_{gξ}(g·o)."""
    return Flag(orthogonal(g @ xi.k), xi.a)


def moved_flags(g: Float[Tensor, "n n"], xi: Flag, p: Float[Tensor, "k n n"]) -> Flag:
    """uξ with the orthogonal u = (g·p)^{-1/2} g p^{1/2}: s(g·x; uξ, g·p) = s(x; ξ, p) (symmetric transvection)."""
    return Flag(rsqrtm(act(g, p)) @ g @ sqrtm(p) @ xi.k, xi.a)
