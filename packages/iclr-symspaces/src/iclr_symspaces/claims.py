"""Checks of C1 to C5, on the geometry: closed forms, distances, invariance, known formulas, the layer's inverse."""

from functools import cache

import numpy as np
import scipy.linalg
import torch

from iclr_shared.claims import ClaimRun, Measurement
from iclr_symspaces import figures, limits
from iclr_symspaces.flat import Euclidean, SPDLogCholesky, SPDLogEuclidean
from iclr_symspaces.hyperbolic import Lorentz, PoincareBall
from iclr_symspaces.layers import SymFC
from iclr_symspaces.product import Product
from iclr_symspaces.spd import SPD, Flag, act, act_on_boundary, moved_flags

METRICS = ((1.0, 0.0), (0.5, 0.3), (1.0, -0.1))
TIMES = (20, 40, 80)


# --- C1: the closed form against the limit -------------------------------------------------------------------------


def _regular(space: SPD, generator: torch.Generator, gap: float = 0.2) -> Flag:
    """A random flag whose neighbouring entries of a lie at least `gap` apart."""
    while True:
        xi = space.random_boundary(1, generator)
        if float((xi.a[:, :-1] - xi.a[:, 1:]).min()) >= gap:
            return xi


@cache
def _spd_limits(seed: int, orders: tuple[int, ...], wrong: bool) -> dict[str, np.ndarray]:
    """Errors e(t) of each n and metric, with the right and the wrong factorisation."""
    generator = torch.Generator().manual_seed(seed)
    errors, controls, constants, names = [], [], [], []
    for n in orders:
        for alpha, beta in METRICS:
            space = SPD(n, alpha, beta)
            x, xi = space.random(1, generator)[0], _regular(space, generator)
            rays = np.array(
                [float(limits.spd_ray(space, x.numpy(), xi.k[0].numpy(), xi.a[0].numpy(), t)) for t in TIMES]
            )
            right, other = float(space.busemann(x, xi)[0]), float(limits.wrong_busemann(space, x, xi)[0])
            errors.append(rays - (other if wrong else right))
            controls.append(rays - other)
            constants.append(limits.second_order(space, x, xi))
            names.append(f"n={n}, α={alpha:g}, β={beta:g}")
    return {
        "errors": np.array(errors),
        "controls": np.array(controls),
        "constants": np.array(constants),
        "names": names,
    }


def _slopes(errors: np.ndarray) -> np.ndarray:
    """Log-log slope of |e(t)| against t of each row, by least squares over all times."""
    return np.polyfit(np.log(TIMES), np.log(np.abs(errors)).T, 1)[0]


def limit_in_every_rank(
    run: ClaimRun, *, orders: tuple[int, ...] = (2, 3, 4, 5, 6), wrong: bool = False
) -> Measurement:
    """C1a: e(t) = d(x, γ(t)) − t − B falls as 1/t. Control: the lower-triangular factor, whose e(t) stays."""
    found = _spd_limits(run.seeds.child("spd").int32(), orders, wrong)
    slopes, controls = _slopes(found["errors"]), _slopes(found["controls"])
    run.figure("limit", figures.limit_figure(TIMES, found["errors"], found["controls"]))
    last = TIMES[-1] * found["errors"][:, -1] / found["constants"]
    note = "Where x lies almost along the ray the coefficient of 1/t is almost 0, and faster terms show in the slope."
    details = {
        "t e(t) over (|A|^2 - <H,A>^2)/2 at t = 80, least": last.min(),
        "the same, largest": last.max(),
        "e(80), largest": np.abs(found["errors"][:, -1]).max(),
        "product of ball and SPD(2), slope": _product_slope(run),
    }
    series = {
        "case": found["names"],
        "slope": slopes,
        "e(80)": found["errors"][:, -1],
        "control e(80)": found["controls"][:, -1],
    }
    return Measurement(
        np.abs(slopes + 1).max(), baseline=("lower-triangular factor", np.abs(controls + 1).max()), n=len(slopes),
        series=series, details=details, note=note,
    )  # fmt: skip


