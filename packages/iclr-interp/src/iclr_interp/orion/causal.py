"""The high-level causal graph of retrieval, and what interchanging its nodes predicts (§2.4)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Protocol, runtime_checkable

from iclr_interp.orion.retrieval import AmbiguousAnswerError, Entity, NoAnswerError, Query, answer, attribute, find
from iclr_shared.errors import InputError

#: What a patched residual may carry, in this order everywhere: nothing, the request, the answer.
HYPOTHESES = ("nil", "query", "output")


@runtime_checkable
class Abstract(Protocol):
    """What has an abstract request and context, such as a `Prompt`."""

    query: Query
    context: Sequence[Entity]


@dataclass(frozen=True, eq=False)
class CausalGraph:
    """A node together with all that it is computed from; the node that is asked for stands for the whole graph.

    Args:
        name: unique in the graph.
        function: of the children's values, in their order; None makes the node a leaf, which reads its input.
        children: the nodes that `function` takes.
        output: type of the value.

    Raises:
        InputError: if two nodes share a name, or a leaf has children.
    """

    name: str
    function: Callable[..., Any] | None = None
    children: tuple["CausalGraph", ...] = ()
    output: type = object

    def __post_init__(self):
        if self.function is None and self.children:
            raise InputError(f"The node {self.name!r} has children but no function.")
        seen: dict[str, CausalGraph] = {}
        for node in self.nodes():
            if seen.setdefault(node.name, node) is not node:
                raise InputError(f"Two nodes are called {node.name!r}; names must be unique.")

    def nodes(self) -> Iterator["CausalGraph"]:
        """This node and all below it; a shared node comes once for each path."""
        yield self
        for child in self.children:
            yield from child.nodes()

    def run(self, inputs: Mapping[str, Any], fixed_inputs: Mapping[str, Mapping[str, Any]] | None = None) -> Any:
        """The value on `inputs`, where each node named in `fixed_inputs` keeps its value on that other input.

        Raises:
            InputError: if an input is missing, `fixed_inputs` names no node, or a value has the wrong type.
        """
        fixed_inputs = fixed_inputs or {}
        if unknown := set(fixed_inputs) - {node.name for node in self.nodes()}:
            names = ", ".join(sorted({node.name for node in self.nodes()}))
            raise InputError(f"There is no node {sorted(unknown)[0]!r}; the graph has {names}.")
        return self._value(inputs, fixed_inputs, {})

    def _value(self, inputs, fixed, known):
        if self.name not in known:
            if self.name in fixed:
                value = self._value(fixed[self.name], {}, {})
            elif self.function is None:
                if self.name not in inputs:
                    raise InputError(f"The leaf {self.name!r} needs an input.")
                value = inputs[self.name]
            else:
                value = self.function(*(child._value(inputs, fixed, known) for child in self.children))
            if not isinstance(value, self.output):
                raise InputError(f"The node {self.name!r} gave {value!r}, not a {self.output.__name__}.")
            known[self.name] = value
        return known[self.name]


def retrieval_graph(fine: bool = False) -> CausalGraph:
    """query, context → output = R(C), with a node ``nil`` that depends on the context and carries nothing.

    Args:
        fine: split the output into filter and attribute of the query, the entity found, and its attribute.
    """
    query, context = CausalGraph("query", output=Query), CausalGraph("context", output=Sequence)
    nil = CausalGraph("nil", lambda _: None, (context,), NoneType)
    if not fine:
        return CausalGraph("output", lambda q, c, _: answer(q, c), (query, context, nil), str)
    conditions = CausalGraph("filter", lambda q: q.where, (query,), frozenset)
    wanted = CausalGraph("attribute", lambda q: q.attribute, (query,), str)
    entity = CausalGraph("entity", find, (conditions, context), Entity)
    return CausalGraph("output", lambda e, a, _: attribute(e, a), (entity, wanted, nil), str)


def interchange_expected(
    pairs: Iterable[tuple[Abstract, Abstract]], graph: CausalGraph | None = None, nodes: Sequence[str] = HYPOTHESES
) -> list[dict[str, str | None]]:
    """The output on the target when one node keeps its value on the source, for each pair and node.

    With the coarse graph these are the three hypotheses of request-patching: ``nil`` R₂(C₂), ``query`` R₁(C₂),
    ``output`` R₁(C₁).

    Args:
        pairs: (target 2, source 1).
        graph: default the coarse one.
        nodes: which nodes to interchange.

    Returns:
        For each pair the predicted answers by node; None where the query has no single answer.
    """
    graph = graph or retrieval_graph()
    return [{node: _interchanged(graph, target, source, node) for node in nodes} for target, source in pairs]


def _interchanged(graph: CausalGraph, target: Abstract, source: Abstract, node: str) -> str | None:
    inputs = [{"query": item.query, "context": item.context} for item in (target, source)]
    try:
        return graph.run(inputs[0], {node: inputs[1]})
    except (NoAnswerError, AmbiguousAnswerError):
        return None
