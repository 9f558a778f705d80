"""On what a number was measured: interpreter, machine, threads, package versions, device."""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "XLA_FLAGS")


def describe(distribution: str) -> dict[str, Any]:
    """The environment of a record: no host name, no user name, no secrets.

    Args:
        distribution: whose version and whose direct dependencies' versions are listed.
    """
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        "packages": packages(distribution),
        "device": device(),
        "git": _git(distribution),
    }


def packages(distribution: str) -> dict[str, str]:
    """Versions of `distribution` and of what it requires, extras left out, as far as they are installed."""
    try:
        requirements = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    names = [re.match(r"[\w.-]+", line)[0] for line in requirements if "extra ==" not in line]
    versions = {}
    for name in sorted({distribution, "iclr-shared", *names}):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def device() -> str:
    """The accelerator that an already imported framework sees, else ``"cpu"``."""
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    if (jax := sys.modules.get("jax")) and hasattr(jax, "devices"):
        return jax.devices()[0].device_kind
    return "cpu"


def cache_use() -> str:
    """Place and size of the cache folder."""
    import platformdirs

    folder = Path(platformdirs.user_cache_dir("iclr"))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{folder} ({size / 1e6:.1f} MB)"


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _git(distribution: str) -> str | None:
    """Commit of the checkout that an editable install points to, if it is one."""
    module = sys.modules.get(distribution.replace("-", "_"))
    if module is None or not getattr(module, "__file__", None):
        return None
    command = ["git", "-C", os.path.dirname(module.__file__), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
