import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_interp.orion import CausalGraph, Entity, Prompt, Query, answer, interchange_expected, retrieval_graph
from iclr_shared.errors import InputError

TYPES = ("name", "city", "job")


def prompt(values, asked):
    entities = tuple(Entity(v, {"type": t}) for t, v in zip(TYPES, values, strict=True))
    return Prompt((("context", "x"),), Query("name", {"type": asked}), entities)


drawn = st.tuples(st.tuples(*[st.sampled_from("abcdef")] * 3), st.sampled_from(TYPES))


@settings(max_examples=30, deadline=None)
@given(drawn, drawn)
def test_interchanges_are_the_three_hypotheses(target, source):
    target, source = prompt(*target), prompt(*source)
    [found] = interchange_expected([(target, source)])
    assert found == {
        "nil": answer(target.query, target.context),
        "query": answer(source.query, target.context),
        "output": answer(source.query, source.context),
    }
    [fine] = interchange_expected([(target, source)], retrieval_graph(fine=True))
    assert fine == found
    inputs = {"query": target.query, "context": target.context}
    assert retrieval_graph().run(inputs) == found["nil"]


def test_the_fine_graph_moves_filter_and_attribute_apart():
    context = (Entity("Alice", {"city": "Paris"}), Entity("Bob", {"city": "Rome"}))
    target = Prompt((), Query("city", {"name": "Bob"}), context)
    source = Prompt((), Query("name", {"city": "Paris"}), context)
    graph = retrieval_graph(fine=True)
    [found] = interchange_expected([(target, source)], graph, ("filter", "attribute", "entity"))
    assert found == {"filter": "Paris", "attribute": "Bob", "entity": "Paris"}


def test_what_has_no_answer_is_none():
    target = prompt("abc", "city")
    source = Prompt((), Query("age"), target.context)
    assert interchange_expected([(target, source)]) == [{"nil": "b", "query": None, "output": None}]


def test_shared_nodes_are_computed_once():
    calls = []
    leaf = CausalGraph("x", output=int)
    middle = CausalGraph("y", lambda x: calls.append(x) or x + 1, (leaf,), int)
    top = CausalGraph("z", lambda a, b: a * b, (middle, middle), int)
    assert top.run({"x": 2}) == 9
    assert calls == [2]
    assert top.run({"x": 2}, {"y": {"x": 4}}) == 25


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CausalGraph("z", len, (CausalGraph("x"), CausalGraph("x"))), "Two nodes are called 'x'"),
        (lambda: CausalGraph("z", None, (CausalGraph("x"),)), "'z' has children but no function"),
        (lambda: CausalGraph("z", lambda x: x, (CausalGraph("x"),), str).run({"x": 1}), "'z' gave 1, not a str"),
        (lambda: CausalGraph("x").run({}), "leaf 'x' needs an input"),
        (lambda: CausalGraph("x").run({"x": 1}, {"y": {}}), "no node 'y'; the graph has x"),
    ],
)
def test_bad_graphs(make, message):
    with pytest.raises(InputError, match=message):
        make()