def limit_at_second_order(
    run: ClaimRun, *, orders: tuple[int, ...] = (2, 3, 4, 5, 6), wrong: bool = False
) -> Measurement:
    """C1d, sharper: t·e(t) against (‖A‖² − ⟨H, A⟩²)/2 at t = 80. Control: the lower-triangular factor."""
    found = _spd_limits(run.seeds.child("spd").int32(), orders, wrong)
    errors, controls = (
        np.abs(TIMES[-1] * found[name][:, -1] / found["constants"] - 1) for name in ("errors", "controls")
    )
    return Measurement(
        errors.max(), baseline=("lower-triangular factor", controls.min()), n=len(errors),
        series={"case": found["names"], "constant": found["constants"], "relative error": errors},
    )  # fmt: skip


def _product_slope(run: ClaimRun) -> float:
    generator = run.seeds.child("product").torch()
    space = Product([PoincareBall(2), SPD(2)])
    x = space.random(1, generator)[0]
    z, p = space.split(x)
    xi = space.combine([space.factors[0].random_boundary(1, generator), _regular(space.factors[1], generator)],
                       torch.tensor([[0.8, 0.6]], dtype=torch.float64))  # fmt: skip
    flag, w = xi.parts[1], xi.weights[0].numpy()
    errors = []
    for t in TIMES:
        first = limits.hyperbolic_ray(z.numpy(), xi.parts[0][0].numpy(), w[0] * t) + w[0] * t
        second = limits.spd_ray(space.factors[1], p.numpy(), flag.k[0].numpy(), flag.a[0].numpy(), w[1] * t) + w[1] * t
        errors.append(float(limits.product_ray([first, second], w, t)) - float(space.busemann(x, xi)[0]))
    return float(_slopes(np.array([errors]))[0])


def limit_in_rank_one(run: ClaimRun, *, points: int = 20, t: float = 15.0, wrong: bool = False) -> Measurement:
    """C1b: on ball and hyperboloid, c = 1 and 0.7, the error at t = 15. Control: the formula without 1 − |z|²."""
    generator, errors, controls = run.seeds.child("ball").torch(), [], []
    for c in (1.0, 0.7):
        for d in (2, 5):
            ball, sheet = PoincareBall(d, c), Lorentz(d, c)
            x, u = ball.random(points, generator), ball.random_boundary(points, generator)
            z = ball.root * x
            reference = [
                float(limits.hyperbolic_ray(p.numpy(), q.numpy(), t / c**0.5, c)) for p, q in zip(z, u, strict=True)
            ]
            other = ((u - z).square().sum(-1).log() / c**0.5).numpy()
            controls.extend(np.abs(other - reference))
            for values in (ball.busemann(x, u).diagonal(), sheet.busemann(ball.convert(x, sheet), u).diagonal()):
                errors.extend(np.abs((other if wrong else values.numpy()) - reference))
    return Measurement(max(errors), baseline=("without 1 − |z|²", max(controls)), n=len(errors))


def wrong_factor_does_not_converge(
    run: ClaimRun, *, orders: tuple[int, ...] = (2, 3, 4, 5, 6), right: bool = False
) -> Measurement:
    """C1c: median error at t = 80 of the lower-triangular factor. Control: that of the right one."""
    found = _spd_limits(run.seeds.child("spd").int32(), orders, False)
    wrong, good = (np.abs(found[name][:, -1]) for name in ("controls", "errors"))
    return Measurement(
        np.median(good if right else wrong), baseline=("upper-triangular factor", np.median(good)), n=len(wrong),
        details={"least": wrong.min(), "largest": wrong.max()},
    )  # fmt: skip


# --- C2: |B(x) − B(p)| is the distance to the horosphere -----------------------------------------------------------


@cache
def _horospheres(seed: int, cases: int) -> dict[str, np.ndarray]:
    generator, space, flat = torch.Generator().manual_seed(seed), SPD(3), SPDLogEuclidean(3)
    rows = []
    for _ in range(cases):
        x, p, xi = space.random(1, generator)[0], space.random(1, generator), space.random_boundary(1, generator)
        level = float(space.busemann(p[0], xi)[0])
        w = xi.k @ torch.diag_embed(xi.a) @ xi.k.mT
        rows.append((
            limits.horosphere_distance(space, x, xi, level, starts=2),
            abs(float(space.busemann(x, xi)[0]) - level),
            abs(float(flat.signed_distance(x, w, p)[0])),
        ))  # fmt: skip
    minimum, formula, log_euclidean = np.array(rows).T
    return {"minimum": minimum, "formula": formula, "log-Euclidean": log_euclidean}


