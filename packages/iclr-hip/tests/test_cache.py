import copy
import math

import pytest
import torch
from hip_inputs import padding, small

from iclr_hip.cache import BlockCache, HostStore, OffloadedCache, OffloadedLayer
from iclr_hip.config import HiPConfig
from iclr_hip.decoding import capacity
from iclr_hip.serving import enable_hip
from iclr_shared.errors import InputError
from iclr_shared.testing import Killed


@pytest.mark.parametrize(("length", "wanted"), [(512, 512), (1536, 1024), (3584, 1536), (131072, 4098)])
def test_capacity(length, wanted):
    """Reference values 6."""
    assert capacity(length, HiPConfig(mask_k=512), scale=1.0) == wanted == math.floor(math.log2(length / 512 + 1) * 512)


def test_capacity_refuses():
    with pytest.raises(InputError, match="scale must be positive, got 0"):
        capacity(10, HiPConfig(), scale=0.0)
    assert capacity(10, HiPConfig(mask_k=0)) == 0


@pytest.fixture(scope="module")
def ids():
    return torch.randint(1, 260, (2, 130), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model(llama):
    return enable_hip(llama(), small(mask_k=16, refresh_interval=4))


def generate(model, ids, new=14, **options):
    return model.generate(ids, attention_mask=padding(2, 130, [37, 0]), max_new_tokens=new, do_sample=False, **options)


@pytest.mark.parametrize("options", [{}, {"limit": 0}, {"limit": 64, "eviction": "temperature"}, {"mask_share": 1.0}])
def test_outputs_are_the_same(model, ids, options):
    cache = OffloadedCache.of(model, **options)
    assert torch.equal(generate(model, ids), generate(model, ids, cache=cache))
    stats = cache.stats()
    assert stats["host tokens"] == 143
    assert stats["cached tokens"] <= stats["capacity"] <= options.get("limit", capacity(143, model_config(model), 2))
    assert stats["resident tokens"] <= stats["capacity"] + 4 + 16 + 4
    assert (stats["hits"] == 0) == (options.get("limit") == 0)
    assert stats["bytes moved"] > 0
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(generate(model, ids), generate(model, ids, cache=cache))


def model_config(model):
    return HiPConfig.from_dict(model.config.hip)


@torch.no_grad()
def logits(model, ids, cache, begin, end):
    mask = padding(2, 130, [37, 0])[:, :end]
    return model(input_ids=ids[:, begin:end], attention_mask=mask, cache=cache).logits


def test_chunked_prompts_and_bitwise_decoding(model, ids):
    from transformers import DynamicCache

    for cache_options in ({}, {"limit": 12}):
        plain, offloaded = DynamicCache(), OffloadedCache.of(model, **cache_options)
        for begin, end in ((0, 60), (60, 100), (100, 101), (101, 102), (102, 103), (103, 130)):
            assert torch.equal(logits(model, ids, plain, begin, end), logits(model, ids, offloaded, begin, end))


def test_check_finite_with_offloading(llama):
    model = enable_hip(llama(), small(mask_k=16, check_finite=True))
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="k holds NaN"):
        model(input_ids=torch.ones(1, 50, dtype=torch.int64), cache=OffloadedCache.of(model))


def test_beams(model, ids):
    found = [generate(model, ids, 6, num_beams=3, **o) for o in ({}, {"cache": OffloadedCache.of(model)})]
    assert torch.equal(*found)


def test_crop_goes_back(model, ids):
    cache = OffloadedCache.of(model)
    logits(model, ids, cache, 0, 100)
    wanted = logits(model, ids, copy.deepcopy(cache), 100, 101)
    logits(model, ids, cache, 100, 110)
    cache.crop(-10)
    assert torch.equal(logits(model, ids, cache, 100, 101), wanted)
    with pytest.raises(ValueError, match="negative"):
        cache.crop(5)
    cache.batch_repeat_interleave(2)
    assert cache.layers[2].host[0].view.shape[0] == 4


