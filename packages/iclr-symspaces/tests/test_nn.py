"""The layers: shapes, gradients, both parametrisations, known values, bad options."""

import pytest
import torch
from jaxtyping import TypeCheckError
from torch import nn

from iclr_shared.errors import InputError
from iclr_symspaces.manifolds import SPD, Euclidean, Lorentz, PoincareBall, Product, SPDLogEuclidean
from iclr_symspaces.nn import (
    BusemannMLR,
    FrechetMean,
    GeodesicMLR,
    Hyperplanes,
    ReEig,
    SymAttention,
    SymFC,
    TangentReLU,
)
from iclr_symspaces.riemannian import geoopt, optimizer
from iclr_symspaces.training import plain_state

F64 = torch.float64


def assert_gradients(module, value):
    value.sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_classifiers_on_every_space(space, generator, dtype):
    x = space.random(6, generator, dtype=dtype)
    for make in (BusemannMLR, GeodesicMLR):
        if make is GeodesicMLR and (isinstance(space, Product) or getattr(space, "beta", 0)):
            continue
        head = make(space, 3, generator, scale=True, dtype=dtype)
        logits = head(x)
        assert logits.shape == (6, 3)
        assert logits.dtype == dtype
        assert_gradients(head, logits.square())
        again = make(space, 3, torch.Generator().manual_seed(9), scale=True, dtype=dtype)
        again.load_state_dict(head.state_dict())
        assert torch.equal(again(x), logits)


def test_layers_between_all_spaces(space, spaces, generator):
    x = space.random(6, generator)
    for target in spaces.values():
        for construction in ("iwasawa", "tangent"):
            layer = SymFC(space, target, generator, construction=construction)
            y = target.check(layer(x))
            assert y.shape == (6, *target.point_shape)
        assert_gradients(layer, y)
    layer = SymFC(space, space, generator)
    assert layer(x.reshape(2, 3, *space.point_shape)).shape == (2, 3, *space.point_shape)


@pytest.mark.parametrize("m", [2, 3, 5])
def test_the_inverse_property(m, generator):
    source = SPD(3)
    x = source.random(4, generator)
    layer = SymFC(source, SPD(m), generator)
    a = SPD(m).composite(layer(x), torch.eye(m, dtype=F64))
    torch.testing.assert_close(a, layer.coordinates(x)[:, :m])
    ball, up = PoincareBall(m, 0.5), torch.eye(m, dtype=F64)[-1:]
    hyperbolic = SymFC(source, ball, generator)
    torch.testing.assert_close(-ball.busemann(hyperbolic(x), up), hyperbolic.coordinates(x)[:, :1])


def test_known_logits(generator):
    """The head computes what the functions do, and the official scale of its start."""
    ball = PoincareBall(2)
    head = BusemannMLR(ball, 1 + 1, generator, norm="gyro")
    planes = head.hyperplanes
    assert float(planes.point.detach().abs().max()) < 0.01
    with torch.no_grad():
        planes.frame[0] = torch.tensor([1.0, 2.0])
        planes.point[0] = ball.log0(torch.tensor([0.1, 0.4], dtype=F64))
    x = torch.tensor([[0.3, -0.2]], dtype=F64)
    assert float(head(x)[0, 0].detach()) == pytest.approx(-2.9428480694681998, rel=1e-12)


def test_the_hybrid_head_clips(generator):
    head = BusemannMLR(PoincareBall(3), 2, generator, clip=1.0)
    points = head.lift(torch.tensor([[30.0, 0, 0], [0.1, 0, 0]], dtype=F64))
    assert float(points[0].norm()) == pytest.approx(0.7615941559557649, rel=1e-12)
    assert float(points[1].norm()) == pytest.approx(float(torch.tensor(0.1, dtype=F64).tanh()), rel=1e-12)
    assert head(torch.randn(4, 3, generator=generator, dtype=F64)).shape == (4, 2)
    with pytest.raises(InputError, match="features 1 hold NaN"):
        head(torch.tensor([[0.0, 0, 0], [float("nan"), 0, 0]], dtype=F64))


def test_at_the_start_gradients_are_finite_at_the_point(generator):
    """x = p exactly, for all classes, with the official norm too."""
    for norm in ("riemannian", "gyro"):
        head = BusemannMLR(PoincareBall(3), 4, generator, norm=norm)
        p = head.hyperplanes.points().detach()
        logits = head(p)
        assert bool((logits.diagonal() == 0).all())
        assert_gradients(head, logits)
    head = BusemannMLR(SPD(3), 4, generator)
    logits = head(head.hyperplanes.points().detach())
    assert bool((logits.diagonal() == 0).all())
    assert_gradients(head, logits)
    eye = torch.eye(3, dtype=F64).expand(2, 3, 3)
    assert_gradients(head, head(eye))


