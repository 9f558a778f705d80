"""Row 8 of the ledger: the UV model's predictions in a real network. One experiment per init serves all checks.

The 3-layer ReLU network on 500 digits starts at three scales of its weights, 1/3, 1 and 3 times 1/sqrt(fan_in), and is
trained at eight learning rates ``eta = C / lambda_H(0)``.
"""

from dataclasses import dataclass

import numpy as np

from iclr_dynamics.uv_model import figures
from iclr_dynamics.uv_model.experiments import RATES, Network, digits_network, end_of_track
from iclr_shared.claims import ClaimRun, Measurement

SMALL, USUAL, LARGE = 1 / 3, 1.0, 3.0


@dataclass(frozen=True)
class Sizes:
    """Of the experiment: `inits` networks of each scale, trained for `steps` at `rates`, and one slow run each."""

    inits: int = 3
    steps: int = 3000
    slow_steps: int = 20_000
    width: int = 64
    rates: tuple[float, ...] = RATES


FULL = Sizes()


def ends_above_the_lower_edge(run: ClaimRun, *, sizes: Sizes = FULL) -> Measurement:
    """Lowest end of eta * sharpness where the edge is called for. Control: eta times the slow run's sharpness."""
    networks = _networks(run, (SMALL, USUAL), sizes)
    for network in networks[:: sizes.inits]:
        names = [f"C = {rate:g}" for rate in sizes.rates]
        figure = figures.tracks_figure(network.tracks, names, network.reference)
        run.figure(f"networks-scale-{network.scale:.2g}", figure)
    return _ends(networks, np.min)


def ends_below_the_upper_edge(run: ClaimRun, *, sizes: Sizes = FULL) -> Measurement:
    """Highest end of eta * sharpness where the edge is called for. Control: eta times the slow run's sharpness."""
    return _ends(_networks(run, (SMALL, USUAL), sizes), np.max)


def slow_rates_stay_below_two(run: ClaimRun, *, sizes: Sizes = FULL) -> Measurement:
    """Highest end of eta * sharpness where gradient flow's sharpness allows the rate. Control: the edge's range."""
    rows = _rows(_networks(run, (SMALL, USUAL), sizes))
    inside = [row.end for row in rows if row.calls_for_the_edge]
    below = [row.end for row in rows if row.flow <= 2]
    baseline = "rates in the edge's range", _over(np.max, inside)
    return Measurement(_over(np.max, below), baseline=baseline, n=len(below))


def large_init_flattens_early(run: ClaimRun, *, sizes: Sizes = FULL, scale: float = LARGE) -> Measurement:
    """Least sharpness of the first tenth over the start, largest over inits, at C = 1. Control: small weights."""
    ratios, control = (_ratios(run, which, sizes, "reduction_ratio") for which in (scale, SMALL))
    baseline = f"weights times {SMALL:.2g}", _over(np.max, control)
    return Measurement(_over(np.max, ratios), baseline=baseline, n=sizes.inits, series={"ratio": ratios})


def small_init_sharpens(run: ClaimRun, *, sizes: Sizes = FULL, scale: float = SMALL) -> Measurement:
    """Largest sharpness over an earlier minimum, smallest over inits, at C = 1. Control: large weights."""
    ratios, control = (_ratios(run, which, sizes, "sharpening_ratio") for which in (scale, LARGE))
    baseline = f"weights times {LARGE:.2g}", _over(np.min, control)
    return Measurement(_over(np.min, ratios), baseline=baseline, n=sizes.inits, series={"ratio": ratios})


@dataclass(frozen=True)
class _Row:
    """A run that did not diverge.

    Args:
        end: ``eta lambda_H``, mean of the last fifth.
        flow: ``eta`` times the sharpness at which the slow run ended; above 2 gradient flow's minimum is unstable.
        start: ``eta lambda_H`` at initialisation; above 2 the run catapults first.
    """

    end: float
    flow: float
    start: float

    @property
    def calls_for_the_edge(self) -> bool:
        """As `phase` says of the UV model: the start is stable and gradient flow's end is not."""
        return self.flow > 2 and not self.catapults

    @property
    def catapults(self) -> bool:
        return self.start > 2.001  # the rate C = 2 is 2 up to rounding


def _networks(run, scales, sizes) -> list[Network]:
    todo = [(scale, index) for scale in scales for index in range(sizes.inits)]
    return [
        digits_network(run.seeds.seed, index, scale, sizes.steps, sizes.slow_steps, sizes.width, sizes.rates)
        for scale, index in run.progress(todo, desc="training networks")
    ]


def _ratios(run, scale, sizes, name) -> list[float]:
    networks = _networks(run, (scale,), Sizes(sizes.inits, sizes.steps, 0, sizes.width, (1.0,)))
    return [getattr(network.tracks[0].regimes(), name) for network in networks]


def _rows(networks) -> list[_Row]:
    return [
        _Row(end_of_track(t), float(t.eta * n.reference.sharpness[-1]), float(t.eta * t.sharpness[0]))
        for n in networks
        for t in n.tracks
        if t.diverged < 0
    ]


def _over(choose, values) -> float:
    """Largest, smallest or mean value; NaN if there is none or one is NaN, so that the claim fails."""
    return float(choose(values)) if values else np.nan


def _ends(networks, choose):
    rows = _rows(networks)
    inside = [row for row in rows if row.calls_for_the_edge]
    catapults = [row.end for row in rows if row.flow > 2 and row.catapults]
    runs = [(n.scale, t.eta, end_of_track(t) if t.diverged < 0 else np.nan) for n in networks for t in n.tracks]
    scale, eta, end = map(list, zip(*runs, strict=True))
    return Measurement(
        _over(choose, [row.end for row in inside]),
        baseline=("eta times the sharpness of the slow run", _over(choose, [row.flow for row in inside])),
        n=len(inside),
        series={"scale": scale, "eta": eta, "eta x sharpness at the end": end},
        details={
            "mean end": _over(np.mean, [row.end for row in inside]),
            "runs that catapult first": len(catapults),
            "lowest end of those": _over(np.min, catapults),
            "highest end of those": _over(np.max, catapults),
            "divergent runs": sum(track.diverged >= 0 for network in networks for track in network.tracks),
        },
        note=(
            "Runs that start with eta x sharpness > 2 are left out: they catapult first, and a catapult may land on a "
            "minimum well below the edge, in the UV model as here (row 3). Divergent runs have no end."
        ),
    )
