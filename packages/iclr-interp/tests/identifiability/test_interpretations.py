from itertools import product

import numpy as np
import torch

from iclr_interp.identifiability.examples import IDLE, TRAINED, UNIQUE
from iclr_interp.identifiability.gates import NAMES, corners, truth_table
from iclr_interp.identifiability.interpretations import (
    completions,
    count_interpretations,
    iter_interpretations,
    separations,
)
from iclr_interp.identifiability.networks import MLP
from iclr_interp.identifiability.report import whole_network
from iclr_interp.identifiability.search import circuit_activations, find_circuits

X, XOR = corners(2), truth_table("XOR")[:, None]


def test_the_unique_network_has_one_reading():
    [circuit] = find_circuits(UNIQUE, X, XOR, include_all_nodes=True)
    assert count_interpretations(UNIQUE, circuit, X) == 1
    [reading] = iter_interpretations(UNIQUE, circuit, X)
    assert [reading.tables[1, 0], reading.tables[1, 1]] == [0b1110, 0b1000]  # OR and AND; bit x is corner x
    assert reading.name((2, 0)) == "A_NIMPLY_B"


def test_an_idle_neuron_multiplies_readings():
    table = find_circuits(IDLE, X, XOR, include_all_nodes=True)
    assert sorted(count_interpretations(IDLE, circuit, X) for circuit in table) == [1, 1, 1, 32]


def test_the_trained_network():
    counts = [count_interpretations(TRAINED, circuit, X) for circuit in find_circuits(TRAINED, X, XOR)]
    assert sum(counts) == 3932
    assert sorted(counts)[-3:] == [336, 480, 1280]
    assert count_interpretations(TRAINED, whole_network(TRAINED), X) == 22_609_920


def test_counting_is_listing():
    for circuit in list(find_circuits(TRAINED, X, XOR))[::4]:
        listed = list(iter_interpretations(TRAINED, circuit, X))
        assert len(listed) == count_interpretations(TRAINED, circuit, X)
        assert len({(str(r.thresholds), str(r.gates)) for r in listed}) == len(listed)


def test_every_reading_is_consistent():
    circuit = max(find_circuits(TRAINED, X, XOR), key=lambda c: count_interpretations(TRAINED, c, X))
    values = circuit_activations(TRAINED, circuit, torch.as_tensor(X))
    values[-1] = values[-1].round()
    for reading in list(iter_interpretations(TRAINED, circuit, X))[::97]:
        for (layer, i), cut in reading.thresholds.items():
            bits = (values[layer][:, i] > cut).tolist()
            assert bits == [bool(reading.tables[layer, i] >> x & 1) for x in range(4)]
        for node, (parents, gate) in reading.gates.items():
            for x in range(4):
                row = int("".join(str(reading.tables[parent] >> x & 1) for parent in parents), 2)
                assert gate[row] == reading.tables[node] >> x & 1


def test_completions_by_trying_all_gates():
    rng = np.random.default_rng(0)
    for _ in range(200):
        k = int(rng.integers(0, 4))
        table, parents = int(rng.integers(16)), [int(p) for p in rng.integers(16, size=k)]
        rows = [tuple(p >> x & 1 for p in parents) for x in range(4)]
        every = list(product((0, 1), repeat=k))
        count = 0
        for gate in product((0, 1), repeat=2**k):
            if k == 2 and gate in ((0, 1, 1, 0), (1, 0, 0, 1)):
                continue
            count += all(gate[every.index(row)] == table >> x & 1 for x, row in enumerate(rows))
        assert completions(table, parents, 4) == count


def test_separations():
    assert separations(np.array([0.0, 2.0, 2.0, 1.0])) == [(0.5, 0b1110), (1.5, 0b0110)]
    assert separations(np.ones(4)) == []
    next_to_one = np.nextafter(1.0, 2.0)  # the midpoint is one of the two
    assert separations(np.array([1.0, next_to_one]))[0][1] == 0b10


def test_constant_neurons_carry_nothing():
    dead = MLP((np.vstack([UNIQUE.weights[0], [[0, 0]]]), [[1, -2, 1]]), ([0, -1, 0], [0]), "relu")
    assert count_interpretations(dead, whole_network(dead), X) == 1


def test_gate_names():
    assert NAMES[0b0110] == "XOR"
    assert NAMES[0b1011] == "B_IMPLY_A"
    assert len(set(NAMES)) == 16
