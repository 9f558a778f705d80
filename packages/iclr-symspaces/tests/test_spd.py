"""SPD matrices: reference values, the two transvections, the group, brute force, bad input."""

import math

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_shared.errors import InputError
from iclr_symspaces import limits
from iclr_symspaces.flat import SPDLogCholesky, SPDLogEuclidean
from iclr_symspaces.functional import signed_distance
from iclr_symspaces.riemannian import geoopt
from iclr_symspaces.spd import SPD, Flag, act, act_on_boundary, moved_flags, orthogonal
from iclr_symspaces.symmetric import expm, logm, reeig, reverse_cholesky_logdiag, rsqrtm, sqrtm, sym

F64 = torch.float64
P3 = torch.tensor([[4, 1, 0], [1, 3, 0.5], [0, 0.5, 2]], dtype=F64)
Q3 = torch.tensor([[1.5, 0.2, 0], [0.2, 1, 0.1], [0, 0.1, 0.8]], dtype=F64)
COS, SIN = math.cos(0.3), math.sin(0.3)
K3 = torch.tensor([[COS, -SIN, 0], [SIN, COS, 0], [0, 0, 1]], dtype=F64)
A3 = torch.tensor([[2.0, 0.0, -1.0]], dtype=F64)


def test_reference_values_n2():
    space, p = SPD(2), torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=F64)
    eye = torch.eye(2, dtype=F64)
    torch.testing.assert_close(space.composite(p, eye).exp(), torch.tensor([5 / 3, 3], dtype=F64))
    xi = space.boundary((eye[None], torch.tensor([[1.0, -1.0]], dtype=F64)))
    assert float(space.busemann(p, xi)) == pytest.approx(0.4156279366433131, rel=1e-13)
    x, y = 0.7, 1.9
    q = torch.tensor([[x * x + y * y, x], [x, 1]], dtype=F64) / y
    torch.testing.assert_close(space.composite(q, eye).exp(), torch.tensor([1.9, 1 / 1.9], dtype=F64))
    assert float(space.busemann(q, xi)) == pytest.approx(-0.9077184708868774, rel=1e-13)


def test_reference_values_n3():
    space = SPD(3)
    xi = space.boundary((K3[None], A3))
    d = torch.tensor([4.359367592592, 2.408606243218, 2], dtype=F64)
    torch.testing.assert_close(space.composite(P3, K3).exp(), d, rtol=0, atol=1e-11)
    assert float(space.busemann(P3, xi)) == pytest.approx(-1.006904459361384, rel=1e-13)
    mixed = SPD(3, 0.5, 0.2)
    eta = mixed.boundary((K3[None], A3))
    torch.testing.assert_close(eta.a[0], torch.tensor([1.2171612389, 0, -0.6085806195], dtype=F64), rtol=0, atol=1e-9)
    assert float(mixed.busemann(P3, eta)) == pytest.approx(-1.05567917720715, rel=1e-12)
    assert limits.second_order(space, P3, xi) == pytest.approx(1.203534528060564, rel=1e-12)
    assert float(space.signed_distance(P3, xi, Q3[None])) == pytest.approx(0.5134414686847519, rel=1e-12)
    lower = SPD(3, transvection="triangular")
    assert float(lower.signed_distance(P3, xi, Q3[None])) == pytest.approx(0.5375556158844923, rel=1e-12)
    level = float(space.busemann(Q3, xi))
    assert level - float(space.busemann(P3, xi)) == pytest.approx(0.5049577202774215, rel=1e-12)
    assert limits.horosphere_distance(space, P3, xi, level) == pytest.approx(0.50495772028, abs=1e-9)
    flat = SPDLogEuclidean(3)
    w = xi.k @ torch.diag_embed(xi.a) @ xi.k.mT
    assert float(flat.signed_distance(P3, flat.boundary(w), Q3[None])) == pytest.approx(0.52675, abs=1e-5)


