"""The switch sweep: the same run with the switch at many epochs (Zhou et al., Fig. 1), at the price of one trunk.

Runs of one key share their batches, so all runs with a later switch go through the same weights: the trunk is trained
once and each run branches off. That is ``T + 2 sum (T - t)`` gradients instead of ``len(switches)`` whole runs.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxtyping import PRNGKeyArray

from iclr_dynamics.late_sam.objective import Model
from iclr_dynamics.late_sam.schedule import SwitchSchedule
from iclr_dynamics.late_sam.training import RunResult, Training, fit
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError


def switch_sweep(
    model: Model,
    data: Any,
    training: Training,
    switches: Iterable[int],
    *,
    key: PRNGKeyArray,
    first: str = "sgd",
    late: str = "sam",
    folder: Path | None = None,
    checkpoint_every: int = 1,
    **options: Any,
) -> dict[int, RunResult]:
    """Train with the switch from `first` to `late` at each of several epochs.

    Args:
        model, data, training, key: as in `fit`.
        switches: epochs from 0 (`late` throughout) to ``training.epochs`` (`first` throughout).
        first, late: modes; ``first="sam", late="sgd"`` sweeps over early SAM.
        folder: where trunk and branches are saved, and resumed from.
        checkpoint_every: epochs between saves.
        **options: of `fit`.

    Returns:
        The finished run of each switch, in ascending order.

    Raises:
        InputError: if a switch lies outside the training; and as `fit`.
    """
    switches = sorted(set(switches))
    if not switches or switches[0] < 0 or switches[-1] > training.epochs:
        raise InputError(f"The switches {switches} must be epochs from 0 to {training.epochs}.")

    def saved(name):
        return {} if folder is None else {"checkpoint": Checkpoint(folder / name), "checkpoint_every": checkpoint_every}

    whole = SwitchSchedule(training.epochs, None, first=first, late=late)
    trunk, runs = None, {}
    for switch in switches:
        if switch:
            trunk = fit(
                model, data, whole, training, key=key, start=trunk, until=switch, **saved(f"trunk-{switch}"), **options
            )
        runs[switch] = trunk
        if switch < training.epochs:
            branch = SwitchSchedule(switch, None, first=first, late=late)
            runs[switch] = fit(
                model, data, branch, training, key=key, start=trunk, **saved(f"switch-{switch}"), **options
            )
    return runs
