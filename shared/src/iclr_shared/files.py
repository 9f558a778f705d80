"""Files that are whole or absent, and folders that one process uses at a time."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from iclr_shared.errors import InputError

_PLACE = {
    errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG
}  # fmt: skip
"""What the choice of the path is to blame for."""


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path` (same suffix), which replaces `path` when the block ends without an error.

    The data is flushed to disk before the rename, and the folder after it; on an error nothing is left behind.

    Raises:
        InputError: if the folder cannot be written, or `path` cannot be a file's.
        OSError: if the disk is full.
    """
    path = Path(path)
    if not path.name:
        raise InputError(f"Cannot write {path}: it is no file's name. Choose another output place.")
    temporary = path.with_name(f".{path.stem}.{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        if error.errno in _PLACE:
            raise InputError(f"Cannot write {path}: {error.strerror}. Choose another output place.") from error
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def atomic_write(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path`, whole or not at all. Raises as `atomic_path`."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process.

    Raises:
        InputError: naming the process that holds it already.
    """
    from filelock import FileLock, Timeout

    owner = folder / "lock.pid"
    lock = FileLock(folder / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        pid = owner.read_text() if owner.exists() else "unknown"
        raise InputError(
            f"Another run (process {pid}) is using {folder}. Wait for it, or choose another folder."
        ) from None
    try:
        owner.write_text(str(os.getpid()))
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def _sync(path: Path) -> None:
    # A folder can be flushed on POSIX only.
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
