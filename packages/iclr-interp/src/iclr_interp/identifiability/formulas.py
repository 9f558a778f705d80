"""Candidate algorithms: formulas of and, or, not, in every shape up to a depth (spec 2.5)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Int

from iclr_interp.identifiability.gates import corners, truth_table
from iclr_shared.errors import InputError


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
    """
    levels = [[Formula("variable", variable=i) for i in range(variables)]]
    for d in range(1, depth + 1):
        level = []
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
    leaves = [sum(1 << int(i) for i in np.flatnonzero(x[:, v])) for v in range(variables)]
    wanted = sum(1 << int(i) for i in np.flatnonzero(table))
    full = 2 ** len(table) - 1
    found = []
    for skeleton in skeletons(variables, max_depth, pairs):
        size = _size(skeleton)
        values = _tables(skeleton, np.arange(2**size), leaves, full)[0]
        right = np.flatnonzero(values == wanted)
        if len(right):
            patterns = [sorted(i for i in range(size) if int(pattern) >> i & 1) for pattern in right]
            best = min(patterns, key=lambda nodes: (len(nodes), nodes))
            found.append(_negated(skeleton, set(best))[0])
    return found


def _size(formula: Formula) -> int:
    return 1 + sum(map(_size, formula.children))


def _tables(
    formula: Formula, patterns: np.ndarray, leaves: list[int], full: int, at: int = 0
) -> tuple[np.ndarray, int]:
    """Truth tables under every pattern of negations; bit i of a pattern negates the i-th node in preorder."""
    own, at = at, at + 1
    if formula.kind == "variable":
        values = np.full(len(patterns), leaves[formula.variable])
    else:
        left, at = _tables(formula.children[0], patterns, leaves, full, at)
        right, at = _tables(formula.children[1], patterns, leaves, full, at)
        values = left & right if formula.kind == "and" else left | right
    return np.where(patterns >> own & 1, full ^ values, values), at


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