def distance_is_exact(run: ClaimRun, *, cases: int = 20, log_euclidean: bool = False) -> Measurement:
    """C2a: BFGS minimum against |B(x) − B(p)|, SPD(3). Control: the log-Euclidean formula."""
    found = _horospheres(run.seeds.seed, cases)
    errors = {name: np.abs(found[name] - found["minimum"]) for name in ("formula", "log-Euclidean")}
    run.figure("distance", figures.distance_figure(found))
    measured = errors["log-Euclidean" if log_euclidean else "formula"]
    control = "log-Euclidean formula", errors["log-Euclidean"].max()
    return Measurement(measured.max(), baseline=control, n=cases, series=found)


def log_euclidean_differs(run: ClaimRun, *, cases: int = 20, exact: bool = False) -> Measurement:
    """C2b: median error of the log-Euclidean formula. Control: that of the closed form."""
    found = _horospheres(run.seeds.seed, cases)
    errors = {name: np.median(np.abs(found[name] - found["minimum"])) for name in ("formula", "log-Euclidean")}
    return Measurement(
        errors["formula" if exact else "log-Euclidean"], baseline=("closed form", errors["formula"]), n=cases
    )


# --- C3: invariance under the group --------------------------------------------------------------------------------


def _random_group(generator: torch.Generator, n: int = 3) -> torch.Tensor:
    """g = K·exp(S) with Haar K: condition numbers of a few."""
    space = SPD(n)
    frame = space.random_boundary(1, generator).k[0]
    return frame @ space.random(1, generator)[0]


@cache
def _invariance(seed: int, cases: int) -> dict[str, np.ndarray]:
    """Per case: errors of the cocycle, of the layer with uξ, with gξ in its place, of log-Euclidean s with uξ."""
    generator = torch.Generator().manual_seed(seed)
    space, flat, ball = SPD(3), SPDLogEuclidean(3), PoincareBall(3)
    rows = []
    for _ in range(cases):
        x, p, xi = space.random(1, generator)[0], space.random(1, generator), space.random_boundary(1, generator)
        g = _random_group(generator)
        moved, turned = act_on_boundary(g, xi), moved_flags(g, xi, p)
        cocycle = (
            space.busemann(act(g, x), moved) - space.busemann(act(g, p[0]), moved)
            - space.busemann(x, xi) + space.busemann(p[0], xi)
        )  # fmt: skip
        wanted, gx, gp = space.signed_distance(x, xi, p), act(g, x), act(g, p)
        layer = space.signed_distance(gx, turned, gp) - wanted
        wrong = space.signed_distance(gx, moved, gp) - wanted
        w, uw = (f.k @ torch.diag_embed(f.a) @ f.k.mT for f in (xi, turned))
        other = flat.signed_distance(gx, uw, gp) - flat.signed_distance(x, w, p)
        # ball: g = R∘(a⊕·); on the boundary u ↦ R(a⊕u), and the layer's rotation ⊖gp⊕g(p⊕·)
        y, q, u = ball.random(1, generator), ball.random(1, generator), ball.random_boundary(1, generator)
        a, rotation = ball.random(1, generator), space.random_boundary(1, generator).k[0]

        def move(v, a=a, rotation=rotation):
            return ball.mobius(a, v) @ rotation.T

        gu, gy, gq = move(u), move(y), move(q)
        ball_cocycle = ball.busemann(gy, gu) - ball.busemann(gq, gu) - ball.busemann(y, u) + ball.busemann(q, u)
        uu = ball.transvect(gq, move(ball.mobius(q, u)))
        ball_layer = ball.signed_distance(gy, uu, gq) - ball.signed_distance(y, u, q)
        rows.append([float(v.abs().max()) for v in (cocycle, layer, wrong, other, ball_cocycle, ball_layer)])
    columns = ("cocycle", "layer", "gξ in the layer", "log-Euclidean", "cocycle, ball", "layer, ball")
    return dict(zip(columns, np.array(rows).T, strict=True))