def test_reference_values_of_the_limit():
    space, xi = SPD(3), SPD(3).boundary((K3[None], A3))
    b = float(space.busemann(P3, xi))
    for t, wanted in ((20, 1.2653), (80, 1.2188), (320, 1.2073)):
        ray = limits.spd_ray(space, P3.numpy(), K3.numpy(), xi.a[0].numpy(), t)
        assert t * (float(ray) - b) == pytest.approx(wanted, abs=6e-5)


def test_reference_values_of_the_layer_and_the_cocycle():
    v = torch.tensor([0.3, -0.2, 0.5, 0.4, -0.7, 0.1], dtype=F64)
    space, eye = SPD(3), torch.eye(3, dtype=F64)
    torch.testing.assert_close(space.composite(space.iwasawa(v), eye), v[:3])
    off = space.composite(space.tangent_point(v), eye) - v[:3]
    wanted = torch.tensor([-0.302791118920, 0.089261527620, 0.213529591299], dtype=F64)
    torch.testing.assert_close(off, wanted, rtol=0, atol=1e-11)
    g = torch.diag(torch.tensor([2, 1, 0.5], dtype=F64)) @ torch.ones(3, 3, dtype=F64).triu()
    xi = space.boundary((eye[None], A3))
    moved = act_on_boundary(g, xi)
    torch.testing.assert_close(moved.k, xi.k)
    difference = space.busemann(act(g, P3), xi) - space.busemann(g @ g.T, xi)
    assert float(difference) == pytest.approx(-0.8485868964, abs=1e-10)
    assert float(space.busemann(P3, xi)) == pytest.approx(-0.8485868964, abs=1e-10)


def test_the_factor_of_minors(generator):
    m = SPD(5).random(3, generator)
    minors = torch.stack([torch.linalg.det(m[:, i:, i:]) for i in range(5)] + [torch.ones(3, dtype=F64)], -1)
    torch.testing.assert_close(reverse_cholesky_logdiag(m), (minors[:, :-1] / minors[:, 1:]).log())


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (0.5, 0.3), (2.0, -0.4)])
def test_distance(alpha, beta, generator):
    space = SPD(4, alpha, beta)
    x, y = space.random(3, generator), space.random(3, generator)
    for i in range(3):
        logs = np.log(scipy.linalg.eigh(y[i].numpy(), x[i].numpy(), eigvals_only=True))
        wanted = np.sqrt(alpha * (logs**2).sum() + beta * logs.sum() ** 2)
        assert float(space.dist(x[i], y[i])) == pytest.approx(wanted, rel=1e-12)
    if beta == 0 and alpha == 1:
        theirs = geoopt.SymmetricPositiveDefinite().dist(x, y)
        torch.testing.assert_close(space.dist(x, y), theirs)
    # the direction's own geodesic has unit speed, and B = -t along it
    xi = space.random_boundary(1, generator)
    ray = xi.k[0] @ torch.diag((1.7 * xi.a[0]).exp()) @ xi.k[0].T
    assert float(space.dist(ray, torch.eye(4, dtype=F64))) == pytest.approx(1.7, rel=1e-12)
    assert float(space.busemann(ray, xi)) == pytest.approx(-1.7, rel=1e-12)


def test_the_upper_transvection_has_the_plain_difference(generator):
    """With p = UUᵀ, U upper triangular, and k = I: gξ = ξ, so s = −(B_ξ(x) − B_ξ(p))."""
    space = SPD(3)
    xi = Flag(torch.eye(3, dtype=F64)[None], space.random_boundary(4, generator).a)
    x, p = space.random(5, generator), space.random(1, generator)
    upper = torch.linalg.cholesky(p.flip(-1, -2)).flip(-1, -2)
    inverse = torch.linalg.inv(upper)
    wanted = -(space.busemann(x, xi) - space.busemann(p, xi))
    torch.testing.assert_close(-space.busemann(inverse @ x @ inverse.mT, xi), wanted)


