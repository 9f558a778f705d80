"""Functions of symmetric matrices by their eigenvalues, with gradients that exist at equal eigenvalues."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def _log_slope(a: Tensor, b: Tensor, fa: Tensor, fb: Tensor) -> Tensor:
    """artanh(r)/(r m) with m = (a + b)/2 and r = (a − b)/(2m)."""
    middle = a / 2 + b / 2
    r = (a - b) / (2 * middle)
    near = r.abs() < 0.5
    inner = torch.where(near & (r != 0), r, torch.full_like(r, 0.25))
    ratio = torch.where(r == 0, torch.ones_like(r), torch.atanh(inner) / inner)
    return torch.where(near, ratio / middle, _direct(a, b, fa, fb))


def _exp_slope(a: Tensor, b: Tensor, fa: Tensor, fb: Tensor) -> Tensor:
    """e^m sinh(h)/h with m = (a + b)/2 and h = (a − b)/2."""
    half = (a - b) / 2
    near = half.abs() < 0.5
    inner = torch.where(near & (half != 0), half, torch.ones_like(half))
    ratio = torch.where(half == 0, torch.ones_like(half), torch.sinh(inner) / inner)
    return torch.where(near, (a / 2 + b / 2).exp() * ratio, _direct(a, b, fa, fb))


def _floor_slope(a: Tensor, b: Tensor, fa: Tensor, fb: Tensor) -> Tensor:
    """1 where both eigenvalues are above the floor, 0 where both are below, between otherwise."""
    kept = (fa == a).to(a.dtype), (fb == b).to(a.dtype)
    return torch.where(kept[0] == kept[1], kept[0], _direct(a, b, fa, fb))


def _direct(a: Tensor, b: Tensor, fa: Tensor, fb: Tensor) -> Tensor:
    gap = a - b
    return (fa - fb) / torch.where(gap == 0, torch.ones_like(gap), gap)


# name: (f, its divided difference (f(a) − f(b))/(a − b), which is f'(a) at a = b, without cancellation)
_FUNCTIONS = {
    "log": (torch.log, _log_slope),
    "exp": (torch.exp, _exp_slope),
    "sqrt": (torch.sqrt, lambda a, b, fa, fb: 1 / (fa + fb)),
    "rsqrt": (torch.rsqrt, lambda a, b, fa, fb: -fa * fb / (a.sqrt() + b.sqrt())),
}


class _Spectral(torch.autograd.Function):
    """V f(w) Vᵀ; its derivative is a Hadamard product with divided differences (Daleckii and Krein)."""

    @staticmethod
    def forward(ctx, x, f, slope):
        w, v = torch.linalg.eigh(x)
        fw = f(w)
        ctx.save_for_backward(w, v, fw)
        ctx.slope = slope
        return sym((v * fw.unsqueeze(-2)) @ v.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        w, v, fw = ctx.saved_tensors
        slope = ctx.slope(w.unsqueeze(-1), w.unsqueeze(-2), fw.unsqueeze(-1), fw.unsqueeze(-2))
        return v @ (slope * (v.mT @ sym(grad) @ v)) @ v.mT, None, None


def sym(x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """(x + xᵀ) / 2, also where x + xᵀ would overflow."""
    return x / 2 + x.mT / 2


def logm(x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Logarithm of SPD matrices."""
    return _Spectral.apply(x, *_FUNCTIONS["log"])


def expm(x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Exponential of symmetric matrices."""
    return _Spectral.apply(x, *_FUNCTIONS["exp"])


def sqrtm(x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Symmetric square root of SPD matrices."""
    return _Spectral.apply(x, *_FUNCTIONS["sqrt"])


def rsqrtm(x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Inverse of the symmetric square root of SPD matrices."""
    return _Spectral.apply(x, *_FUNCTIONS["rsqrt"])


def reeig(x: Float[Tensor, "*batch n n"], eps: float = 1e-4) -> Float[Tensor, "*batch n n"]:
    """Eigenvalues raised to at least `eps`: the rectifier of SPD networks."""
    return _Spectral.apply(x, lambda w: w.clamp_min(eps), _floor_slope)


def reverse_cholesky_logdiag(m: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    """log D of M = N D Nᵀ with N unit **upper** triangular: D_i = det M[i:, i:] / det M[i+1:, i+1:].

    Rows and columns are flipped, factored by Cholesky, flipped back. With a sorted descending this is the Weyl chamber
    in which e^{-ta} N e^{ta} converges; the ordinary (lower) Cholesky factor belongs to the opposite one.
    """
    lower = torch.linalg.cholesky(m.flip(-1, -2))
    return 2 * lower.diagonal(dim1=-2, dim2=-1).log().flip(-1)


def safe_norm(squares: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Square root whose gradient at 0 is 0 instead of infinite."""
    positive = squares > 0
    return torch.where(positive, squares, torch.ones_like(squares)).sqrt() * positive


def large_norm(x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch one"]:
    """Euclidean norms over the last dimension, kept as 1, of vectors whose squares may overflow or vanish."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    unit = torch.where(largest > 0, largest, torch.ones_like(largest))
    return unit * safe_norm((x / unit).square().sum(-1, keepdim=True))
