import pytest
import torch
import torch.nn.functional as F
from hip_inputs import padding, small, tensors

from iclr_hip.attention import block_sparse_attention, dense_attention, hip_attention
from iclr_hip.mask import hip_mask
from iclr_shared.errors import InputError


def masked(q, k, v, mask, scale=None, cap=None):
    """Dense attention with the mask written out."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    return scores.masked_fill(~mask, -torch.inf).softmax(3).nan_to_num() @ v


@pytest.mark.parametrize(
    ("tq", "tk", "options"),
    [
        (256, 256, {}),
        (77, 201, {"block_size_k": 4, "block_stride_k": 2}),
        (1, 199, {}),
        (90, 90, {"sliding_window_size": 3, "sink_token_size": 0}),
        (40, 40, {"mask_k": 0}),
    ],
)
# Of larger logits float32 keeps fewer digits: masked attention itself is then 2e-6 from float64.
@pytest.mark.parametrize(("scale", "error"), [(None, 1e-6), (0.7, 5e-6)])
def test_against_dense_with_the_mask(tq, tk, options, scale, error):
    q, k, v = tensors(tq + tk, b=2, h=4, g=2, tq=tq, tk=tk)
    first = padding(2, tk, [0, 23])
    out, mask = hip_attention(q, k, v, config=small(**options), scale=scale, attention_mask=first, chunk_bytes=300_000)
    torch.testing.assert_close(out, masked(q, k, v, mask.to_dense(), scale), atol=error, rtol=0)


def test_dense_limit():
    """Reference values 5: with mask_k ≥ T − w − n_sink nothing is pruned."""
    q, k, v = tensors(1, h=4, g=2, tq=130)
    out, mask = hip_attention(q, k, v, config=small(mask_k=110))
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=0)
    assert torch.equal(mask.to_dense()[0, 0], torch.ones(130, 130, dtype=torch.bool).tril())


@pytest.mark.parametrize(("dtype", "error"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3), (torch.float64, 1e-12)])
def test_types(dtype, error):
    q, k, v = tensors(2, tq=100, dtype=dtype)
    out, mask = hip_attention(q, k, v, config=small())
    assert out.dtype == dtype
    wanted = masked(q.double(), k.double(), v.double(), mask.to_dense())
    torch.testing.assert_close(out.double(), wanted, atol=error, rtol=0)


def test_softcap():
    q, k, v = tensors(3, tq=80)
    out, mask = hip_attention(3 * q, k, v, config=small(), softcap=2.0)
    torch.testing.assert_close(out, masked(3 * q, k, v, mask.to_dense(), cap=2.0), atol=1e-6, rtol=0)


def test_gradients():
    q, k, v = (x.requires_grad_() for x in tensors(4, h=2, g=1, tq=60, dtype=torch.float64))
    out, mask = hip_attention(q, k, v, config=small(mask_k=8), chunk_bytes=100_000)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.grad((out * weights).sum(), (q, k, v))
    wanted = torch.autograd.grad((masked(q, k, v, mask.to_dense()) * weights).sum(), (q, k, v))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
    capped = hip_attention(q, k, v, config=small(mask_k=8), softcap=2.0)[0]
    assert torch.autograd.grad(capped.sum(), q)[0].abs().sum() > 0


def test_a_mask_serves_later_tokens():
    q, k, v = tensors(5, tq=1, tk=160)
    mask = hip_mask(q, k[:, :, :155], config=small())
    out, again = hip_attention(q, k, v, config=small(), block_mask=mask)
    assert again is mask
    later = mask.after(5)
    dense = later.to_dense(extension=5)
    assert dense[0, 0].sum() == 52 + 5  # the window is longer by the steps, so no token is lost
    assert dense[0, 0, 0, 139:].all()
    torch.testing.assert_close(out, masked(q, k, v, dense), atol=1e-6, rtol=0)
    with pytest.raises(InputError, match="only single queries"):
        block_sparse_attention(*tensors(5, tq=2, tk=160), mask)
    with pytest.raises(InputError, match="searched for 1 queries, not 2"):
        block_sparse_attention(*tensors(5, tq=2, tk=155), mask)
    with pytest.raises(InputError, match="the queries are"):
        block_sparse_attention(*tensors(5, h=4, g=2, tq=1, tk=155), mask)


@pytest.mark.parametrize(("tq", "tk"), [(50, 50), (1, 50), (20, 50)])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_dense_layers(tq, tk, cap):
    q, k, v = tensors(6, b=2, h=4, g=2, tq=tq, tk=tk)
    causal = torch.arange(tk) <= torch.arange(tk - tq, tk)[:, None]
    for first in (None, torch.tensor([0, 31])):
        seen = causal if first is None else causal & (torch.arange(tk) >= first[:, None, None, None])
        out = dense_attention(q, k, v, first=first, softcap=cap)
        torch.testing.assert_close(out, masked(q, k, v, seen, cap=cap), atol=1e-6, rtol=0)


def test_backends_that_are_not_here():
    q, k, v = tensors(7, tq=64)
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        hip_attention(q, k, v, config=small(backend="triton"))
    with pytest.raises(RuntimeError, match=r"iclr-hip\[cuda12\]|needs a CUDA device"):
        hip_attention(q, k, v, config=small(backend="cupy"))
    auto, torch_ = (hip_attention(q, k, v, config=small(backend=name))[0] for name in ("auto", "torch"))
    assert torch.equal(auto, torch_)
