"""Runtime checking of array shapes and types in every package while the tests run."""

import os
import sys
import types
from pathlib import Path

# One thread for each worker, set before any numerical library is loaded.
if "PYTEST_XDIST_WORKER" in os.environ:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import beartype
import jaxtyping

ROOT = Path(__file__).parent
PACKAGES = sorted(path.name for path in (*ROOT.glob("packages/*/src/*"), *ROOT.glob("shared/src/*")) if path.is_dir())

# jaxtyping takes the checker by name; ours accepts an int where a float is announced (the numeric tower of PEP 484).
_checker = types.ModuleType("iclr_type_checker")
_checker.checked = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
sys.modules[_checker.__name__] = _checker

# Before any package is imported.
jaxtyping.install_import_hook(PACKAGES, f"{_checker.__name__}.checked")