@given(st.integers(0, 10_000), st.integers(2, 5))
@settings(max_examples=10, deadline=None)
def test_invariance(seed, n):
    generator = torch.Generator().manual_seed(seed)
    space = SPD(n, 0.5, 0.1)
    x, p, xi = space.random(3, generator), space.random(2, generator), space.random_boundary(2, generator)
    g = torch.randn(n, n, generator=generator, dtype=F64) + 3 * torch.eye(n, dtype=F64)
    moved = act_on_boundary(g, xi)
    gxi = torch.linalg.inv(g)
    torch.testing.assert_close(
        space.busemann(act(gxi, x), xi), space.busemann(x, moved) - space.busemann(g @ g.T, moved), rtol=1e-8, atol=1e-8
    )
    s = space.signed_distance(act(g, x), moved_flags(g, xi, p), act(g, p))
    torch.testing.assert_close(s, space.signed_distance(x, xi, p), rtol=1e-8, atol=1e-8)


def test_classes_in_chunks_and_shared_flags_give_the_same(generator, monkeypatch):
    space = SPD(4)
    x, p, xi = space.random(6, generator), space.random(7, generator), space.random_boundary(7, generator)
    whole = space.signed_distance(x, xi, p)
    monkeypatch.setattr("iclr_symspaces.spd.CHUNK_BYTES", 8 * x.numel() * 2)
    torch.testing.assert_close(space.signed_distance(x, xi, p), whole)
    shared = Flag(xi.k[:1], xi.a)
    repeated = Flag(xi.k[:1].expand(7, 4, 4), xi.a)
    torch.testing.assert_close(
        space.signed_distance(x, shared, p[:1]), space.signed_distance(x, repeated, p[:1].expand(7, 4, 4))
    )


def test_direction_matrices_and_pairs_agree(generator):
    space = SPD(3)
    xi = space.random_boundary(4, generator)
    w = xi.k @ torch.diag_embed(3 * xi.a) @ xi.k.mT
    x = space.random(5, generator)
    torch.testing.assert_close(space.busemann(x, space.boundary(w)), space.busemann(x, xi))
    order = torch.tensor([2, 0, 1])
    permuted = space.boundary((xi.k[..., order], xi.a[:, order]))
    torch.testing.assert_close(space.busemann(x, permuted), space.busemann(x, xi))


def test_equal_entries_of_a_are_allowed(generator):
    space = SPD(3)
    a = torch.tensor([[1.0, 1.0, -1.0]], dtype=F64)
    xi = space.boundary((space.random_boundary(1, generator).k, a))
    x = space.random(1, generator)[0]
    ray = float(limits.spd_ray(space, x.numpy(), xi.k[0].numpy(), xi.a[0].numpy(), 400.0))
    assert ray == pytest.approx(float(space.busemann(x, xi)), abs=0.02)


