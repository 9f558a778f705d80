from itertools import combinations, product

import numpy as np
import pytest
import torch

from iclr_interp.identifiability.alignments import count_neuron_sets, find_alignments, interchange_accuracy, neuron_sets
from iclr_interp.identifiability.examples import TRAINED, UNIQUE
from iclr_interp.identifiability.formulas import (
    Formula,
    _fewest_negations,
    _negated,
    candidate_formulas,
    parse_formula,
    skeletons,
)
from iclr_interp.identifiability.gates import GATES, corners, truth_table
from iclr_interp.identifiability.networks import MLP
from iclr_interp.identifiability.search import SearchTooLargeError
from iclr_shared.errors import InputError

X = corners(2)


def test_reference_counts():
    assert len(skeletons(2, 3)) == 88
    assert len(skeletons(2, 2)) == 10
    assert len(candidate_formulas("XOR", 3)) == 56
    assert len(candidate_formulas("XOR", 2)) == 2
    for gate in ("AND", "OR", "IMP", "NAND", "NOR", "NIMP"):
        assert len(candidate_formulas(gate, 3)) == 86
        assert len(candidate_formulas(gate, 2)) == 8


@pytest.mark.parametrize("gate", ["XOR", "IMP", "NOR"])
def test_candidates_compute_their_gate(gate):
    formulas = candidate_formulas(gate, 3)
    for formula in formulas:
        np.testing.assert_array_equal(formula.evaluate(X), truth_table(gate))
    assert len(set(map(str, formulas))) == len(formulas)


def by_trying_every_pattern(skeleton, table):
    """Subsets of the nodes, numbered in preorder, in increasing size."""

    def negated(node, nodes, at=0):
        own, at, children = at, at + 1, []
        for child in node.children:
            child, at = negated(child, nodes, at)
            children.append(child)
        whole = Formula(node.kind, tuple(children), node.variable)
        return (Formula("not", (whole,)) if own in nodes else whole), at

    size = negated(skeleton, ())[1]
    for number in range(size + 1):
        for nodes in combinations(range(size), number):
            formula = negated(skeleton, nodes)[0]
            if (formula.evaluate(corners(2)) == table).all():
                return formula
    return None


@pytest.mark.parametrize("gate", ["XOR", "IMP", "0101"])
def test_negations_by_trying_every_pattern(gate):
    tried = [by_trying_every_pattern(s, truth_table(gate)) for s in skeletons(2, 2, "all")]
    assert candidate_formulas(gate, 2, "all") == [formula for formula in tried if formula is not None]


def test_negations_of_deep_skeletons():
    """31 nodes have 2^31 patterns."""
    left, right = skeletons(2, 3)[-2:]
    leaves, full = [0b1100, 0b1010], 0b1111  # bit x is corner x
    nodes = _fewest_negations(Formula("or", (left, right)), 0b0110, leaves, full, {})
    formula = _negated(Formula("or", (left, right)), set(nodes))[0]
    np.testing.assert_array_equal(formula.evaluate(X), truth_table("XOR"))


def test_bad_depths():
    with pytest.raises(InputError, match="lower the depth"):
        candidate_formulas("MAJORITY", 4)
    with pytest.raises(InputError, match="depth must be at least 1"):
        candidate_formulas("XOR", 0)


def test_every_pair_finds_more():
    assert len(skeletons(2, 3, "all")) > 88
    trees = [str(f) for f in skeletons(2, 2, "all")]
    assert len(set(trees)) == len(trees)


def test_against_an_independent_evaluation():
    sympy = pytest.importorskip("sympy")  # comes with torch
    for formula in candidate_formulas("XOR", 3)[::5]:
        text = str(formula).replace("¬", "~").replace("*", "&").replace("+", "|")
        expression = sympy.sympify(text)
        for a, b in product((False, True), repeat=2):
            assert bool(expression.subs({"A": a, "B": b})) == (a != b)


@pytest.mark.parametrize("text", ["(A+B)*¬(A*B)", "(A*¬B)+(¬A*B)", "¬(A*B)", "A", "(A*B)+C"])
def test_formulas_round_trip(text):
    assert str(parse_formula(text)) == text


def test_other_signs_and_precedence():
    assert parse_formula("A & ~B | ~A & B") == parse_formula("(A*¬B)+(¬A*B)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(A+B", "not closed"),
        ("A+", "found the end"),
        ("A B", "unexpected B"),
        ("a", "found a"),
        ("A)", "unexpected \\)"),
    ],
)
def test_bad_formulas(text, message):
    with pytest.raises(InputError, match=message):
        parse_formula(text)