@pytest.mark.parametrize("name", ["ball", "lorentz", "spd", "Euclidean"])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_geoopt_parameters_stay_on_the_manifold(name, kind, spaces, generator):
    space = spaces[name]
    head = BusemannMLR(space, 3, generator, parametrization="riemannian")
    assert isinstance(head.hyperplanes.point, geoopt.ManifoldParameter)
    x, y = space.random(30, generator), torch.arange(30) % 3
    steps, losses = optimizer(head.parameters(), 0.02, kind), []
    for _ in range(15):
        steps.zero_grad()
        loss = nn.functional.cross_entropy(head(x), y)
        loss.backward()
        steps.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    space.check(head.hyperplanes.points().detach())
    head.hyperplanes.boundary()  # a frame that left its manifold would be refused or unsorted
    frame = head.hyperplanes.frame.detach()
    if name == "spd":
        torch.testing.assert_close(frame.mT @ frame, torch.eye(3, dtype=F64).expand(3, 3, 3))
    else:
        torch.testing.assert_close(frame.norm(dim=-1), torch.ones(3, dtype=F64))
    assert all(type(value) is torch.Tensor for value in plain_state(head).values())


def test_directions_of_spd(generator):
    space = SPD(3, 0.5, 0.2)
    x = space.random(5, generator)
    for options in ({}, {"directions": "symmetric"}, {"shared_flag": True}):
        head = BusemannMLR(space, 4, generator, **options)
        logits = head(x)
        assert logits.shape == (5, 4)
        assert_gradients(head, logits)
        a = head.hyperplanes.boundary().a
        torch.testing.assert_close(0.5 * a.square().sum(-1) + 0.2 * a.sum(-1).square(), torch.ones(4, dtype=F64))


def test_learned_curvature(generator):
    head = BusemannMLR(Lorentz(2, 0.5), 3, generator, learn_curvature=True, norm="gyro")
    assert_gradients(head, head(Lorentz(2, 0.5).random(4, generator)))
    layer = SymFC(PoincareBall(2), SPD(2), generator, learn_curvature=True)
    with torch.no_grad():
        layer.hyperplanes.log_c.fill_(-1.0)
    assert float(layer.hyperplanes.space.c.detach()) == pytest.approx(0.36787944)
    assert_gradients(layer, layer(PoincareBall(2).random(3, generator)))


def test_attention(spaces, generator):
    source = SPD(3)
    x = source.random(8, generator).reshape(2, 4, 3, 3)
    for target in spaces.values():
        for options in ({}, {"score": "matt", "mean": "karcher"}):
            layer = SymAttention(source, target, generator, **options)
            y = target.check(layer(x))
            assert y.shape == (2, 4, *target.point_shape)
            weights = layer.weights(x)
            torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, dtype=F64))
        assert_gradients(layer, y)
    # no order among tokens
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order])
    # for τ → ∞ each query takes the value of its nearest key
    layer = SymAttention(source, source, generator)
    with torch.no_grad():
        layer.log_tau.fill_(12.0)
    q, k = layer.query(x), layer.key(x)
    nearest = source.dist(q[:, :, None], k[:, None]).argmin(-1)
    torch.testing.assert_close(layer(x)[0], layer.value(x)[0][nearest[0]], rtol=1e-4, atol=1e-4)


def test_activations(generator):
    ball = PoincareBall(3)
    x = ball.random(5, generator)
    torch.testing.assert_close(ball.log0(TangentReLU(ball)(x)), ball.log0(x).clamp_min(0))
    y = ReEig(0.7)(SPD(3).random(5, generator))
    assert float(torch.linalg.eigvalsh(y).min()) > 0.7 - 1e-12
    with pytest.raises(InputError, match="use ReEig"):
        TangentReLU(SPD(2))
    with pytest.raises(InputError, match="eps must be positive"):
        ReEig(0.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g: BusemannMLR(SPD(2), 1, g), "at least 2 classes"),
        (lambda g: BusemannMLR(SPD(2), 3, g, norm="gyro"), "hyperbolic spaces only"),
        (lambda g: BusemannMLR(SPD(2), 3, g, norm="other"), "norm must be one of"),
        (lambda g: BusemannMLR(PoincareBall(2), 3, g, shared_flag=True), "shared_flag needs SPD"),
        (lambda g: BusemannMLR(SPD(2), 3, g, learn_curvature=True), "no curvature to learn"),
        (lambda g: BusemannMLR(PoincareBall(2), 3, g, clip=-1.0), "clip must be"),
        (lambda g: BusemannMLR(SPDLogEuclidean(2), 3, g, parametrization="riemannian"), "geoopt has no manifold"),
        (lambda g: BusemannMLR(SPD(2), 3, g, parametrization="riemannian", directions="symmetric"), "learns flags"),
        (
            lambda g: BusemannMLR(PoincareBall(2), 3, g, parametrization="riemannian", learn_curvature=True),
            "leave a ball",
        ),
        (lambda g: GeodesicMLR(SPD(2, 1.0, 0.1), 3, g), "beta = 0"),
        (lambda g: GeodesicMLR(PoincareBall(2), 3, g, norm="gyro"), "Busemann head"),
        (lambda g: GeodesicMLR(Product([SPD(2)]), 3, g)(torch.eye(2, dtype=F64).reshape(1, 4)), "knows hyperbolic"),
        (lambda g: Hyperplanes(SPD(2), 0, g), "at least one"),
        (lambda g: SymFC(SPD(2), SPD(2), g, construction="other"), "construction must be"),
        (lambda g: SymAttention(SPD(2), SPD(2), g, score="other"), "score must be"),
        (lambda g: SymAttention(SPD(2), SPD(2), g, mean="other"), "mean must be"),
        (lambda g: FrechetMean(SPD(2), "other"), "mean must be"),
        (lambda g: optimizer([], 0.0), "learning rate must be positive"),
        (lambda g: optimizer([], 1.0, "other"), "'adam' or 'sgd'"),
    ],
)
def test_bad_options(make, message, generator):
    with pytest.raises((InputError, TypeCheckError)) as caught:  # the latter where a Literal is checked first
        make(generator)
    if isinstance(caught.value, InputError):
        assert message in str(caught.value)


