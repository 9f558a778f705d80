"""The space of circuits, and the search in blocks against one masked forward pass for each circuit."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_interp.identifiability.circuits import (
    Circuit,
    count_circuits,
    covering_matrices,
    enumerate_circuits,
    sample_circuits,
)
from iclr_interp.identifiability.examples import IDLE, TRAINED, UNIQUE
from iclr_interp.identifiability.gates import corners, truth_table
from iclr_interp.identifiability.networks import MLP
from iclr_interp.identifiability.search import SearchTooLargeError, circuit_activations, find_circuits, masked_outputs
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError, Unavailable

X, XOR = corners(2), truth_table("XOR")[:, None]


@pytest.mark.parametrize(
    ("sizes", "valid", "official"),
    [
        ((2, 2, 1), 9, 2), ((2, 3, 1), 49, 24), ((2, 2, 2, 1), 69, 20), ((2, 3, 3, 1), 9625, 3000),
        ((2, 4, 4, 1), 4_346_385, 1_067_648), ((2, 5, 5, 1), 7_271_931_361, 1_247_432_400),
        ((3, 3, 3, 1), 94_591, 24_366), ((2, 3, 3, 3, 1), 2_568_433, 812_808),
    ],
)  # fmt: skip
def test_reference_counts(sizes, valid, official):
    assert count_circuits(sizes, include_all_nodes=True) == valid
    assert count_circuits(sizes) == official


@pytest.mark.parametrize(("rows", "columns", "count"), [(1, 5, 1), (2, 2, 7), (2, 3, 25), (3, 3, 265)])
def test_covering_matrices(rows, columns, count):
    assert covering_matrices(rows, columns) == covering_matrices(columns, rows) == count


def valid_by_definition(sizes):
    """All edge masks that keep the three rules, by trying every one."""
    shapes = list(zip(sizes[1:], sizes, strict=False))
    for bits in product((0, 1), repeat=sum(a * b for a, b in shapes)):
        masks, at = [], 0
        for a, b in shapes:
            masks.append(np.array(bits[at : at + a * b], bool).reshape(a, b))
            at += a * b
        active = [np.ones(sizes[0], bool), *(mask.any(1) for mask in masks)]
        sends = [*(mask.any(0) for mask in masks), np.ones(sizes[-1], bool)]
        if active[-1].all() and all((a == s).all() for a, s in zip(active, sends, strict=True)):
            yield Circuit.from_masks(sizes, masks)


@pytest.mark.parametrize("sizes", [(2, 2, 1), (2, 3, 1), (2, 2, 2, 1), (2, 2, 2)])
def test_enumeration_against_the_definition(sizes):
    found = list(enumerate_circuits(sizes, include_all_nodes=True))
    assert len(found) == len(set(found)) == count_circuits(sizes, True)
    assert set(found) == set(valid_by_definition(sizes))


def test_masks_come_back():
    for circuit in enumerate_circuits((2, 2, 2, 1)):
        assert Circuit.from_masks(circuit.sizes, circuit.masks()) == circuit


@given(st.lists(st.integers(1, 3), min_size=1, max_size=2), st.floats(0, 0.6), st.booleans())
@settings(max_examples=20)
def test_enumeration_has_the_closed_forms_number(hidden, sparsity, every):
    sizes = (2, *hidden, 1)
    assert sum(1 for _ in enumerate_circuits(sizes, every, sparsity)) == count_circuits(sizes, every, sparsity)


@pytest.mark.parametrize(
    ("model", "every", "perfect"), [(UNIQUE, True, 1), (IDLE, True, 4), (TRAINED, True, 158), (TRAINED, False, 40)]
)
def test_reference_networks(model, every, perfect):
    table = find_circuits(model, X, XOR, include_all_nodes=every)
    assert len(table) == perfect
    assert table.searched == count_circuits(model.sizes, every)


def test_all_9625_against_one_forward_pass_each():
    every = find_circuits(TRAINED, X, XOR, threshold=-1.0, include_all_nodes=True)
    assert len(every) == 9625
    wanted = TRAINED(torch.as_tensor(X))
    for index in range(0, 9625, 137):
        outputs = circuit_activations(TRAINED, every[index], torch.as_tensor(X))[-1]
        assert every.accuracy[index] == (outputs.round().numpy() == XOR).mean()
        assert every.agreement[index] == (outputs.round() == wanted.round()).double().mean()
        assert every.similarity[index] == pytest.approx(1 - float((outputs - wanted).square().mean()))
    batched = masked_outputs(TRAINED, every.edges, torch.as_tensor(X, dtype=torch.float64))
    np.testing.assert_array_equal((batched.round().numpy() == XOR).all(2).mean(1), every.accuracy)


def test_outputs_in_a_row():
    assert set(find_circuits(TRAINED, X, XOR[:, 0] > 0)) == set(find_circuits(TRAINED, X, XOR))


def test_several_outputs():
    rng = np.random.default_rng(0)
    model = MLP([rng.normal(size=(2, 2)), rng.normal(size=(2, 2))], [rng.normal(size=2), rng.normal(size=2)], "tanh")
    y = (rng.random((4, 2)) < 0.5).astype(int)
    table = find_circuits(model, X, y, threshold=-1.0, include_all_nodes=True)
    assert len(table) == count_circuits((2, 2, 2), True)
    for index, circuit in enumerate(table):
        right = (circuit_activations(model, circuit, torch.as_tensor(X))[-1].round().numpy() == y).all(1)
        assert table.accuracy[index] == right.mean()


def test_equal_rows_count_as_often_as_they_occur():
    rows = np.array([0, 0, 0, 1, 2, 3])
    table = find_circuits(TRAINED, X[rows], XOR[rows], threshold=-1.0)
    index = 17
    outputs = circuit_activations(TRAINED, table[index], torch.as_tensor(X[rows]))[-1]
    assert table.accuracy[index] == pytest.approx((outputs.round().numpy() == XOR[rows]).mean())


def test_blocks_do_not_matter(monkeypatch):
    whole = find_circuits(TRAINED, X, XOR)
    monkeypatch.setattr("iclr_interp.identifiability.search.BLOCK", 7)
    small = find_circuits(TRAINED, X, XOR)
    monkeypatch.setattr("iclr_interp.identifiability.search.CELLS", 1)
    least = find_circuits(TRAINED, X, XOR)
    for table in (small, least):
        assert list(table) == list(whole)
        np.testing.assert_allclose(table.similarity, whole.similarity)


def test_order_overlap_and_sparsity():
    table = find_circuits(TRAINED, X, XOR)
    masks = [circuit.masks() for circuit in table]
    within = np.array([[all((~a | b).all() for a, b in zip(i, j, strict=True)) for j in masks] for i in masks])
    np.testing.assert_array_equal(table.within(), within)
    np.testing.assert_array_equal(table.minimal(), within.sum(0) == 1)
    bits = [np.concatenate([*(m.any(1) for m in mask[:-1]), *(m.ravel() for m in mask)]) for mask in masks]
    overlaps = [(a & b).sum() / (a | b).sum() for i, a in enumerate(bits) for b in bits[:i]]
    assert table.jaccard() == pytest.approx(np.mean(overlaps), rel=1e-6)
    n = len(table)
    assert table.comparable() == pytest.approx((within.sum() - n) / (n * (n - 1) / 2))
    np.testing.assert_allclose(table.sparsity(), [1 - b.mean() for b in bits])
    np.testing.assert_allclose(table.sparsity("nodes"), [1 - b[:6].mean() for b in bits])


def test_random_samples_are_valid_and_uniform():
    edges = sample_circuits((2, 2, 2, 1), 4000, np.random.default_rng(0))
    drawn = [Circuit((2, 2, 2, 1), tuple(tuple(map(int, rows[i])) for rows in edges)) for i in range(4000)]
    every = list(enumerate_circuits((2, 2, 2, 1)))
    counts = np.array([drawn.count(circuit) for circuit in every])
    assert counts.sum() == 4000
    assert ((counts - 200) ** 2 / 200).sum() < 45  # chi-square, 19 degrees of freedom, one in a thousand


def test_a_draw_of_wide_layers_ends():
    edges = sample_circuits((40, 1, 30, 1), 20, np.random.default_rng(0))
    assert (edges[0] == 2**40 - 1).all()
    for row in range(20):
        circuit = Circuit((40, 1, 30, 1), tuple(tuple(map(int, part[row])) for part in edges))
        assert Circuit.from_masks(circuit.sizes, circuit.masks()) == circuit


def test_a_sample_estimates_the_number():
    table = find_circuits(TRAINED, X, XOR, sample=1500, rng=np.random.default_rng(0))
    assert (table.sampled, table.searched, table.space) == (True, 1500, 3000)
    assert len(set(table)) == len(table)
    number, error = table.estimate()
    assert abs(number - 40) < 4 * error
    whole = find_circuits(TRAINED, X, XOR, sample=3000, rng=np.random.default_rng(0))
    assert not whole.sampled
    assert whole.estimate() == (40, 0)


def test_resume_gives_the_same_circuits(tmp_path):
    seen = []

    def stop(blocks):
        for i, block in enumerate(blocks):
            if i == 20:
                raise KeyboardInterrupt
            yield block

    def watch(blocks):
        for block in blocks:
            seen.append(block)
            yield block

    with pytest.raises(KeyboardInterrupt):
        find_circuits(TRAINED, X, XOR, checkpoint=Checkpoint(tmp_path, every_s=0), progress=stop)
    again = find_circuits(TRAINED, X, XOR, checkpoint=Checkpoint(tmp_path), progress=watch)
    assert set(again) == set(find_circuits(TRAINED, X, XOR))


def test_another_search_does_not_go_on_from_the_checkpoint(tmp_path):
    find_circuits(TRAINED, X, XOR, checkpoint=Checkpoint(tmp_path, every_s=0))
    other = MLP([-W for W in TRAINED.weights], TRAINED.biases)
    for model, options in ((other, {}), (TRAINED, {"threshold": 0.5}), (TRAINED, {"include_all_nodes": True})):
        again = find_circuits(model, X, XOR, checkpoint=Checkpoint(tmp_path), **options)
        assert set(again) == set(find_circuits(model, X, XOR, **options))


def test_pairs_in_blocks(monkeypatch):
    table = find_circuits(TRAINED, X, XOR)
    whole = table.within(), table.minimal(), table.comparable(), table.jaccard()
    monkeypatch.setattr("iclr_interp.identifiability.search.PAIRS", 100)
    for a, b in zip(whole, (table.within(), table.minimal(), table.comparable(), table.jaccard()), strict=True):
        np.testing.assert_allclose(a, b)


def test_no_accepted_circuit():
    table = find_circuits(TRAINED, X, 1 - XOR)
    assert len(table) == len(table.minimal()) == len(table.within()) == 0
    assert np.isnan(table.jaccard())


@pytest.mark.gpu
def test_all_9625_on_the_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA")
    options = {"threshold": -1.0, "include_all_nodes": True}
    here, there = (find_circuits(TRAINED, X, XOR, device=device, **options) for device in ("cpu", "cuda"))
    for name in ("accuracy", "agreement", "similarity"):
        np.testing.assert_allclose(getattr(here, name), getattr(there, name), atol=1e-12)


def test_tables_are_saved(tmp_path):
    table = find_circuits(TRAINED, X, XOR)
    table.save(tmp_path / "circuits.npz")
    with np.load(tmp_path / "circuits.npz") as file:
        np.testing.assert_array_equal(file["edges1"], table.edges[1])
        assert file["searched"] == file["space"] == 3000


def test_too_large_a_search_says_how_large():
    model = MLP([np.ones((5, 2)), np.ones((5, 5)), np.ones((1, 5))], [np.zeros(5), np.zeros(5), np.zeros(1)])
    with pytest.raises(SearchTooLargeError, match=r"2-5-5-1 has 1,247,432,400 circuits .* evaluate a sample"):
        find_circuits(model, X, XOR)
    assert find_circuits(model, X, XOR, sample=50, rng=np.random.default_rng(0)).searched == 50
    with pytest.raises(SearchTooLargeError, match="leave out the circuits that keep every neuron"):
        find_circuits(model, X, XOR, include_all_nodes=True)
    sizes = (784, 128, 128, 1)
    wide = MLP([np.ones((m, n)) for n, m in pairwise(sizes)], [np.ones(m) for m in sizes[1:]])
    with pytest.raises(SearchTooLargeError, match=r"784-128-128-1 has over 2\^114534 circuits, .*head"):
        find_circuits(wide, np.zeros((1, 784)), np.zeros((1, 1)))
    with pytest.raises(InputError, match="64 neurons; circuits of at most 62"):
        sample_circuits((64, 1, 1), 5, np.random.default_rng(0), include_all_nodes=True)
    with pytest.raises(InputError, match="No circuit"):
        sample_circuits((2, 2, 1), 5, np.random.default_rng(0), min_sparsity=0.9)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ([np.ones((2, 2), bool)], "2 linear layers, got 1 edge masks"),
        ([np.ones((2, 2), bool), np.ones((1, 3), bool)], r"layer 2 has shape \(1, 3\)"),
        (
            [np.array([[True, True], [False, False]]), np.ones((1, 2), bool)],
            "Neuron 1 of layer 1 sends but is not active",
        ),
        ([np.ones((2, 2), bool), np.array([[True, False]])], "Neuron 1 of layer 1 is active but sends nowhere"),
        ([np.array([[True, False], [True, False]]), np.ones((1, 2), bool)], "Neuron 1 of layer 0 is active but sends"),
    ],
)
def test_masks_that_break_a_rule(masks, message):
    with pytest.raises(InputError, match=message):
        Circuit.from_masks((2, 2, 1), masks)


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (X[:, :1], XOR, {}, "do not fit"),
        (X, np.ones((4, 2), int), {}, "do not fit"),
        (X, 0.5 + 0.0 * XOR, {}, "must be 0 or 1"),
        (X[:2], XOR, {}, "do not fit"),
        (X * np.nan, XOR, {}, "inputs hold NaN"),
        (X, XOR, {"sample": 5}, "generator rng"),
        (X, XOR, {"min_sparsity": 1.0}, "min_sparsity"),
    ],
)
def test_bad_searches(x, y, options, message):
    with pytest.raises(InputError, match=message):
        find_circuits(UNIQUE, x, y, **options)


def test_a_device_that_is_not_there():
    with pytest.raises(Unavailable, match="'nonsense' cannot be used"):
        find_circuits(UNIQUE, X, XOR, device="nonsense")
