"""Chooses by a minimum cut the residuals that a stage keeps for its backward pass; it recomputes the other values.

As in the min-cut rematerialization of PyTorch's AOTAutograd. Some values cannot be recomputed: products, convolutions, loops, sorts,
gathers, random bits, values of other stages. Between these and the values that the backward pass reads, a stage keeps enough that cheap
equations give the rest. A residual costs its bytes and the price of a buffer; an equation that is recomputed costs the bytes that memory
moves in its time. Both are capacities of one network, and its minimum cut is the cheapest choice: recomputing never takes longer than
moving the residuals that it saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from jax.extend.core import Var
from jax.sharding import PartitionSpec

from shardy_py.cost.hardware import Hardware
from shardy_py.pipelines.flat import Node
from shardy_py.pipelines.jaxprs import bytes_of, reads, shape_of
from shardy_py.pipelines.placing import axes_of
from shardy_py.pipelines.programs import Program
from shardy_py.pipelines.recompute import MOVES, bound, communicates, is_cheap, recompute_seconds
from shardy_py.pipelines.recompute_choice import RecomputeChoice

BUFFER_BYTES = 64 << 10
"""Price of one more buffer beside its bytes. On the host it takes 2 to 4 us to hand over (an array in Python and one on each device of the
stage, created and freed), in which one core copies about as much. So small models keep few values, large ones few bytes."""

LONGEST = 32
"""The most computing equations in a row between a residual and a recomputed value. The backward pass reads the values of a chain in reverse
order, all at once, and a GPU that is fully occupied has 32 registers per thread. Beyond that a fused loop would spill them to memory, and
recomputing would no longer cost its arithmetic alone."""


@dataclass(frozen=True)
class Handover:
    """The values between the two passes of a stage, and the equations that make them.

    Attributes:
        nodes: The forward equations that lead to `read`, in order, back to those that cannot be recomputed.
        bound: Pairs of values of which the second must be recomputed where the first is.
    """

    nodes: tuple[Node, ...]
    free: frozenset[Var]
    arriving: tuple[Var, ...]
    read: tuple[Var, ...]
    sent: frozenset[Var]
    bound: tuple[tuple[Var, Var], ...]

    @property
    def values(self) -> tuple[Var, ...]:
        """Everything that could be kept."""
        return (*self.arriving, *(v for node in self.nodes for v in node.eqn.outvars))


@dataclass(frozen=True)
class Layout:
    """Shardings inside of a stage."""

    specs: Mapping[Var, PartitionSpec]
    sizes: Mapping[str, int]

    def axes(self, v: Var) -> tuple[tuple[str, ...], ...]:
        """The axes that cut each dimension of a value."""
        axes: list[tuple[str, ...]] = []
        for entry in self.specs.get(v, ()):
            axes.append(tuple(name for name in axes_of(entry) if self.sizes.get(name, 1) > 1))
        return (*axes, *((),) * (len(shape_of(v)) - len(axes)))

    def num_shards(self, v: Var) -> int:
        """Into how many parts a value is cut."""
        return math.prod(self.sizes[name] for names in self.axes(v) for name in names)


WHOLE = Layout({}, {})
"""A stage of one device."""


def handovers(
    programs: Mapping[tuple[str, int], Program], is_free: Callable[[Var], bool], is_shared: Callable[[Var], bool]
) -> list[Handover]:
    """The handover between the passes of every stage; every program that needs an `is_free` value makes it for itself."""
    takers: dict[Var, list[int]] = {}
    for (_, s), program in programs.items():
        for v in program.inputs:
            takers.setdefault(v, []).append(s)
    result = []
    for (role, s), forward in programs.items():
        if role != "F":
            continue
        late = [program for (other, t), program in programs.items() if t == s and other != "F"]
        results = {v for node in forward.nodes for v in node.eqn.outvars}
        arriving = [v for v in forward.inputs if not is_shared(v)]
        available = {*results, *arriving}
        read = tuple(dict.fromkeys(v for program in late for v in program.inputs if v in available))
        needed, nodes = set(read), []
        for node in reversed(forward.nodes):
            if any(v in needed for v in node.eqn.outvars):
                nodes.append(node)
                if is_cheap(node.eqn) or is_free(node.eqn.outvars[0]):
                    needed.update(reads(node.eqn))
        sent = frozenset(v for v in forward.outputs if v not in takers or any(t != s for t in takers[v]))
        free = frozenset(v for v in results if is_free(v))
        pairs = bound((*forward.nodes, *(node for program in late for node in program.nodes)))
        pairs = tuple(pair for pair in pairs if pair[1] in needed or pair[1] not in results)
        result.append(Handover(tuple(nodes[::-1]), free, tuple(v for v in arriving if v in needed), read, sent, pairs))
    return result


def rematerialized(handover: Handover, hardware: Hardware, layout: Layout = WHOLE) -> frozenset[Var]:
    """Results of forward equations that the backward programs of a stage recompute."""
    fixed: set[Var] = set()
    for node in handover.nodes:
        if node.eqn.outvars[0] not in handover.free and (not is_cheap(node.eqn) or communicates(node.eqn, layout.axes)):
            fixed.update(node.eqn.outvars)
    while True:
        chosen = _cut(handover, fixed, hardware, layout)
        late = _too_late(handover, chosen)
        if not late:
            return chosen
        fixed |= late


def _cut(handover: Handover, fixed: Set[Var], hardware: Hardware, layout: Layout) -> frozenset[Var]:
    """The results that are recomputed in the cheapest choice, in which fixed ones are kept."""
    choice = RecomputeChoice()

    def price(v: Var, buffer: int) -> int:
        return buffer + -(-bytes_of(v) // layout.num_shards(v))

    for v in handover.arriving:
        choice.keep(v, price(v, 0))
    for node in handover.nodes:
        results = node.eqn.outvars
        operands = [v for v in dict.fromkeys(reads(node.eqn)) if v in choice.values]
        prices = {v: price(v, 0 if v in handover.sent else BUFFER_BYTES) for v in results}
        if results[0] in handover.free:
            if operands:
                choice.free(results)
                choice.needs(results[0], operands)
        elif results[0] in fixed:
            for v in results:
                choice.keep(v, prices[v])
        else:
            devices = min(map(layout.num_shards, results))
            choice.recompute(prices, math.ceil(recompute_seconds(node.eqn, hardware) * hardware.hbm_bandwidth / devices))
            choice.needs(results[0], operands)
    for a, b in handover.bound:
        # Free values are recomputed wherever they are read.
        if b not in handover.free and (a in choice.values if a in handover.free else a in choice.equations):
            choice.bind(a, b)
    return choice.cheapest(handover.read)


def _too_late(handover: Handover, recomputed: Set[Var]) -> set[Var]:
    """Recomputed values at which chains reach `LONGEST` and still go on; they are kept, and chains begin anew behind them."""
    steps: dict[Var, int] = {}
    maker: dict[Var, Node] = {}
    late: set[Var] = set()
    for node in handover.nodes:
        if node.eqn.outvars[0] not in recomputed:
            continue
        operands = [v for v in reads(node.eqn) if v in steps]
        computes = node.eqn.primitive.name not in MOVES
        for v in operands:
            if computes and steps[v] == LONGEST:
                late.update(maker[v].eqn.outvars)
                steps[v] = 0
        count = max((steps[v] for v in operands), default=0) + computes
        for v in node.eqn.outvars:
            steps[v], maker[v] = count, node
    return late
