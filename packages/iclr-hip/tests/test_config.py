import dataclasses

import pytest

from iclr_hip.config import HiPConfig
from iclr_shared.errors import InputError


def test_round_trip():
    config = HiPConfig(mask_k=1024, sample="last", align_init=True)
    assert HiPConfig.from_json(config.to_json()) == config
    assert HiPConfig.from_dict({"mask_k": 64}).nodes == 32
    assert dataclasses.asdict(HiPConfig()) == {
        "mask_k": 512, "block_size_q": 64, "block_stride_q": 2, "block_size_k": 2, "block_stride_k": 1,
        "sliding_window_size": 256, "sink_token_size": 16, "dense_layers": 3, "refresh_interval": 8, "sample": "center",
        "align_init": False, "backend": "auto", "check_finite": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_k": 511}, "mask_k must be a multiple of block_size_k, got 511 and 2"),
        ({"block_size_q": 63}, "block_size_q must be a multiple of block_stride_q, got 63 and 2"),
        ({"block_size_k": 2, "block_stride_k": 4}, "block_size_k must be a multiple of block_stride_k"),
        ({"block_size_q": 0}, "block_size_q must be at least 1, got 0"),
        ({"sliding_window_size": 0}, "sliding_window_size must be at least 1"),
        ({"mask_k": -2}, "mask_k must not be negative"),
        ({"refresh_interval": 0}, "refresh_interval must be at least 1"),
        ({"sample": "middle"}, "sample must be one of"),
        ({"backend": "jax"}, "backend must be one of"),
    ],
)
def test_sizes_that_do_not_fit(options, message):
    config = HiPConfig.from_dict
    with pytest.raises(ValueError, match=message):
        config(options)


def test_unknown_fields():
    with pytest.raises(InputError, match="no field window"):
        HiPConfig.from_dict({"window": 3})
    with pytest.raises(InputError, match="not JSON"):
        HiPConfig.from_json("{")
    with pytest.raises(InputError, match="JSON object"):
        HiPConfig.from_json("[]")
