"""What holds on every space: maps, distances, Busemann functions, their gradients, both dtypes."""

import pytest
import torch
from jaxtyping import TypeCheckError

from iclr_shared.errors import InputError
from iclr_symspaces.functional import busemann, signed_distance
from iclr_symspaces.manifolds import SPD, Euclidean, Lorentz, PoincareBall, Product, SPDLogEuclidean, UpperHalf

F64 = torch.float64


def test_exponential_and_logarithm_are_inverse(space, generator):
    x = space.check(space.random(5, generator))
    torch.testing.assert_close(space.exp0(space.log0(x)), x)
    o = space.origin(x)
    torch.testing.assert_close(space.log0(o), torch.zeros(space.tangent_shape, dtype=F64))
    torch.testing.assert_close(space.project(x), x)


def test_distance_is_a_metric_that_the_transvection_keeps(space, generator):
    x, y, p = (space.random(5, generator) for _ in range(3))
    d = space.dist(x, y)
    torch.testing.assert_close(d, space.dist(y, x))
    assert bool((d <= space.dist(x, p) + space.dist(p, y) + 1e-12).all())
    torch.testing.assert_close(space.dist(space.transvect(p, x), space.transvect(p, y)), d)
    torch.testing.assert_close(space.dist(space.transvect(p, x), space.origin(x)), space.dist(p, x))


def test_signed_distance_is_minus_busemann_after_the_transvection(space, generator):
    x, p, xi = space.random(6, generator), space.random(4, generator), space.random_boundary(4, generator)
    y = space.transvect(p, x.unsqueeze(1))
    wanted = -torch.stack([space.busemann(y[:, j], xi)[:, j] for j in range(4)], -1)
    torch.testing.assert_close(signed_distance(space, x, xi, p), wanted)
    batched = space.signed_distance(x.reshape(2, 3, *space.point_shape), xi, p)
    torch.testing.assert_close(batched, wanted.reshape(2, 3, 4))


def test_busemann_is_one_lipschitz_and_zero_at_the_origin(space, generator):
    x, y, xi = space.random(20, generator), space.random(20, generator), space.random_boundary(3, generator)
    difference = (busemann(space, x, xi) - busemann(space, y, xi)).abs()
    assert bool((difference <= space.dist(x, y)[:, None] + 1e-12).all())
    torch.testing.assert_close(space.busemann(space.origin(x)[None], xi), torch.zeros(1, 3, dtype=F64))


def test_at_the_point_the_distance_is_zero_and_the_gradient_finite(space, generator):
    xi = space.random_boundary(4, generator)
    p = space.random(4, generator).requires_grad_()
    x = p.detach().clone().requires_grad_()
    s = space.signed_distance(x, xi, p)
    assert bool((s.diagonal() == 0).all())
    s.diagonal().sum().backward()
    assert bool(torch.isfinite(x.grad).all() and torch.isfinite(p.grad).all())
    assert float(x.grad.abs().max()) > 0.1
    d = space.dist(x, p.detach())
    assert bool((d < 1e-7).all())
    assert bool(torch.isfinite(torch.autograd.grad(d.sum(), x)[0]).all())


def test_gradients_match_finite_differences(space, generator):
    x, p, xi = space.random(3, generator), space.random(2, generator), space.random_boundary(2, generator)
    v, q = space.log0(x).requires_grad_(), space.log0(p).requires_grad_()

    def value(v, q):
        return space.signed_distance(space.exp0(space._tangent(v)), xi, space.exp0(space._tangent(q)))

    assert torch.autograd.gradcheck(value, (v, q))


def test_iwasawa_coordinates_give_points(space, generator):
    v = torch.randn(5, space.dim, generator=generator, dtype=F64)
    for make in (space.iwasawa, space.tangent_point):
        assert space.check(make(v)).shape == (5, *space.point_shape)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_dtype_is_kept(space, generator, dtype):
    x = space.random(4, generator, dtype=dtype)
    xi, p = space.random_boundary(3, generator, dtype=dtype), space.random(3, generator, dtype=dtype)
    for value in (x, space.dist(x, x), space.signed_distance(x, xi, p), space.busemann(x, xi), space.log0(x)):
        assert value.dtype == dtype
    if dtype == torch.float32:
        exact = space.busemann(space.project(x.double()), type_of(xi, F64))
        torch.testing.assert_close(space.busemann(x, xi).double(), exact, rtol=1e-4, atol=1e-4)


