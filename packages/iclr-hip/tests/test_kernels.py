"""The Triton kernels in the interpreter, all in one process; on a GPU where there is one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hip_inputs import tensors

from iclr_hip.attention import hip_attention
from iclr_hip.config import HiPConfig
from iclr_hip.mask import hip_mask


@pytest.fixture(scope="module")
def results():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted.py"))],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_masks_are_equal(results):
    assert len(results["cases"]) == 6
    assert all(equal for equal, _ in results["cases"].values()), results


def test_outputs_are_close(results):
    assert max(difference for _, difference in results["cases"].values()) <= 1e-4
    assert results["later"][0] <= 1e-4
    assert results["later"][1] <= 3e-3  # float16


def test_what_the_kernels_refuse(results):
    double, gradient, cap, brain = results["refused"]
    assert "float64" in double
    assert gradient.startswith("RuntimeError: The Triton kernels have no backward")
    assert cap.startswith("NotImplementedError: The Triton kernels have no softcap")
    assert brain.startswith("InputError: Triton's interpreter has no products of bfloat16")


@pytest.mark.parametrize("name", ["_scores", "_attend"])
def test_they_compile_for_a_gpu(name, tmp_path, monkeypatch):
    """The interpreter accepts what the compiler refuses. No GPU is needed to compile for one."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from iclr_hip import kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(kernels, name)
    sizes = {size: 64 if size == "N" else 16 for size in ("S", "R", "D", "DV", "N")}
    types = {
        "Q": "*bf16",
        "K": "*bf16",
        "V": "*bf16",
        "OUT": "*bf16" if name == "_attend" else "*fp32",
        "scale": "fp32",
    }
    pointers = ("P", "ROW", "FIRST", "COUNT", "CHOSEN", "BLOCKS", "USED", "LAST")
    types |= dict.fromkeys(pointers, "*i32") | dict.fromkeys(sizes, "constexpr")
    source = ASTSource(
        kernel,
        {argument: types.get(argument, "i32") for argument in kernel.arg_names},
        {(i,): sizes[argument] for i, argument in enumerate(kernel.arg_names) if argument in sizes},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=kernels.options(torch.bfloat16))
    assert ".visible .entry " + name in compiled.asm["ptx"]
    assert compiled.metadata.shared < 99 * 1024


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("length", [32768, 131072])
def test_triton_against_flash_on_a_gpu(length):
    """The full limit equals flash attention at a small size; at the large one the kernels run and are finite."""
    q, k, v = (x.cuda().bfloat16() for x in tensors(0, h=8, g=2, tq=2048, d=128))
    full = hip_attention(q, k, v, config=HiPConfig(mask_k=2048, backend="triton"))[0]
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(full.float(), wanted.float(), atol=2e-2, rtol=0)
    q, k, v = (x.cuda().bfloat16() for x in tensors(1, h=8, g=2, tq=length, d=128))
    out, mask = hip_attention(q, k, v, config=HiPConfig(backend="triton"))
    assert out.isfinite().all()
    assert (mask.blocks[0, 0, -1] >= 0).all()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("backend", ["triton", "cupy"])
def test_masks_on_a_gpu(backend):
    q, k, _ = (x.cuda().round() for x in tensors(0, b=2, h=4, g=2, tq=1000, d=64))
    config = HiPConfig(mask_k=64, sliding_window_size=64, backend="torch")
    wanted = hip_mask(q, k, config=config).blocks
    assert torch.equal(hip_mask(q, k, config=replace(config, backend=backend)).blocks, wanted)
