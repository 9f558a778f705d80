"""Hyperbolic space: reference values, agreement of the models, the boundary, float32, the matrix-product path."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_shared.errors import InputError
from iclr_symspaces.classifiers import geodesic_distance
from iclr_symspaces.hyperbolic import Lorentz, PoincareBall, UpperHalf, gyro_factor

F64 = torch.float64
X, P, U = (
    torch.tensor([[0.3, -0.2]], dtype=F64),
    torch.tensor([[0.1, 0.4]], dtype=F64),
    torch.tensor([[1.0, 2.0]], dtype=F64),
)


def test_reference_values():
    ball = PoincareBall(2)
    u = ball.boundary(U)
    y = ball.transvect(P, X)
    torch.testing.assert_close(y, torch.tensor([[0.112289457268, -0.586400499064]], dtype=F64), rtol=0, atol=1e-12)
    assert float(y.norm()) == pytest.approx(0.5970548278979613, rel=1e-13)
    assert float(ball.signed_distance(X, u, P)) == pytest.approx(-1.2758850221168583, rel=1e-13)
    assert float(ball.signed_distance(X, u, P, "gyro")) == pytest.approx(-2.9428480694681998, rel=1e-13)
    assert float(ball.busemann(X, u)) == pytest.approx(0.33765603409646766, rel=1e-13)
    sheet = Lorentz(2)
    assert float(sheet.busemann(ball.convert(X, sheet), u)) == pytest.approx(0.33765603409646766, rel=1e-13)


def test_cayley_map():
    half, sheet = UpperHalf(3), Lorentz(3)
    x = torch.tensor([[0.3, -0.2, 1.7]], dtype=F64)
    y = half.to_lorentz(x)
    assert float((y[:, 1:] ** 2).sum() - y[:, 0] ** 2) == pytest.approx(-1, rel=1e-13)
    assert float((y[:, 0] - y[:, -1]).log()) == pytest.approx(-0.5306282511, abs=1e-10)
    infinity = torch.tensor([[0.0, 0.0, 1.0]], dtype=F64)
    for value in (half.busemann(x, infinity), sheet.busemann(y, infinity)):
        assert float(value) == pytest.approx(-math.log(1.7), rel=1e-13)
    torch.testing.assert_close(half.from_lorentz(y), x)
    scaled = UpperHalf(3, 4.0)
    assert float(scaled.busemann(x, infinity)) == pytest.approx(-math.log(1.7) / 2, rel=1e-13)


@pytest.mark.parametrize("c", [1.0, 0.3, 2.5])
@pytest.mark.parametrize("norm", ["riemannian", "gyro"])
def test_models_agree(c, norm, generator):
    ball, others = PoincareBall(4, c), (Lorentz(4, c), UpperHalf(4, c))
    x, p, u = ball.random(6, generator), ball.random(5, generator), ball.random_boundary(5, generator)
    u[0] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    u[1] = torch.tensor([0.0, 0.0, 0.0, -1.0])
    for other in others:
        y, q = ball.convert(x, other), ball.convert(p, other)
        other.check(y)
        torch.testing.assert_close(other.convert(y, ball), x)
        torch.testing.assert_close(other.dist(y, q[:1]), ball.dist(x, p[:1]))
        torch.testing.assert_close(other.busemann(y, u), ball.busemann(x, u))
        torch.testing.assert_close(other.signed_distance(y, u, q, norm), ball.signed_distance(x, u, p, norm))
        torch.testing.assert_close(other.convert(other.transvect(q[:1], y), ball), ball.transvect(p[:1], x))
        torch.testing.assert_close(geodesic_distance(other, y, u, q), geodesic_distance(ball, x, u, p))


def test_curvature_only_scales(generator):
    one, other = PoincareBall(3), PoincareBall(3, 4.0)
    x, p, u = one.random(5, generator), one.random(5, generator), one.random_boundary(5, generator)
    torch.testing.assert_close(other.signed_distance(x / 2, u, p / 2), one.signed_distance(x, u, p) / 2)
    torch.testing.assert_close(other.dist(x / 2, p / 2), one.dist(x, p) / 2)


def test_mobius_addition_is_the_textbook_formula(generator):
    ball = PoincareBall(3)
    u, v = ball.random(5, generator), ball.random(5, generator)
    uv, uu, vv = (u * v).sum(-1, keepdim=True), (u * u).sum(-1, keepdim=True), (v * v).sum(-1, keepdim=True)
    torch.testing.assert_close(ball.mobius(u, v), ((1 + 2 * uv + vv) * u + (1 - uu) * v) / (1 + 2 * uv + uu * vv))
    d = 2 * torch.atanh(ball.transvect(u, v).norm(dim=-1))
    torch.testing.assert_close(ball.dist(u, v), d)


def test_geodesic_hyperplane_is_the_earlier_formula(generator):
    c = 0.6
    ball = PoincareBall(3, c)
    x, p, u = ball.random(6, generator), ball.random(4, generator), ball.random_boundary(4, generator)
    y = ball.transvect(p, x[:, None])
    inner, square = (y * u).sum(-1), (y * y).sum(-1)
    wanted = torch.asinh(2 * c**0.5 * inner / (1 - c * square)) / c**0.5
    torch.testing.assert_close(geodesic_distance(ball, x, u, p), wanted)
    # the Busemann distance is another one
    assert float((ball.signed_distance(x, u, p) - wanted).abs().max()) > 0.1


def test_near_the_point_no_digits_are_lost(generator):
    ball, sheet = PoincareBall(8), Lorentz(8)
    p, u = ball.random(4, generator), ball.random_boundary(4, generator)
    for step in (1e-3, 1e-9, 1e-13):
        x = p + step * torch.randn(4, 8, generator=generator, dtype=F64)
        y = ball.transvect(p, x)
        wanted = -(torch.log1p(y.square().sum(-1) - 2 * (y * u).sum(-1)) - torch.log1p(-y.square().sum(-1)))
        torch.testing.assert_close(ball.signed_distance(x, u, p).diagonal(), wanted, rtol=1e-6, atol=1e-15)
    assert float(sheet.dist(ball.convert(p, sheet), ball.convert(p, sheet)).max()) == 0


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("norm", ["riemannian", "gyro"])
def test_gradients_are_finite_at_the_boundary(dtype, norm, generator):
    ball = PoincareBall(3)
    u = ball.random_boundary(3, generator, dtype)
    x = ball.project(torch.cat([u, -u, 2 * u, 0 * u])).requires_grad_()
    ball.check(x)
    for p in (ball.random(3, generator, dtype=dtype), ball.project(u), torch.zeros(3, 3, dtype=dtype)):
        p = p.clone().requires_grad_()
        s = ball.signed_distance(x, u, p, norm)
        assert bool(torch.isfinite(s).all())
        gradients = torch.autograd.grad(s.sum(), (x, p))
        assert all(bool(torch.isfinite(g).all()) for g in gradients)
        g = torch.autograd.grad(ball.dist(x, p[:1]).sum(), (x, p))
        assert all(bool(torch.isfinite(part).all()) for part in g)


def test_far_out_in_the_direction_of_the_boundary_point():
    sheet, u = Lorentz(2), torch.tensor([[1.0, 0.0]], dtype=F64)
    for t in (1.0, 10.0, 18.0, 30.0):
        x = sheet.exp0(t * u)
        assert float(sheet.busemann(x, u)) == pytest.approx(-t, rel=1e-12)
        half = UpperHalf(2)
        assert float(half.busemann(half.exp0(t * u), u)) == pytest.approx(-t, rel=1e-12)
    f32 = Lorentz(2).exp0(8.0 * u.float())
    assert float(sheet.busemann(f32, u.float())) == pytest.approx(-8, rel=1e-5)


@given(st.integers(0, 10_000), st.sampled_from([2, 5, 16]), st.sampled_from([torch.float32, F64]))
@settings(max_examples=20, deadline=None)
def test_matrix_products_equal_the_direct_formula(seed, d, dtype):
    generator = torch.Generator().manual_seed(seed)
    ball = PoincareBall(d)
    x, p = ball.random(7, generator, 0.3, dtype), ball.random(5, generator, 0.3, dtype)
    u = ball.random_boundary(5, generator, dtype)
    y = ball.transvect(p, x[:, None])
    direct = -((u - y).square().sum(-1).log() - torch.log1p(-y.square().sum(-1)))
    tolerance = 2e-4 if dtype == torch.float32 else 1e-11
    torch.testing.assert_close(ball.signed_distance(x, u, p), direct, rtol=tolerance, atol=tolerance)


def test_gyro_series_joins_the_formula():
    r = torch.tensor([0.0, 1e-6, 9.9e-5, 1.01e-4, 1e-2, 0.9], dtype=F64)
    factor = gyro_factor(r**2, 2 * torch.atanh(r))
    assert float(factor[0]) == 2
    torch.testing.assert_close(factor[1:], 2 * torch.atanh(r[1:]) / r[1:], rtol=1e-14, atol=0)
    assert bool((factor.diff() >= 0).all())


def test_bad_points_are_named():
    ball = PoincareBall(2, 4.0)
    x = torch.tensor([[0.1, 0.1], [0.3, 0.4]], dtype=F64)
    with pytest.raises(InputError, match=r"point 1 lies outside the ball: √c·norm is 1, .*\.project"):
        ball.check(x)
    ball.check(ball.project(x))
    with pytest.raises(InputError, match="point 0 is not on the hyperboloid"):
        Lorentz(2).check(torch.ones(1, 3))
    Lorentz(2).check(Lorentz(2).project(torch.ones(1, 3)))
    with pytest.raises(InputError, match="point 1 has height t = -1"):
        UpperHalf(2).check(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    UpperHalf(2).check(UpperHalf(2).project(torch.tensor([[0.0, -1.0]])))
    with pytest.raises(InputError, match="not models of the same space"):
        ball.convert(x, Lorentz(2))


def exact_distance(x, y, c):
    """From the space parts, in 80 digits."""
    with mpmath.workdps(80):
        x, y = ([mpmath.mpf(float(v)) for v in z[1:]] for z in (x, y))
        times = [mpmath.sqrt(1 / mpmath.mpf(c) + mpmath.fsum(v**2 for v in z)) for z in (x, y)]
        inner = mpmath.fsum(a * b for a, b in zip(x, y, strict=True))
        cosh = max(mpmath.mpf(1), c * (times[0] * times[1] - inner))
        return float(mpmath.acosh(cosh) / mpmath.sqrt(c))


@pytest.mark.parametrize("c", [1.0, 0.5])
@pytest.mark.parametrize("t", [1e-6, 0.1, 5.0, 15.0, 25.0])
def test_distances_far_out_on_the_hyperboloid(c, t, generator):
    """Radial, near, sideways and opposite pairs; what coordinates of size e^t cannot hold is allowed for."""
    sheet = Lorentz(3, c)
    u, v = torch.randn(2, 3, generator=generator, dtype=F64)
    u, v = u / u.norm(), v / v.norm()
    x = sheet.exp0(t * u)
    others = (
        sheet.lift(1.7 * x[1:]), sheet.lift(x[1:] * (1 + 1e-4)), sheet.exp0(t * (u + 0.3 * v)), sheet.exp0(-t * u),
        sheet.exp0(1e-3 * v), sheet.origin(x),
    )  # fmt: skip
    held = 100 * (torch.finfo(F64).eps * float(x[0])) ** 2  # of d²
    for y in others:
        wanted = exact_distance(x, y, c)
        for a, b in ((x, y), (y, x)):
            assert float(sheet.dist(a, b)) == pytest.approx(wanted, rel=1e-13, abs=held / wanted)
            if t < 10:
                moved = sheet.transvect(a, b)
                assert float(sheet.dist(moved, sheet.origin(moved))) == pytest.approx(wanted, rel=1e-10)
    assert float(sheet.dist(x, x)) == 0
    assert torch.equal(sheet.transvect(x, x), sheet.origin(x))


def test_radial_distances_far_out_in_float32():
    sheet, u = Lorentz(2), torch.tensor([0.6, 0.8])
    for t in (3.0, 8.0, 12.0):
        x, y = sheet.exp0(t * u), sheet.exp0((t + 0.5) * u)
        assert float(sheet.dist(x, y)) == pytest.approx(0.5, rel=1e-3)


def test_gradients_of_distance_and_transvection(generator):
    sheet = Lorentz(3, 0.7)
    v, w = torch.randn(2, 4, 3, generator=generator, dtype=F64)
    for scale in (1.0, -1.0, 1e-4):
        x, y = v.clone().requires_grad_(), (scale * w + (scale == 1) * v).requires_grad_()
        assert torch.autograd.gradcheck(lambda a, b: sheet.dist(sheet.exp0(a), sheet.exp0(b)), (x, y))
        assert torch.autograd.gradcheck(lambda a, b: sheet.transvect(sheet.exp0(a), sheet.exp0(b)), (x, y))
    x = v.clone().requires_grad_()
    assert float(torch.autograd.grad(sheet.dist(sheet.exp0(x), sheet.exp0(v)).sum(), x)[0].abs().max()) == 0


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_points_too_far_for_the_dtype_are_refused(dtype):
    far = torch.finfo(dtype).max ** 0.6
    sheet, half = Lorentz(2), UpperHalf(2)
    x = sheet.lift(torch.tensor([[1.0, 2.0], [far, 0.0]], dtype=dtype))
    assert bool(torch.isfinite(x).all())
    with pytest.raises(InputError, match=r"point 1 of Lorentz.* is too far from o for float"):
        sheet.check(x)
    for y in ([far, 1.0], [0.0, far], [0.0, 1 / far]):
        with pytest.raises(InputError, match=r"point 1 of UpperHalf.* is too far from o"):
            half.check(torch.tensor([[0.0, 1.0], y], dtype=dtype))
    half.check(half.project(torch.tensor([[3.0, -1.0], [0.0, 0.0]], dtype=dtype)))


def test_directions_of_other_shapes():
    for space in (PoincareBall(2), Lorentz(2), UpperHalf(2)):
        for bad in (torch.ones(2), torch.ones(1, 3), torch.ones(0, 2), torch.ones(1, 1, 2)):
            with pytest.raises(InputError, match=r"needs directions \(K, 2\), K at least 1; got"):
                space.boundary(bad)