def test_inner_nodes():
    names = [str(node) for node in parse_formula("(A+B)*¬(A*B)").inner_nodes()]
    assert names == ["A+B", "¬(A*B)"]
    assert [str(node) for node in parse_formula("(A*¬B)+(¬A*B)").inner_nodes()] == ["A*¬B", "¬A*B"]
    assert parse_formula("A*B").inner_nodes() == []
    assert [str(node) for node in parse_formula("¬(A*(B+A))").inner_nodes()] == ["B+A"]


def test_the_unique_network_aligns_where_it_was_built():
    formula = parse_formula("(A+B)*¬(A*B)")
    [[mapping]] = find_alignments(UNIQUE, formula)
    assert mapping.neurons == (((1, 0),), ((1, 1),))
    [wrong] = find_alignments(UNIQUE, parse_formula("(A*¬B)+(¬A*B)"))
    assert wrong == []


def intervene(model, formula, node, neurons, ordered):
    """The definition, in loops."""
    runs = [model.activations(torch.as_tensor(X[i : i + 1])) for i in range(4)]
    right = total = 0
    for base in range(4):
        for source in range(4):
            if base == source or (not ordered and source > base):
                continue
            h = runs[base][0]
            for layer, (W, b) in enumerate(zip(model.weights, model.biases, strict=True), 1):
                h = h @ W.T + b
                if layer < len(model.weights):
                    h = model.act(h).clone()
                    for at, i in neurons:
                        if at == layer:
                            h[0, i] = runs[source][layer][0, i]
            high = formula.evaluate(X[base : base + 1], {node: node.evaluate(X[source : source + 1])})
            right += bool(h[0, 0] > 0.5) == bool(high[0])
            total += 1
    return right / total


@pytest.mark.parametrize("pairs", ["ordered", "unordered"])
def test_interchanges_against_the_definition(pairs):
    formula = parse_formula("(A+B)*¬(A*B)")
    for neurons in list(neuron_sets(TRAINED.sizes, distributed=True))[::9]:
        for node in formula.inner_nodes():
            expected = intervene(TRAINED, formula, node, neurons, pairs == "ordered")
            assert interchange_accuracy(TRAINED, formula, node, neurons, pairs) == pytest.approx(expected)


def test_mappings_are_minimal_disjoint_and_perfect():
    formulas = candidate_formulas("XOR", 3)
    every, minimal = (find_alignments(TRAINED, formulas, minimal=least) for least in (False, True))
    assert sum(map(len, minimal)) > 0
    for formula, whole, least in zip(formulas, every, minimal, strict=True):
        assert set(least) == {m for m in whole if not any(other != m and other <= m for other in whole)}
        for mapping in least:
            assert len(sum(mapping.neurons, ())) == len(set(sum(mapping.neurons, ())))
            for node, neurons in zip(mapping.nodes, mapping.neurons, strict=True):
                assert interchange_accuracy(TRAINED, formula, node, neurons) == 1
    wide = find_alignments(TRAINED, formulas, distributed=True, minimal=False)
    assert all(set(narrow) <= set(whole) for narrow, whole in zip(every, wide, strict=True))


def test_neuron_sets():
    assert len(list(neuron_sets((2, 3, 3, 1)))) == 14
    assert len(list(neuron_sets((2, 3, 3, 1), distributed=True))) == 14 + 49
    for sizes in ((2, 1), (2, 4, 1), (2, 3, 2, 3, 1)):
        for wide in (False, True):
            assert count_neuron_sets(sizes, wide) == len(list(neuron_sets(sizes, wide)))
    broad = MLP([np.ones((20, 2)), np.ones((1, 20))], [np.ones(20), np.ones(1)])
    with pytest.raises(SearchTooLargeError, match="1,048,575 sets of neurons"):
        find_alignments(broad, parse_formula("(A+B)*B"))


def test_nodes_and_neurons_that_are_not_there():
    formula = parse_formula("(A+B)*¬(A*B)")
    same = parse_formula("A+B")  # equal to a node of the formula, and no part of it
    assert interchange_accuracy(UNIQUE, formula, same, ((1, 0),)) == 1
    assert interchange_accuracy(UNIQUE, formula, same, ((1, 1),)) < 1
    for node in (parse_formula("A*B"), formula):
        with pytest.raises(InputError, match="is 0 of the nodes"):
            interchange_accuracy(UNIQUE, formula, node, ((1, 0),))
    with pytest.raises(InputError, match="is 2 of the nodes"):
        interchange_accuracy(UNIQUE, parse_formula("(A*B)+(A*B)"), parse_formula("A*B"), ((1, 0),))
    for neuron in ((0, 0), (2, 0), (1, 2), (1, -1)):
        with pytest.raises(InputError, match="no hidden neuron"):
            interchange_accuracy(UNIQUE, formula, same, (neuron,))


def test_variables_that_the_network_lacks():
    with pytest.raises(InputError, match="variable C, the network only 2 inputs"):
        find_alignments(UNIQUE, parse_formula("(A+C)*B"))
    assert set(GATES) >= {"XOR", "MAJORITY"}