def cocycle(run: ClaimRun, *, cases: int = 20, unmoved: bool = False) -> Measurement:
    """C3a: B_{gξ}(gx) − B_{gξ}(gp) = B_ξ(x) − B_ξ(p), SPD(3) and ball. Control: log-Euclidean s."""
    found = _invariance(run.seeds.seed, cases)
    run.figure("invariance", figures.invariance_figure(found))
    errors = found["log-Euclidean"] if unmoved else np.maximum(found["cocycle"], found["cocycle, ball"])
    control = "log-Euclidean", np.median(found["log-Euclidean"])
    return Measurement(errors.max(), baseline=control, n=cases, details={"ball": found["cocycle, ball"].max()})


def layer_invariance(run: ClaimRun, *, cases: int = 20, wrong: bool = False) -> Measurement:
    """C3b: s(gx; uξ, gp) = s(x; ξ, p), SPD(3) and ball. Control: gξ in place of uξ."""
    found = _invariance(run.seeds.seed, cases)
    errors = found["gξ in the layer"] if wrong else np.maximum(found["layer"], found["layer, ball"])
    control = "gξ in place of uξ", np.median(found["gξ in the layer"])
    return Measurement(errors.max(), baseline=control, n=cases, details={"ball": found["layer, ball"].max()})


def wrong_boundary_differs(run: ClaimRun, *, cases: int = 20, right: bool = False) -> Measurement:
    """C3c: with gξ in place of uξ the layer changes. Control: uξ."""
    found = _invariance(run.seeds.seed, cases)
    errors = found["layer" if right else "gξ in the layer"]
    return Measurement(np.median(errors), baseline=("uξ", np.median(found["layer"])), n=cases)


def log_euclidean_changes(run: ClaimRun, *, cases: int = 20, invariant: bool = False) -> Measurement:
    """C3d: the log-Euclidean distance is not invariant. Control: the layer's."""
    found = _invariance(run.seeds.seed, cases)
    errors = found["layer" if invariant else "log-Euclidean"]
    return Measurement(np.median(errors), baseline=("GL-invariant layer", np.median(found["layer"])), n=cases)


# --- C4: known formulas --------------------------------------------------------------------------------------------