@pytest.mark.parametrize(
    ("function", "exact"), [(logm, torch.log), (expm, torch.exp), (sqrtm, torch.sqrt), (rsqrtm, torch.rsqrt)]
)
def test_functions_of_matrices(function, exact, generator):
    x = SPD(3).random(2, generator).requires_grad_()
    w, v = torch.linalg.eigh(x.detach())
    torch.testing.assert_close(function(x).detach(), (v * exact(w).unsqueeze(-2)) @ v.mT)
    assert torch.autograd.gradcheck(lambda m: function(sym(m)), x)
    # at equal eigenvalues, where the gradient of eigh does not exist
    one = (2 * torch.eye(3, dtype=F64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda m: function(sym(m)), one)


def test_rectified_eigenvalues(generator):
    x = torch.diag(torch.tensor([2.0, 1e-6, 0.5], dtype=F64)).requires_grad_()
    y = reeig(x)
    torch.testing.assert_close(y.diagonal(), torch.tensor([2.0, 1e-4, 0.5], dtype=F64))
    (g,) = torch.autograd.grad(y.trace(), x)
    torch.testing.assert_close(g, torch.diag(torch.tensor([1.0, 0.0, 1.0], dtype=F64)))


def test_orthogonal_frames(generator):
    free = torch.randn(4, 3, 3, generator=generator, dtype=F64)
    q = orthogonal(free)
    torch.testing.assert_close(q.mT @ q, torch.eye(3, dtype=F64).expand(4, 3, 3))
    assert bool(((q.mT @ free).diagonal(dim1=-2, dim2=-1) > 0).all())


def test_log_cholesky_and_log_euclidean_distances(generator):
    x, y = SPD(3).random(2, generator)
    assert float(SPDLogEuclidean(3).dist(x, y)) == pytest.approx(float((logm(x) - logm(y)).norm()), rel=1e-12)
    a, b = np.linalg.cholesky(x.numpy()), np.linalg.cholesky(y.numpy())
    off, diagonal = np.tril(a - b, -1), np.log(np.diag(a)) - np.log(np.diag(b))
    wanted = np.sqrt((off**2).sum() + (diagonal**2).sum())
    assert float(SPDLogCholesky(3).dist(x, y)) == pytest.approx(wanted, rel=1e-12)


def test_bad_matrices_are_named(generator):
    space, x = SPD(4), SPD(4).random(20, generator)
    w, v = torch.linalg.eigh(x[17])
    w[0] = -3.1e-3
    x[17] = (v * w) @ v.T
    x[17] = sym(x[17])
    message = r"matrix 17 is not positive definite: min eigenvalue -0.0031; add shrinkage, e.g. pyriemann Cov.*oas"
    with pytest.raises(ValueError, match=message):
        space.check(x)
    xi = space.random_boundary(2, generator)
    with pytest.raises(InputError, match=message):
        signed_distance(space, x, xi, space.random(2, generator))
    x[17] = torch.eye(4)
    x[3, 0, 1] += 1e-3
    with pytest.raises(InputError, match="matrix 3 is not symmetric"):
        space.check(x)
    x[3, 0, 1] += 1e-9 - 1e-3
    assert bool((space.check(x) == space.check(x).mT).all())
    assert SPD(2).check(SPD(2).project(-torch.eye(2, dtype=F64))).shape == (2, 2)
    with pytest.raises(InputError, match="needs float32 or float64, but matrix is float16"):
        space.check(x.half())
    with pytest.raises(InputError, match=r"shape \(4, 4\), but matrix has shape \(5, 5\)"):
        space.check(torch.eye(5, dtype=F64))


def test_bad_boundary_points(generator):
    space, xi = SPD(3), SPD(3).random_boundary(2, generator)
    a = torch.tensor([[1.0, 0.0, -1.0], [-1.0, 0.0, 1.0]], dtype=F64)
    x = space.random(2, generator)
    with pytest.raises(InputError, match="must be descending"):
        space.busemann(x, Flag(xi.k, a))
    with pytest.raises(InputError, match="share k"):
        space.boundary((xi.k[:1], a))
    with pytest.raises(InputError, match="orthogonal"):
        space.boundary((2 * xi.k, a))
    with pytest.raises(InputError, match="needs k of shape"):
        space.boundary((xi.k, a[:, :2]))
    with pytest.raises(InputError, match="direction 1 must be non-zero"):
        space.boundary((xi.k, a * torch.tensor([[1.0], [0.0]])))
    with pytest.raises(InputError, match=r"beta=-0\.4 is no metric on SPD\(3\).*beta > -alpha/n = -0\.333"):
        SPD(3, 1.0, -0.4)
    with pytest.raises(InputError, match="alpha"):
        SPD(3, 0.0, 1.0)


def test_a_matrix_too_ill_for_float32(generator):
    space = SPD(3)
    x = torch.diag(torch.tensor([1.0, 1e-4, 1e-9]))
    k = orthogonal(torch.randn(1, 3, 3, generator=generator))
    xi = Flag(k, torch.tensor([[1.0, 0.0, -1.0]]) / 2**0.5)
    try:
        s = space.signed_distance(x[None], xi, torch.eye(3)[None])
    except InputError as error:
        assert "use float64" in str(error)  # noqa: PT017
    else:
        assert bool(torch.isfinite(s).all())


@pytest.mark.parametrize("function", [logm, expm, sqrtm, rsqrtm])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_gradients_of_matrix_functions_at_any_gap(function, dtype, generator):
    """Divided differences against 50 digits, for eigenvalues from equal to far apart."""
    exact = {logm: mpmath.log, expm: mpmath.exp, sqrtm: mpmath.sqrt, rsqrtm: lambda v: 1 / mpmath.sqrt(v)}[function]
    for a, b in ((2.0, 2.0), (2.0, 2.0 + 2**-20), (1e-16, 3e-16), (1e-9, 2e-9), (0.3, 1.1), (1e-3, 7.0), (5.0, 60.0)):
        x = torch.diag(torch.tensor([a, b], dtype=dtype)).requires_grad_()
        p, q = (mpmath.mpf(float(v)) for v in x.detach().diagonal())
        with mpmath.workdps(50):
            slope = mpmath.diff(exact, p) if p == q else (exact(p) - exact(q)) / (p - q)
        turn = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=dtype)
        (g,) = torch.autograd.grad((function(x) * turn).sum(), x)
        assert float(g[0, 1] + g[1, 0]) == pytest.approx(float(slope), rel=20 * torch.finfo(dtype).eps)


