"""Costs from programs: any executable that prints a number."""

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from iclr_shared.errors import InputError


@dataclass(frozen=True)
class CommandCost:
    """The cost that a program prints for the chosen items: the last word of its output.

    Args:
        command: as typed in a shell, without shell features. The chosen items follow as arguments, or stand, separated
            by commas, where the command has ``{subset}``. ``{seed}`` is replaced by a number that differs between
            evaluations.
        timeout: seconds after which the program counts as failed; None is no limit.

    Raises:
        InputError: if the command is empty or its quotes do not close.
    """

    command: str
    timeout: float | None = None

    def __post_init__(self):
        if not self._words():
            raise InputError("The command is empty: give a program that prints a cost.")
        if self.timeout is not None and not self.timeout > 0:
            raise InputError(f"The timeout must be a positive number of seconds, got {self.timeout}.")

    def _words(self) -> list[str]:
        try:
            return shlex.split(self.command)
        except ValueError as error:
            raise InputError(f"The command {self.command!r} cannot be split into words: {error}.") from None

    def __call__(self, chosen: Sequence[Any] | np.ndarray, rng: np.random.Generator) -> float:
        """Run it.

        Raises:
            RuntimeError: if it cannot be started, fails, takes too long or prints no number.
        """
        names = [str(item) for item in (chosen.tolist() if isinstance(chosen, np.ndarray) else chosen)]
        seed = str(int(rng.integers(2**31)))
        words = [word.replace("{subset}", ",".join(names)).replace("{seed}", seed) for word in self._words()]
        if "{subset}" not in self.command:
            words += names
        code, shown, complaint = self._run(words)
        if code < 0:
            raise RuntimeError(f"{words[0]} was killed by {signal.Signals(-code).name}: {complaint.strip()[-300:]}")
        if code:
            raise RuntimeError(f"{words[0]} ended with code {code}: {complaint.strip()[-300:]}")
        printed = shown.split()
        try:
            return float(printed[-1])
        except (IndexError, ValueError):
            raise RuntimeError(f"{words[0]} printed no number at the end, but {shown.strip()[-100:]!r}") from None

    def _run(self, words: list[str]) -> tuple[int, str, str]:
        """Exit code, output and errors. What the program has started in its turn ends with it where it is cut short."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            process = subprocess.Popen(words, **pipes, text=True, errors="replace", start_new_session=True)
        except OSError as error:
            raise RuntimeError(f"{words[0]} cannot be started: {error.strerror}") from None
        with process:
            try:
                shown, complaint = process.communicate(timeout=self.timeout)
            except BaseException as cut:  # also where the user interrupts
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if isinstance(cut, subprocess.TimeoutExpired):
                    raise RuntimeError(f"{words[0]} took over {self.timeout:g} s") from None
                raise
        return process.returncode, shown, complaint