def _spd_pairs(run: ClaimRun, cases: int, n: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = run.seeds.child("flat").torch()
    space = SPD(n)
    w = torch.randn(cases, n, n, generator=generator, dtype=torch.float64)
    return space.random(cases, generator), space.random(cases, generator), (w + w.mT) / 2


def recovers_log_euclidean(run: ClaimRun, *, cases: int = 20, other: bool = False) -> Measurement:
    """C4a: ⟨Log X − Log P, W⟩/‖W‖ with SciPy's logarithm. Control: the GL-invariant layer with the same W."""
    x, p, w = _spd_pairs(run, cases)
    space = SPDLogEuclidean(4)
    s = space.signed_distance(x, space.boundary(w), p).diagonal().numpy()
    logs = [np.stack([scipy.linalg.logm(m) for m in points.numpy()]).real for points in (x, p)]
    wanted = ((logs[0] - logs[1]) * w.numpy()).sum((1, 2)) / w.flatten(1).norm(dim=1).numpy()
    invariant = SPD(4).signed_distance(x, SPD(4).boundary(w), p).diagonal().numpy()
    control = np.abs(invariant - wanted)
    return Measurement(
        np.abs((invariant if other else s) - wanted).max(), baseline=("GL-invariant", np.median(control)), n=cases
    )


def recovers_log_cholesky(run: ClaimRun, *, cases: int = 20, other: bool = False) -> Measurement:
    """C4b: ⟨φ(L_X) − φ(L_P), W⟩/‖W‖ with SciPy's factors. Control: the log-Euclidean layer with the same W."""
    x, p, w = _spd_pairs(run, cases)
    space, w = SPDLogCholesky(4), w.tril()
    s = space.signed_distance(x, space.boundary(w), p).diagonal().numpy()

    def chart(m: np.ndarray) -> np.ndarray:
        lower = scipy.linalg.cholesky(m, lower=True)
        return np.tril(lower, -1) + np.diag(np.log(np.diag(lower)))

    differences = np.stack([chart(a) - chart(b) for a, b in zip(x.numpy(), p.numpy(), strict=True)])
    wanted = (differences * w.numpy()).sum((1, 2)) / w.flatten(1).norm(dim=1).numpy()
    flat = SPDLogEuclidean(4)
    log_euclidean = flat.signed_distance(x, flat.boundary(w), p).diagonal().numpy()
    control = np.abs(log_euclidean - wanted)
    return Measurement(
        np.abs((log_euclidean if other else s) - wanted).max(), baseline=("log-Euclidean", np.median(control)), n=cases
    )


def recovers_euclidean(run: ClaimRun, *, cases: int = 20, other: bool = False) -> Measurement:
    """C4c: ⟨x − p, u⟩. Control: the ball's layer on the same points."""
    generator = run.seeds.child("euclidean").torch()
    space, ball = Euclidean(3), PoincareBall(3)
    x, p, u = ball.random(cases, generator), ball.random(cases, generator), ball.random_boundary(cases, generator)
    wanted = ((x - p) * u).sum(-1)
    curved = (ball.signed_distance(x, u, p).diagonal() - wanted).abs()
    errors = curved if other else (space.signed_distance(x, u, p).diagonal() - wanted).abs()
    return Measurement(float(errors.max()), baseline=("in the ball", float(curved.median())), n=cases)


def half_plane_is_spd2(run: ClaimRun, *, cases: int = 20, unscaled: bool = False) -> Measurement:
    """C4d: on SPD(2) of determinant 1, x + iy ↦ [[x² + y², x], [x, 1]]/y, B_SPD = −√2 log y. Control: without √2."""
    rng = run.seeds.child("half-plane").numpy()
    x, y = rng.standard_normal(cases), np.exp(rng.standard_normal(cases))
    points = torch.tensor(np.stack([[x**2 + y**2, x], [x, np.ones(cases)]]).transpose(2, 0, 1) / y[:, None, None])
    space = SPD(2)
    xi = space.boundary((torch.eye(2, dtype=torch.float64)[None], torch.tensor([[1.0, -1.0]], dtype=torch.float64)))
    b = space.busemann(points, xi)[:, 0].numpy()
    errors = [np.abs(b + factor * np.log(y)).max() for factor in (2**0.5, 1.0)]
    return Measurement(errors[int(unscaled)], baseline=("without √2", errors[1]), n=cases)


# --- C5: the layer's inverse ---------------------------------------------------------------------------------------


@cache
def _inverse(seed: int, orders: tuple[int, ...], points: int) -> dict[str, np.ndarray]:
    generator, rows = torch.Generator().manual_seed(seed), []
    for m in orders:
        source, target = SPD(3), SPD(m)
        x, eye = source.random(points, generator), torch.eye(m, dtype=torch.float64)
        layer = SymFC(source, target, generator)
        variant = SymFC(source, target, generator, construction="tangent")
        variant.load_state_dict(layer.state_dict())
        with torch.no_grad():
            v = layer.coordinates(x)[:, :m]
            rows.append([float((target.composite(f(x), eye) - v).abs().max()) for f in (layer, variant)])
    return dict(zip(("iwasawa", "tangent"), np.array(rows).T, strict=True))


def layer_has_inverse(
    run: ClaimRun, *, orders: tuple[int, ...] = (2, 3, 4, 5), points: int = 32, tangent: bool = False
) -> Measurement:
    """C5a: A(y, I) = (v_11, …, v_mm). Control: y = exp(sym v)."""
    found = _inverse(run.seeds.seed, orders, points)
    measured = found["tangent" if tangent else "iwasawa"]
    return Measurement(
        measured.max(),
        baseline=("exp(sym v)", found["tangent"].min()),
        n=len(orders) * points,
        series={"m": orders, **found},
    )


def exponential_has_none(
    run: ClaimRun, *, orders: tuple[int, ...] = (2, 3, 4, 5), points: int = 32, iwasawa: bool = False
) -> Measurement:
    """C5b: the exp(sym v) variant misses, at each m. Control: the layer."""
    found = _inverse(run.seeds.seed, orders, points)
    measured = found["iwasawa" if iwasawa else "tangent"]
    return Measurement(measured.min(), baseline=("N D Nᵀ", found["iwasawa"].max()), n=len(orders) * points)
