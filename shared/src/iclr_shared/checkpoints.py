"""Checkpoints that verify: a step is a folder with a manifest of checksums, renamed into place when complete."""

import hashlib
import io
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write

_MANIFEST = "manifest.json"


class Checkpoint:
    """Numbered states of one long computation in `folder`.

    A state maps names to arrays (NumPy, or anything `numpy.asarray` takes), to flat mappings of names to arrays, to
    bytes, or to JSON-able values. Pickle is never read or written. Models go through `iclr_shared.adapters`.

    Args:
        folder: made on the first save.
        keep: how many of the newest states to keep.
        every_s: seconds after which `due` says that a state should be saved again.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2, every_s: float = 30.0):
        if keep < 1:
            raise InputError(f"keep must be at least 1, got {keep}.")
        self.folder = Path(folder)
        self.keep = keep
        self.every_s = every_s
        self._saved = time.monotonic()

    def due(self) -> bool:
        """Whether `every_s` seconds have passed since the last save (or since this object was made)."""
        return time.monotonic() - self._saved >= self.every_s

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write `state` as step number `step`, whole or not at all, and drop the oldest beyond `keep`.

        Raises:
            InputError: if a name is no simple word, or the folder cannot be written.
            TypeError: if a value is none of the kinds above.
        """
        temporary = self.folder / f"step-{step}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        digests = {}
        for name, value in state.items():
            if not re.fullmatch(r"[\w.-]+", name):
                raise InputError(f"Checkpoint entry {name!r} must be a word of letters, digits, '_', '.' and '-'.")
            suffix, data = _encode(value)
            digests[name + suffix] = hashlib.sha256(data).hexdigest()
            atomic_write(temporary / (name + suffix), data)
        atomic_write(temporary / _MANIFEST, json.dumps({"step": step, "sha256": digests}, sort_keys=True))
        final = self.folder / f"step-{step}"
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        for old in self.steps()[self.keep :]:
            shutil.rmtree(self.folder / f"step-{old}", ignore_errors=True)
        self._saved = time.monotonic()

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        """The newest state that verifies, as ``(step, state)`` with NumPy arrays, or None.

        A state whose files do not match their checksums is passed over for the one before it.
        """
        for step in self.steps():
            try:
                return step, self._load(self.folder / f"step-{step}")
            except (OSError, ValueError, KeyError):
                continue
        return None

    def steps(self) -> list[int]:
        """The numbers of the states that are there, newest first, whether they verify or not."""
        names = (re.fullmatch(r"step-(\d+)", p.name) for p in self.folder.glob("step-*"))
        return sorted((int(m[1]) for m in names if m), reverse=True)

    def _load(self, folder: Path) -> dict[str, Any]:
        state = {}
        for file, digest in json.loads((folder / _MANIFEST).read_bytes())["sha256"].items():
            data = (folder / file).read_bytes()
            if hashlib.sha256(data).hexdigest() != digest:
                raise ValueError(f"{file} does not match its checksum")
            name, suffix = os.path.splitext(file)
            state[name] = _decode(suffix, data)
        return state


def save_arrays(path: str | os.PathLike[str], **arrays: Any) -> None:
    """Write a compressed ``.npz`` file, whole or not at all."""
    import numpy as np

    with atomic_path(path) as temporary:
        np.savez_compressed(temporary, **arrays)


def _encode(value: Any) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        return ".bin", value
    if hasattr(value, "__array__"):
        import numpy as np

        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value), allow_pickle=False)
        return ".npy", buffer.getvalue()
    if isinstance(value, Mapping) and value and all(hasattr(v, "__array__") for v in value.values()):
        import numpy as np

        buffer = io.BytesIO()
        # Positional arrays plus a list of names: a name may then hold any character.
        np.savez(buffer, *map(np.asarray, value.values()), names=np.array(list(value)), allow_pickle=False)
        return ".npz", buffer.getvalue()
    return ".json", json.dumps(value).encode()


def _decode(suffix: str, data: bytes) -> Any:
    if suffix == ".bin":
        return data
    if suffix == ".json":
        return json.loads(data)
    import numpy as np

    loaded = np.load(io.BytesIO(data), allow_pickle=False)
    if suffix == ".npy":
        return loaded
    return {str(name): loaded[f"arr_{i}"] for i, name in enumerate(loaded["names"])}
