"""Places the part of a step that runs once: optimizer updates beside their parameters, with as few exchanges as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jax.extend.core import Literal, Var

from shardy_py.pipelines.flat import Node
from shardy_py.pipelines.jaxprs import bytes_of, reads, shape_of

SMALL = 4096
"""Bytes up to which a value that needs no gradient, such as a learning rate, is computed on every stage that wants it."""


@dataclass(frozen=True)
class Updates:
    """The (round, stage) of each equation that runs once (None: in every group that needs it), and the stage of each kept input."""

    group: tuple[tuple[int, int] | None, ...]
    owner: dict[Var, int]


def place_updates(nodes: Sequence[Node], located: Mapping[Var, int], uses: Mapping[Var, Sequence[int]], inputs: Iterable[Var]) -> Updates:
    """Assigns the nodes that run once; `located` values of the pipeline, such as sums over microbatches, have a stage."""
    same = _Components()
    for node in nodes:
        large = [v for v in (*reads(node.eqn), *node.eqn.outvars) if bytes_of(v) > SMALL or v in located]
        for v in large[1:]:
            if shape_of(v) == shape_of(large[0]):
                same.join(large[0], v)
    home: dict[Var, int] = {}
    for v, s in located.items():
        home[same.root(v)] = min(s, home.get(same.root(v), s))
    for v in inputs:
        if uses.get(v):
            home[same.root(v)] = min(uses[v])
    owner = {v: home.get(same.root(v), 0) for v in inputs}
    copied: set[Var] = {v for v in inputs if bytes_of(v) <= SMALL}
    stage_of: dict[Var, int] = {**owner, **located}
    round_of: dict[Var, int] = {}
    groups: list[tuple[int, int] | None] = []
    for node in nodes:
        inputs_here = reads(node.eqn)
        if node.eqn.outvars and all(v in copied for v in inputs_here) and all(bytes_of(v) <= SMALL for v in node.eqn.outvars):
            copied.update(node.eqn.outvars)
            groups.append(None)
            continue
        stage = home.get(same.root(node.eqn.outvars[0])) if node.eqn.outvars else None
        if stage is None:
            fixed = [v for v in inputs_here if v in stage_of and v not in copied] or inputs_here
            stage = stage_of.get(max(fixed, key=bytes_of), 0) if fixed else 0
        turn = max((round_of[v] + (stage_of[v] != stage) for v in inputs_here if v in round_of), default=0)
        groups.append((turn, stage))
        for v in node.eqn.outvars:
            round_of[v], stage_of[v] = turn, stage
    return Updates(tuple(groups), owner)


class _Components:
    """Values of one shape that meet in an equation."""

    def __init__(self) -> None:
        self._parent: dict[Var, Var] = {}

    def root(self, v: Var) -> Var:
        while (up := self._parent.get(v, v)) is not v:
            self._parent[v] = self._parent.get(up, up)
            v = up
        return v

    def join(self, a: Var, b: Var) -> None:
        a, b = self.root(a), self.root(b)
        if a is not b:
            self._parent[b] = a


def closure(nodes: Sequence[Node], chosen: Callable[[int], bool], free: Callable[[int], bool], results: Iterable[Var]) -> list[Node]:
    """The chosen nodes with the free ones that they or these results need, in order."""
    needed = set(results)
    nodes_needed: list[Node] = []
    for i in range(len(nodes) - 1, -1, -1):
        eqn = nodes[i].eqn
        if chosen(i) or (free(i) and any(v in needed for v in eqn.outvars)):
            nodes_needed.append(nodes[i])
            needed.update(v for v in eqn.invars if not isinstance(v, Literal))
    return nodes_needed[::-1]