def test_sizes_of_layer_and_data_are_both_named(generator):
    head = BusemannMLR(SPD(8), 3, generator)
    with pytest.raises(InputError, match=r"shape \(8, 8\), but matrix has shape \(2, 5, 5\)"):
        head(torch.eye(5, dtype=F64).expand(2, 5, 5))
    layer = SymFC(Euclidean(4), PoincareBall(2), generator)
    with pytest.raises(InputError, match=r"shape \(4,\), but point has shape \(2, 3\)"):
        layer(torch.ones(2, 3, dtype=F64))


def test_features_of_any_size_and_kind(generator):
    head = BusemannMLR(PoincareBall(3), 2, generator, clip=1.0)
    large = torch.tensor([[1e200, -2e200, 1e199], [3e-200, 0, 4e-200]], dtype=F64).requires_grad_()
    torch.testing.assert_close(head(large)[0], head(large[0].detach() / 1e190))
    points = head.lift(large)
    assert float(points[0].detach().norm()) == pytest.approx(0.7615941559557649, rel=1e-12)
    torch.testing.assert_close(points[1].detach(), large[1].detach())
    assert bool(torch.isfinite(torch.autograd.grad(points.sum(), large)[0]).all())
    assert head(torch.ones(3, dtype=F64)).shape == (2,)
    cases = (
        (torch.tensor([float("nan"), 0, 0], dtype=F64), "features 0 hold NaN"),
        (torch.full((2, 2, 3), float("inf"), dtype=F64), "features 0 hold NaN or infinite"),
        (torch.zeros(2, 3, dtype=torch.int64), "is int64, but the layer's parameters are float64"),
        (torch.zeros(2, 3), "is float32, but the layer's parameters are float64"),
        (torch.zeros(2, 5, dtype=F64), r"takes features of shape \(\.\.\., 3\), got \(2, 5\)"),
    )
    for features, message in cases:
        with pytest.raises(InputError, match=message):
            head(features)
    for clip in (0.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="clip must be a positive finite norm"):
            BusemannMLR(PoincareBall(3), 2, generator, clip=clip)
    with pytest.raises(InputError, match="clip takes features as vectors"):
        BusemannMLR(SPD(2), 2, generator, clip=1.0)


def test_input_of_another_dtype_is_refused(space, generator):
    x = space.random(3, generator, dtype=torch.float32)
    heads = [BusemannMLR(space, 2, generator), SymFC(space, space, generator), SymAttention(space, space, generator)]
    if not isinstance(space, Product) and not getattr(space, "beta", 0):
        heads.append(GeodesicMLR(space, 2, generator))
    for head in heads:
        with pytest.raises(InputError, match="input is float32, but the layer's parameters are float64"):
            head(x)


@pytest.mark.parametrize("parametrization", ["tangent", "riemannian"])
def test_distributed_data_parallel_takes_the_heads(parametrization, generator, tmp_path):
    space = SPD(3)
    x, y = space.random(8, generator), torch.arange(8) % 2
    head = BusemannMLR(space, 2, generator, parametrization=parametrization)
    wanted = torch.autograd.grad(nn.functional.cross_entropy(head(x), y), list(head.parameters()))
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(head)
        nn.functional.cross_entropy(parallel(x), y).backward()
    finally:
        torch.distributed.destroy_process_group()
    for parameter, gradient in zip(head.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