def test_a_saved_session_goes_on(model, ids, tmp_path):
    cache = OffloadedCache.of(model)
    for begin, end in ((0, 100), (100, 101), (101, 102)):
        logits(model, ids, cache, begin, end)
    torch.save(cache.state_dict(), tmp_path / "session.pt")
    restored = OffloadedCache.of(model)
    restored.load_state_dict(torch.load(tmp_path / "session.pt", weights_only=True))
    assert restored.layers[2].decoding.steps == cache.layers[2].decoding.steps == 1
    for at in range(102, 108):
        assert torch.equal(logits(model, ids, cache, at, at + 1), logits(model, ids, restored, at, at + 1))
    other = OffloadedCache(small(), 3)
    with pytest.raises(InputError, match="other settings"):
        other.load_state_dict(cache.state_dict())


def test_an_exception_leaves_the_cache_whole(model, ids, monkeypatch):
    cache = OffloadedCache.of(model)
    logits(model, ids, cache, 0, 100)
    layer = cache.layers[1]
    gather, calls = BlockCache.gather, []

    def killed(self, *args):
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return gather(self, *args)

    monkeypatch.setattr(BlockCache, "gather", killed)
    with pytest.raises(Killed):
        logits(model, ids, cache, 100, 101)
    monkeypatch.undo()
    for part in (layer.search_cache, layer.attended_cache):
        row, slot = (part.owner >= 0).nonzero(as_tuple=True)
        assert torch.equal(part.table[row, part.owner[row, slot].long()].long(), slot)
        assert (part.table >= 0).sum() == len(row)
    assert layer.decoding.length == 100


def test_a_table_and_its_slots():
    store = HostStore(torch.zeros(1, 1, 0, 2))
    store.append(torch.arange(40.0).view(1, 1, 20, 2))
    cache = BlockCache([store], 1, 2)
    cache.resize(10, 3)
    row, origin = torch.zeros(1, dtype=torch.int64), torch.tensor([0])

    def read(*blocks):
        found = cache.gather(row, torch.tensor([blocks]), torch.zeros(1, len(blocks), dtype=torch.int64), origin)[0]
        assert found[0, :, 0].tolist() == [4.0 * b for b in blocks]
        cache.settle()
        return cache.hits, cache.misses

    assert read(1, 2, 3) == (0, 3)
    assert read(1, 1, 2) == (2, 3)
    assert read(4) == (2, 4)  # block 3, used least recently, goes
    assert read(1, 2, 4) == (5, 4)
    assert read(3) == (5, 5)
    assert cache.resident == 6
    assert read(9, 8, 7, 6, 5) == (5, 10)  # more than there is room for
    assert cache.resident == 6


@pytest.mark.parametrize(("eviction", "gone"), [("lru", 1), ("fifo", 1), ("temperature", 2)])
def test_who_goes_first(eviction, gone):
    """Block 1 came first and was used three times, blocks 2 and 3 once each, later."""
    store = HostStore(torch.zeros(1, 1, 0, 2))
    store.append(torch.zeros(1, 1, 20, 2))
    cache = BlockCache([store], 1, 2, eviction)
    cache.resize(10, 3)
    row, zero = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64)
    for block in (1, 1, 1, 2, 3, 4):
        cache.gather(row, torch.tensor([[block]]), zero, row)
    cache.settle()
    assert sorted(cache.owner[0].tolist()) == sorted({1, 2, 3, 4} - {gone})


def test_the_host_says_what_it_lacks(monkeypatch):
    layer = OffloadedLayer(small())
    layer.update(torch.zeros(1, 1, 5, 8), torch.zeros(1, 1, 5, 8))

    def full(*args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch, "empty", full)
    new = torch.zeros(1, 1, 100, 8)
    with pytest.raises(MemoryError, match="no 4,096 bytes"):
        layer.update(new, new)
    monkeypatch.undo()
    assert layer.get_seq_length() == 5
    assert layer.host[1].length == 5
    assert layer.recent[0].shape[2] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_share": 2.0}, "from 0 to 1"),
        ({"limit": -1}, "not be negative"),
        ({"scale": 0.0}, "positive"),
        ({"eviction": "mru"}, "one of lru, fifo, temperature"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        OffloadedCache(small(), 3, **options)
