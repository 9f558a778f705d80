"""Figures of the UV model and of tracked networks, for the claims' report and the commands."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from iclr_dynamics.uv_model.bifurcations import Bifurcation
from iclr_dynamics.uv_model.fixed_points import fixed_points, nullclines
from iclr_dynamics.uv_model.maps import Trajectory, vector_field
from iclr_dynamics.uv_model.period_doubling import two_cycle
from iclr_dynamics.uv_model.tracking import Track
from iclr_shared.plots import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKS = {"stable": "o", "saddle": "s", "repeller": "X", "unstable": "D"}


def bifurcation_figure(
    diagram: Bifurcation, onsets: Iterable[float] = (), exponents: tuple[np.ndarray, np.ndarray] | None = None
) -> "Figure":
    """``eta lambda_H`` and ``f / y`` against c, with the onsets of period doubling; below, Lyapunov exponents.

    Args:
        diagram: what to draw.
        onsets: values of c to mark.
        exponents: (c, exponent) of a third panel.
    """
    panels = 2 if exponents is None else 3
    figure, axes = new_figure(panels, 1, height=2.4 * panels, sharex=True)
    c = np.repeat(np.asarray(diagram.c), diagram.z.shape[1])
    for axis, values, label in ((axes[0], diagram.sharpness, r"$\eta\,\lambda_H$"), (axes[1], diagram.z, r"$f/y$")):
        axis.plot(c, np.ravel(values), ",", color=COLOURS[0], alpha=0.5, rasterized=True)
        axis.set_ylabel(label)
    axes[0].axhline(2, color=COLOURS[1], linewidth=0.8, label=r"$\eta\,\lambda_H=2$")
    axes[0].legend(loc="upper left", frameon=False)
    axes[0].set_title("States that late training visits, by learning rate")
    if exponents is not None:
        axes[2].plot(*exponents, linewidth=0.8)
        axes[2].axhline(0, color="black", linewidth=0.6)
        axes[2].set_ylim(max(-2.5, np.nanmin(exponents[1])), None)
        axes[2].set_ylabel("Lyapunov\nexponent (1/step)")
    for axis in axes:
        for onset in onsets:
            axis.axvline(onset, color=COLOURS[2], linewidth=0.6, alpha=0.7)
    axes[-1].set_xlabel(r"$c=\eta/\eta_c=\eta\,k\,y$")
    return figure


def portrait_figure(k: float, y: float, rates: Sequence[float]) -> "Figure":
    """The plane (Df, lambda) at several c: how two steps move it, its nullclines and its fixed points."""
    figure, axes = new_figure(1, len(rates), width=4.4 * len(rates), height=4.6)
    for axis, c in zip(np.atleast_1d(axes), rates, strict=True):
        eta = c / (k * y)
        residual = jnp.linspace(-1.5 * y, 1.1 * y, 27)
        ntk = jnp.linspace(0, 6 * k * y, 25)
        field = vector_field(residual, ntk, eta, k, y)
        arrows = np.asarray(field.two_step) / np.array([y, 6 * k * y])[:, None, None]
        size = np.hypot(*arrows)
        unit = arrows / np.where(size > 0, size, 1)
        axis.quiver(
            np.asarray(field.residual), np.asarray(field.ntk), *unit, np.log10(np.clip(size, 1e-4, 1)),
            cmap="Blues", clim=(-4.5, 0), scale=32, width=0.004,
        )  # fmt: skip
        fine = jnp.linspace(-1.5 * y, 1.1 * y, 801)
        lines = nullclines(fine, eta, k, y)
        axis.plot(fine, lines.boundary, color="black", linewidth=1, label=r"$\lambda=2k|f|$")
        for name, values, colour in (
            (r"sign of $\Delta f$ flips above", lines.flip, COLOURS[4]),
            (r"$|\Delta f|$ grows above", lines.grow, COLOURS[1]),
            (r"$\lambda$ rests", lines.still_ntk, COLOURS[2]),
        ):
            inside = np.where(np.asarray(values) >= np.asarray(lines.boundary), np.asarray(values), np.nan)
            axis.plot(fine, inside, color=colour, linewidth=1, label=name)
        for point in fixed_points(eta, k, y):
            axis.plot(
                point.residual, point.ntk, _MARKS[point.stability], color=COLOURS[3], markeredgecolor="black",
                label=f"{point.kind}: {point.stability}" if _shown(point, y, k) else None, clip_on=True,
            )  # fmt: skip
            if point.kind == "zero loss" and point.stability == "stable":
                axis.plot([0, 0], [point.ntk, point.stable_until], color=COLOURS[3], linewidth=3, alpha=0.6)
        if c > 1:
            z = np.array(two_cycle(c))
            axis.plot((z - 1) * y, 2 * k * z * y, "*", color=COLOURS[5], markeredgecolor="black", label="2-cycle")
        axis.set_xlim(-1.55 * y, 1.15 * y)
        axis.set_ylim(-0.15 * k * y, 6 * k * y)
        axis.set_xlabel(r"$\Delta f=f-y$")
        axis.set_title(f"c = {c:g}, two-step field", fontsize=10)
        axis.legend(fontsize=6, loc="upper left")
    np.atleast_1d(axes)[0].set_ylabel(r"$\lambda$ (tangent kernel)")
    return figure


def trajectory_figure(runs: Mapping[str, tuple[Trajectory, float]], stride: int = 1) -> "Figure":
    """Loss and ``eta lambda_H`` against the step; `runs` maps names to (trajectory, eta)."""
    figure, (top, bottom) = new_figure(2, 1, height=5.4, sharex=True)
    for name, (run, eta) in runs.items():
        step = stride * np.arange(len(run.ntk))
        top.semilogy(step, np.maximum(np.asarray(run.residual) ** 2 / 2, 1e-32), linewidth=1, label=name)
        bottom.plot(step, eta * np.asarray(run.sharpness), linewidth=1)
    bottom.axhline(2, color="black", linewidth=0.8, linestyle="--")
    top.set_ylabel(r"loss $(f-y)^2/2$")
    top.legend(frameon=False, fontsize=8)
    bottom.set_ylabel(r"$\eta\,\lambda_H$")
    bottom.set_xlabel("step")
    return figure


def tracks_figure(tracks: Sequence[Track], names: Sequence[str], control: Track | None = None) -> "Figure":
    """Networks: loss and ``eta lambda_H`` against the step, and the late values of each run as a diagram over eta.

    Args:
        tracks: runs at several rates.
        names: theirs.
        control: a slow run, dotted.
    """
    figure, axes = new_figure(1, 3, width=13, height=4.2)
    runs = [(*pair, colour, "-") for *pair, colour in zip(tracks, names, cycle(COLOURS), strict=False)]
    if control is not None:
        runs.append((control, f"control, {control.eta:.2g}", "grey", ":"))
    for track, name, colour, style in runs:
        axes[0].loglog(1 + track.step, track.loss, style, color=colour, linewidth=1, label=name)
        axes[1].semilogx(1 + track.step, track.eta * track.sharpness, style, color=colour, linewidth=1)
        if track.diverged < 0:
            late = track.late()
            axes[2].semilogx(np.full(len(late), track.eta), late, ".", color=colour, markersize=4)
    axes[0].set_ylabel("training loss")
    axes[0].set_ylim(None, 10 * max(track.loss[0] for track in tracks))
    axes[0].legend(frameon=False, fontsize=7)
    for axis in axes[1:]:
        axis.axhline(2, color="black", linewidth=0.8, linestyle="--")
        axis.set_ylabel(r"$\eta\,\lambda_H$")
    for axis in axes[:2]:
        axis.set_xlabel("1 + step")
    axes[2].set_xlabel(r"learning rate $\eta$")
    axes[2].set_title("last fifth of each run", fontsize=10)
    top = max([2.5, *(float(np.nanmax(track.late())) for track in tracks if track.diverged < 0)])
    axes[1].set_ylim(0, 1.4 * top)
    return figure


def _shown(point, y: float, k: float) -> bool:
    return -1.55 * y <= point.residual <= 1.15 * y and point.ntk <= 6 * k * y