def test_the_exponential_of_tiny_tangents_has_the_gradient_of_the_identity(generator):
    v, w = sym(torch.randn(2, 3, 3, generator=generator, dtype=F64))
    for scale in (0.0, 1e-300, 1e-16, 1e-9):
        tangent = (scale * v).requires_grad_()
        (g,) = torch.autograd.grad((expm(tangent) * w).sum(), tangent)
        torch.testing.assert_close(g, w, rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_distances_of_near_points(dtype, generator):
    """Exactly 0 with gradient 0 at x = y, also in a batch with others; no digits are lost close by."""
    space = SPD(4, 0.5, 0.2)
    x = (1e3 * space.random(4, generator)).to(dtype)
    y = x.clone()
    y[2] = 3 * y[2]
    y = y.requires_grad_()
    d = space.dist(x, y)
    (g,) = torch.autograd.grad(d.sum(), y)
    assert d.detach()[[0, 1, 3]].tolist() == [0, 0, 0]
    assert float(g[[0, 1, 3]].abs().max()) == 0
    assert float(g[2].abs().max()) > 0
    step = 2.0 ** (-8 if dtype == torch.float32 else -30)
    wanted = math.log1p(step) * (0.5 * 4 + 0.2 * 16) ** 0.5
    near = space.dist(x, x * (1 + step))
    np.testing.assert_allclose(near.numpy(), wanted, rtol=1e-3 if dtype == torch.float32 else 1e-6)
    v = space.random(3, generator).requires_grad_()
    for other in (v.detach() * 1.1, v.detach() * 3):
        assert torch.autograd.gradcheck(lambda m, other=other: space.dist(sym(m), other), v)


def test_large_and_small_matrices_in_float32(generator):
    space = SPD(3)
    x = space.random(2, generator)
    largest = float(torch.finfo(torch.float32).max)
    high = (x / x.amax() * 0.1 * largest).float()
    torch.testing.assert_close(space.check(high), sym(high))
    xi = space.random_boundary(1, generator)
    wanted = space.busemann(high.double(), xi)
    found = space.busemann(high, Flag(xi.k.float(), xi.a.float()))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match=r"matrix 0 is not positive definite in float32, eigenvalues .* use float64"):
        space.check((x / x.amax() * 1e-39).float())


def test_directions_of_other_shapes(generator):
    space, eye = SPD(3), torch.eye(3, dtype=F64)
    for direction, message in (
        (eye, r"needs directions \(K, 3, 3\)"),
        (eye[None][:0], "K at least 1"),
        (eye[None] * float("nan"), "direction 0 must be non-zero and finite"),
        ((eye[None], torch.tensor([2.0, 1.0, 0.0], dtype=F64)), "needs k of shape"),
        ((eye, torch.tensor([[2.0, 1.0, 0.0]], dtype=F64)), "needs k of shape"),
        ((eye[None][:0], torch.zeros(0, 3, dtype=F64)), "K at least 1"),
    ):
        with pytest.raises(InputError, match=message):
            space.boundary(direction)
