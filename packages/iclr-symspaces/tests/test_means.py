import mpmath
import numpy as np
import pytest
import torch
from pyriemann.geometry.mean import mean_riemann

from iclr_shared.errors import InputError
from iclr_symspaces.manifolds import SPD, Lorentz, PoincareBall, UpperHalf
from iclr_symspaces.means import FrechetMean, weighted_mean


def test_karcher_mean_is_pyriemanns(generator):
    space = SPD(4)
    x = space.random(9, generator)
    w = torch.rand(9, generator=generator, dtype=torch.float64)
    w /= w.sum()
    ours = FrechetMean(space, "karcher")(x, w)
    theirs = mean_riemann(x.numpy(), sample_weight=w.numpy(), tol=1e-12)
    np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6, atol=1e-8)
    logs = FrechetMean(space)(x, w)
    assert float((ours - logs).abs().max()) > 1e-3


def test_the_gradient_of_the_karcher_mean_is_zero(generator):
    space = SPD(3)
    x = space.random(5, generator)
    y = FrechetMean(space, "karcher")(x).requires_grad_()
    (g,) = torch.autograd.grad(space.dist(y, x).square().sum(), y)
    assert float(g.abs().max()) < 1e-5


@pytest.mark.parametrize("c", [1.0, 0.4])
def test_lorentz_centroid_is_the_einstein_midpoint(c, generator):
    ball, sheet, half = PoincareBall(3, c), Lorentz(3, c), UpperHalf(3, c)
    x = ball.random(5, generator)
    w = torch.softmax(torch.randn(2, 5, generator=generator, dtype=torch.float64), -1)
    mean = weighted_mean(ball, x, w)
    z = c**0.5 * x
    klein = 2 * z / (1 + z.square().sum(-1, keepdim=True))
    gamma = (1 - klein.square().sum(-1)).rsqrt()
    middle = (w * gamma) @ klein / (w * gamma).sum(-1, keepdim=True)
    wanted = middle / (1 + (1 - middle.square().sum(-1, keepdim=True)).sqrt()) / c**0.5
    torch.testing.assert_close(mean, wanted)
    for other in (sheet, half):
        torch.testing.assert_close(other.convert(weighted_mean(other, ball.convert(x, other), w), ball), mean)


def test_means_of_one_point_and_equivariance(space, generator):
    x = space.random(1, generator)
    one = torch.ones(1, dtype=torch.float64)
    torch.testing.assert_close(FrechetMean(space)(x, one), x[0])
    same = x.expand(4, *space.point_shape)
    torch.testing.assert_close(FrechetMean(space, "karcher")(same), x[0])
    batch = space.random(6, generator).reshape(2, 3, *space.point_shape)
    mean = FrechetMean(space)(batch)
    assert mean.shape == (2, *space.point_shape)
    torch.testing.assert_close(mean[1], FrechetMean(space)(batch[1]))


def exact_centroid(points, weights, c):
    """Space part of Σ w v/√(−c⟨·, ·⟩) in 80 digits."""
    with mpmath.workdps(80):
        rows = [[mpmath.mpf(float(v)) for v in p[1:]] for p in points]
        rows = [[mpmath.sqrt(1 / mpmath.mpf(c) + mpmath.fsum(v**2 for v in r)), *r] for r in rows]
        total = [mpmath.fsum(mpmath.mpf(float(w)) * r[i] for w, r in zip(weights, rows, strict=True)) for i in range(4)]
        size = mpmath.sqrt(c * (total[0] ** 2 - mpmath.fsum(v**2 for v in total[1:])))
        return torch.tensor([float(v / size) for v in total[1:]], dtype=torch.float64)


@pytest.mark.parametrize("c", [1.0, 0.5])
@pytest.mark.parametrize("spread", [0.0, 1e-9, 1e-3, 1.0])
@pytest.mark.parametrize("t", [1e-3, 1.0, 8.0, 20.0, 30.0])
def test_centroids_far_out(c, spread, t, generator):
    sheet, limit = Lorentz(3, c), 1e-12 if spread >= 1e-3 else 1e-6
    noise = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    x = sheet.exp0(t * torch.nn.functional.normalize(torch.tensor([[1.0, 0.5, 0.2]]).double() + spread * noise))
    w = torch.softmax(torch.randn(2, 4, generator=generator, dtype=torch.float64), -1)
    for found, row in zip(weighted_mean(sheet, x, w), w, strict=True):
        assert float(sheet.dist(found, sheet.lift(exact_centroid(x, row, c)))) < limit


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float64, 1e-9), (torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_mean_of_one_point_near_the_boundary(dtype, gap):
    ball, half = PoincareBall(2), UpperHalf(2)
    x = (1 - gap) * torch.tensor([[0.6, 0.8]], dtype=dtype).expand(3, 2)
    for space in (ball, half):
        points = ball.convert(x, space)
        mean = weighted_mean(space, points, torch.full((1, 3), 1 / 3, dtype=dtype))
        assert float(space.dist(mean[0], points[0])) < 0.05


def test_gradients_of_the_centroid(generator):
    v = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def mean(c, v, w):
        sheet = Lorentz(3, c)
        return weighted_mean(sheet, sheet.exp0(v), torch.softmax(w, -1))

    assert torch.autograd.gradcheck(mean, (c, v, w))
    origin = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(mean(0.7, origin, torch.zeros(1, 4, dtype=torch.float64))[..., 1:].sum(), origin)
    torch.testing.assert_close(g, torch.full_like(g, 0.25))


def test_weights_of_another_dtype():
    with pytest.raises(InputError, match="weights is float64, but the points are float32"):
        FrechetMean(PoincareBall(2))(torch.zeros(3, 2), torch.ones(3, dtype=torch.float64) / 3)
