"""Scores of representatives as one CuPy kernel (optional backend "cupy"): one warp for each candidate block."""

from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclr_hip.config import HiPConfig
from iclr_shared.errors import InputError, Unavailable, require

SOURCE = r"""
extern "C" __global__ void block_scores(
    const float* queries, const int* positions, const float* keys, const long long* kv_row, const long long* first,
    const long long* searchable, const long long* chosen, float* out, const int s, const long long n,
    const long long length, const int sinks, const int width, const int block_k, const int stride_k,
    const long long total)
{
    const float lowest = -3.402823466e38f;
    const long long pair = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (pair >= total) return;
    const int lane = threadIdx.x % 32;
    const long long x = pair / n;
    float best = lowest;
    for (int u = stride_k - 1; u < block_k; u += stride_k) {
        const long long token = chosen[pair] * block_k + u;
        if (token >= searchable[x]) continue;
        const long long place = min(token + sinks + first[x], length - 1);
        const float* key = keys + (kv_row[x] * length + place) * width;
        for (int i = 0; i < s; ++i) {
            if (token + sinks > positions[x * s + i]) continue;
            float sum = 0.0f;
            for (int c = lane; c < width; c += 32) sum += queries[(x * s + i) * width + c] * key[c];
            for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
            best = fmaxf(best, sum);
        }
    }
    if (lane == 0) out[pair] = best;
}
"""

#: Warps to a thread block.
WARPS = 8


def check_device(q: Tensor) -> None:
    """Refuse what the kernel cannot run on.

    Raises:
        MissingExtra: a RuntimeError, without CuPy.
        Unavailable: a RuntimeError, without a CUDA device.
        InputError: for float64.
    """
    require("cupy", "iclr-hip[cuda12]")
    if not q.is_cuda:
        raise Unavailable('backend="cupy" needs a CUDA device; on a CPU use backend="torch".')
    if q.dtype == torch.float64:
        raise InputError('The CuPy kernel computes in float32; use backend="torch" for float64.')


@cache
def _kernel() -> Any:
    return require("cupy", "iclr-hip[cuda12]").RawKernel(SOURCE, "block_scores")


def block_scores(
    queries: Float[Tensor, "x s d"],
    positions: Int[Tensor, "x s"],
    key: Float[Tensor, "b h t d"],
    kv_row: Int[Tensor, " x"],
    first: Int[Tensor, " x"],
    searchable: Int[Tensor, " x"],
    chosen: Int[Tensor, "x n"],
    config: HiPConfig,
) -> Float[Tensor, "x n"]:
    """See `iclr_hip.kernels.block_scores`."""
    cupy = require("cupy", "iclr-hip[cuda12]")
    x, n = chosen.shape
    out = torch.empty(x, n, dtype=torch.float32, device=key.device)
    tensors = [queries.float().contiguous(), positions.int().contiguous(), key.float().contiguous()]
    tensors += [t.long().contiguous() for t in (kv_row, first, searchable, chosen)] + [out]
    sizes = [
        cupy.int32(queries.shape[1]), cupy.int64(n), cupy.int64(key.shape[2]), cupy.int32(config.sink_token_size),
        cupy.int32(queries.shape[2]), cupy.int32(config.block_size_k), cupy.int32(config.block_stride_k),
        cupy.int64(x * n),
    ]  # fmt: skip
    with cupy.cuda.Device(key.device.index or 0), cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        grid = (-(-x * n // WARPS),)
        _kernel()(grid, (32 * WARPS,), (*[cupy.from_dlpack(t.detach()) for t in tensors], *sizes))
    return out