def type_of(xi, dtype):
    return (
        type(xi)(*(type_of(part, dtype) for part in xi))
        if hasattr(xi, "_fields")
        else (tuple(type_of(part, dtype) for part in xi) if isinstance(xi, tuple) else xi.to(dtype))
    )


def test_nan_and_wrong_shapes_are_named(space, generator):
    x = space.random(4, generator)
    x[2] = float("nan")
    with pytest.raises(InputError, match="2 holds NaN"):
        space.check(x)
    with pytest.raises(InputError, match="NaN"):
        space.check(x[2])
    with pytest.raises(InputError, match=r"has shape \(4, 9"):
        space.check(x.new_zeros(4, 9, 9) if len(space.point_shape) == 2 else x.new_zeros(4, 9))
    with pytest.raises(InputError, match="needs float32 or float64, but point is float16"):
        space.check(x.half(), "point")


def test_zero_directions_are_refused(spaces):
    for name in ("ball", "lorentz", "upper half", "log-Euclidean", "log-Cholesky", "Euclidean", "spd"):
        space = spaces[name]
        directions = torch.ones(3, *space.tangent_shape, dtype=F64)
        directions[1] = 0
        with pytest.raises(InputError, match=r"direction 1 .*non-zero"):
            space.boundary(directions)


def test_the_rank_is_the_dimension_of_a_flat(spaces):
    ranks = {name: (space.rank, space.dim) for name, space in spaces.items()}
    assert ranks["ball"] == ranks["lorentz"] == ranks["upper half"] == (1, 3)
    assert ranks["spd"] == (3, 6)
    assert ranks["log-Euclidean"] == (6, 6)
    assert ranks["product"] == (3, 5)


def test_gyro_is_hyperbolic_only(generator):
    for space in (SPD(2), SPDLogEuclidean(2), Euclidean(2), Product([SPD(2)])):
        x, xi = space.random(2, generator), space.random_boundary(2, generator)
        with pytest.raises(InputError, match="hyperbolic spaces only"):
            signed_distance(space, x, xi, x, "gyro")
    ball = PoincareBall(2)
    x = ball.random(2, generator)
    with pytest.raises((InputError, TypeCheckError), match="norm"):
        signed_distance(ball, x, ball.random_boundary(2, generator), x, "other")


@pytest.mark.parametrize("make", [lambda c: PoincareBall(2, c), lambda c: Lorentz(0, c), lambda c: UpperHalf(2, c)])
def test_bad_spaces(make):
    with pytest.raises(InputError, match="needs"):
        make(-1.0)


def test_other_bad_spaces():
    with pytest.raises(InputError, match="at least one factor"):
        Product([])
    with pytest.raises(InputError, match="at least 1"):
        Euclidean(0)
    with pytest.raises(InputError, match="at least 1"):
        SPD(0)
    with pytest.raises((InputError, TypeCheckError), match=r"symmetric.*triangular"):
        SPD(2, transvection="upper")


def test_arguments_that_do_not_fit_each_other(space, generator):
    x, xi, p = space.random(3, generator), space.random_boundary(2, generator), space.random(2, generator)
    one = signed_distance(space, x, xi, p[:1])
    torch.testing.assert_close(one, signed_distance(space, x, xi, p[:1].expand(2, *space.point_shape)))
    for bad in (p[0], p[:0], space.random(3, generator), p[None]):
        with pytest.raises(InputError, match=r"p must have shape \(2, "):
            signed_distance(space, x, xi, bad)
    with pytest.raises(InputError, match="p is float32, but x is float64"):
        signed_distance(space, x, xi, p.float())
    for call in (lambda: signed_distance(space, x.float(), xi, p.float()), lambda: busemann(space, x.float(), xi)):
        with pytest.raises(InputError, match="xi is float64, but x is float32"):
            call()
    with pytest.raises(InputError, match=r"xi is no boundary point|xi of .* must have shape"):
        busemann(space, x, x[0, ..., :1] if isinstance(xi, torch.Tensor) else x)
