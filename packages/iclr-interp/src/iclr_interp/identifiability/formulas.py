"""Candidate algorithms: formulas of and, or, not, in every shape up to a depth (spec 2.5)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal

import numpy as np
from jaxtyping import Int

from iclr_interp.identifiability.gates import corners, truth_table
from iclr_shared.errors import InputError

#: Formulas of a depth, at most.
MOST = 500_000


@dataclass(frozen=True)
class Formula:
    """A tree of ``"and"``, ``"or"``, ``"not"`` over variables.

    Args:
        kind: ``"variable"``, ``"not"``, ``"and"`` or ``"or"``.
        children: none, one or two.
        variable: index of a variable, 0 for A.
    """

    kind: Literal["variable", "not", "and", "or"]
    children: tuple["Formula", ...] = ()
    variable: int = 0

    def __str__(self) -> str:
        """Infix, ``*`` for and, ``+`` for or, ``¬`` for not, without outer parentheses."""
        if self.kind == "variable":
            return chr(ord("A") + self.variable)
        inner = [f"({child})" if child.kind in ("and", "or") else str(child) for child in self.children]
        return "¬" + inner[0] if self.kind == "not" else ("*" if self.kind == "and" else "+").join(inner)

    def evaluate(self, x: Int[np.ndarray, "X n"], fixed: "dict[Formula, np.ndarray] | None" = None) -> np.ndarray:
        """Values on inputs, ``(X,)``; nodes of `fixed` have the given ones. A node is an occurrence, by identity."""
        if fixed:
            for node, values in fixed.items():
                if node is self:
                    return values
        if self.kind == "variable":
            return x[:, self.variable].astype(bool)
        values = [child.evaluate(x, fixed) for child in self.children]
        return (
            ~values[0] if self.kind == "not" else values[0] & values[1] if self.kind == "and" else values[0] | values[1]
        )

    def inner_nodes(self) -> "list[Formula]":
        """Nodes to be located in a network: all but the root, variables, their negations, and what is under a not.

        A not stands for its child; negated variables stay at the inputs.
        """
        found: list[Formula] = []

        def visit(node: Formula) -> None:
            below = node.children[0].children if node.kind == "not" else node.children
            for child in below:
                bare = child.children[0] if child.kind == "not" else child
                if bare.kind != "variable":
                    found.append(child)
                visit(child)

        visit(self)
        return found


def _binary(kind, left, right) -> Formula:
    return Formula(kind, (left, right))


@cache
def skeletons(variables: int, depth: int, pairs: Literal["official", "all"] = "official") -> tuple[Formula, ...]:
    """Formulas without negation whose depth is at most `depth`, the variables among them.

    Args:
        variables: how many.
        depth: largest number of gates on a path.
        pairs: ``"official"`` takes a pair of children only if the string of the deeper one comes first, which loses
            some pairs of unequal depth; ``"all"`` takes every unordered pair of different children.

    Raises:
        InputError: if there are over `MOST`.
    """
    levels = [[Formula("variable", variable=i) for i in range(variables)]]
    for d in range(1, depth + 1):
        level, last = [], len(levels[-1])
        number = last * (last - 1) + 2 * last * sum(map(len, levels[:-1]))
        if number > MOST:
            raise InputError(
                f"There may be {number:,} formulas of depth {d} over {variables} variables; lower the depth."
            )
        for i in range(d):
            for f in levels[d - 1]:
                for g in levels[i]:
                    if str(f) < str(g) or (pairs == "all" and i < d - 1):
                        level += [_binary("and", f, g), _binary("or", f, g)]
        levels.append(level)
    return tuple(formula for level in levels for formula in level)


def candidate_formulas(
    gate: str | Sequence[int], max_depth: int = 3, pairs: Literal["official", "all"] = "official"
) -> list[Formula]:
    """One formula for each skeleton that can compute a gate: with the fewest negations, the first such pattern.

    Args:
        gate: name or truth table.
        max_depth: of the skeletons.
        pairs: see `skeletons`.

    Raises:
        InputError: for an unknown gate or a depth below 1.
    """
    if max_depth < 1:
        raise InputError(f"The depth must be at least 1, got {max_depth}.")
    table = truth_table(gate)
    variables = len(table).bit_length() - 1
    x = corners(variables)
    leaves = [_number(x[:, v]) for v in range(variables)]
    wanted, full, known = _number(table), 2 ** len(table) - 1, {}
    found = []
    for skeleton in skeletons(variables, max_depth, pairs):
        nodes = _fewest_negations(skeleton, wanted, leaves, full, known)
        if nodes is not None:
            found.append(_negated(skeleton, set(nodes))[0])
    return found


def _number(bits: np.ndarray) -> int:
    return sum(1 << int(i) for i in np.flatnonzero(bits))


def _size(formula: Formula) -> int:
    return 1 + sum(map(_size, formula.children))


type Negations = dict[int, tuple[int, ...]]
"""By truth table the nodes to negate, numbered in preorder: the fewest, of these the first in lexicographic order."""


def _fewest_negations(
    skeleton: Formula, wanted: int, leaves: Sequence[int], full: int, known: dict[int, Negations]
) -> tuple[int, ...] | None:
    """The negations of a skeleton that give one truth table; None if none does.

    The best of a tree is made of the best of its two halves: the number of negations adds up, and of equally many the
    first in order is the first on the left, then on the right.
    """
    if skeleton.kind == "variable":
        return {leaves[skeleton.variable]: (), full ^ leaves[skeleton.variable]: (0,)}.get(wanted)
    left, right = (_negations(child, leaves, full, known) for child in skeleton.children)
    first, second, shift = list(left.values()), list(right.values()), 1 + _size(skeleton.children[0])
    a, b = np.array(list(left))[:, None], np.array(list(right))
    values = a & b if skeleton.kind == "and" else a | b
    count, none = np.add.outer(list(map(len, first)), list(map(len, second))), np.iinfo(int).max
    count = np.where(values == wanted, count, np.where(values == full ^ wanted, count + 1, none))
    if count.min() == none:
        return None
    return min(
        (*(() if values[i, j] == wanted else (0,)), *(1 + k for k in first[i]), *(shift + k for k in second[j]))
        for i, j in np.argwhere(count == count.min())
    )


def _negations(formula: Formula, leaves: Sequence[int], full: int, known: dict[int, Negations]) -> Negations:
    """Of a part of skeletons, every table that it can have; `known` remembers parts by identity."""
    if id(formula) in known:
        return known[id(formula)]
    if formula.kind == "variable":
        plain: Negations = {leaves[formula.variable]: ()}
    else:
        plain, shift = {}, 1 + _size(formula.children[0])
        left, right = (_negations(child, leaves, full, known) for child in formula.children)
        for (a, first), (b, second) in product(left.items(), right.items()):
            table = a & b if formula.kind == "and" else a | b
            _keep(plain, table, (*(1 + k for k in first), *(shift + k for k in second)))
    found = dict(plain)
    for table, nodes in plain.items():
        _keep(found, full ^ table, (0, *nodes))
    known[id(formula)] = found
    return found


def _keep(found: Negations, table: int, nodes: tuple[int, ...]) -> None:
    if table not in found or (len(nodes), nodes) < (len(found[table]), found[table]):
        found[table] = nodes


def _negated(formula: Formula, nodes: set[int], at: int = 0) -> tuple[Formula, int]:
    own, at, children = at, at + 1, []
    for child in formula.children:
        child, at = _negated(child, nodes, at)
        children.append(child)
    whole = Formula(formula.kind, tuple(children), formula.variable)
    return (Formula("not", (whole,)) if own in nodes else whole), at


def parse_formula(text: str) -> Formula:
    """From infix: variables A, B, ...; ``*`` or ``&``, ``+`` or ``|``, ``¬`` or ``~``; and binds tighter than or.

    Raises:
        InputError: at the first character that does not fit.
    """
    tokens = re.findall(r"\S", text)
    position = 0

    def fail(what: str) -> InputError:
        return InputError(f"{text!r}, character {position + 1}: {what}.")

    def peek() -> str:
        return tokens[position] if position < len(tokens) else ""

    def take() -> str:
        nonlocal position
        position += 1
        return tokens[position - 1]

    def atom() -> Formula:
        token = peek()
        if token in ("¬", "~"):
            take()
            return Formula("not", (atom(),))
        if token == "(":
            take()
            inner = alternatives()
            if peek() != ")":
                raise fail("a parenthesis is not closed")
            take()
            return inner
        if len(token) == 1 and "A" <= token <= "Z":
            return Formula("variable", variable=ord(take()) - ord("A"))
        raise fail(f"expected a variable, a negation or a parenthesis, found {token or 'the end'}")

    def chain(below, signs: tuple[str, str], kind) -> Formula:
        whole = below()
        while peek() and peek() in signs:
            take()
            whole = _binary(kind, whole, below())
        return whole

    def alternatives() -> Formula:
        return chain(lambda: chain(atom, ("*", "&"), "and"), ("+", "|"), "or")

    whole = alternatives()
    if position < len(tokens):
        raise fail(f"unexpected {peek()}")
    return whole
