"""Chooses by a minimum cut the residuals that a stage keeps for its backward pass; it recomputes the other values.

As in the min-cut rematerialization of PyTorch's AOTAutograd. Some values cannot be recomputed: products, convolutions, loops, sorts,
gathers, random bits, values of other stages. Between these and the values that the backward pass reads, a stage keeps enough that cheap
equations give the rest. A residual costs its bytes and the price of a buffer; an equation that is recomputed costs the bytes that memory
moves in its time. Both are capacities of one network, and its minimum cut is the cheapest choice: recomputing never takes longer than
moving the residuals that it saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal, Var
from jax.sharding import PartitionSpec

from shardy_py.backends.local import elementwise
from shardy_py.backends.local.local_rule import Equation
from shardy_py.backends.local.table import LOCAL_RULES
from shardy_py.cost.hardware import Hardware
from shardy_py.pipelines.assignment import Assignment
from shardy_py.pipelines.flatten import FlatEquation
from shardy_py.pipelines.jaxprs import bytes_of, dtype_of, reads, shape_of
from shardy_py.pipelines.microbatching import SplitStep
from shardy_py.pipelines.minimum_cut import Network
from shardy_py.pipelines.placing import axes_of
from shardy_py.pipelines.programs import TaskProgram

MOVES = frozenset(
    {
        "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "slice", "split", "concatenate", "stack", "unstack", "pad",
        "rev", "iota", "copy", "copy_p", "stop_gradient", "sharding_constraint", "reshard",
    }
)  # fmt: skip
"""Primitives that compute nothing; XLA reads through them."""

SERIES = frozenset("bessel_i0e bessel_i1e digamma igamma igamma_grad_a igammac lgamma polygamma regularized_incomplete_beta zeta".split())
"""Primitives of many operations per element."""

POINTWISE = frozenset(elementwise.LOCAL_RULES) - SERIES
"""Other primitives that work element by element; most take about one operation."""

TRANSCENDENTAL = frozenset(
    {
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
        "log", "log1p", "log2", "logistic", "pow", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
    }
)  # fmt: skip
"""Primitives of as many operations per element as the hardware says."""

ANNOTATIONS = frozenset({"reshard", "sharding_constraint"})

REDUCTIONS = frozenset(
    {"argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum", "reduce_xor"}
)
"""Primitives that read all of their operand before anyone reads their result."""

CHEAP = MOVES | POINTWISE | REDUCTIONS
"""Primitives that may be recomputed."""

Axes = Callable[[Var], tuple[tuple[str, ...], ...]]
"""A value to the mesh axes that cut each of its dimensions."""


EXACT = frozenset({"eq", "eq_to", "ne"})
"""Primitives that ask whether values are equal to the last bit."""

CHOICES = frozenset({"max", "min", "reduce_max", "reduce_min", "clamp", "select_n"})
"""Primitives whose result is one of their operands to the last bit."""


def is_cheap(eqn: JaxprEqn) -> bool:
    """Whether an equation may be recomputed."""
    return eqn.primitive.name in CHEAP and not eqn.effects


def bound(nodes: Iterable[FlatEquation]) -> list[tuple[Var, Var]]:
    """Pairs of values: wherever the first is recomputed, the second must be recomputed too.

    The derivative of a maximum asks which operand is equal to it. Another program rounds differently: a recomputed operand
    is not equal to the maximum of the original, and the derivative would be lost.
    """
    maker: dict[Var, JaxprEqn] = {}

    def root(v: Any) -> Any:
        """The source of a value, through ops that only move data."""
        while isinstance(v, Var) and v in maker and maker[v].primitive.name in MOVES and len(maker[v].invars) == 1:
            v = maker[v].invars[0]
        return v

    pairs: dict[tuple[Var, Var], None] = {}
    for node in nodes:
        eqn = node.eqn
        maker.update(dict.fromkeys(eqn.outvars, eqn))
        if eqn.primitive.name in EXACT and jax.numpy.issubdtype(dtype_of(eqn.invars[0]), jax.numpy.inexact):
            pair = tuple(root(v) for v in eqn.invars)
            if any(isinstance(v, Literal) for v in pair):
                continue
            chosen = [v in maker and maker[v].primitive.name in CHOICES for v in pair]
            for (a, b), is_chosen in zip((pair[::-1], pair), chosen):
                if is_chosen or not any(chosen):
                    pairs[a, b] = None
    return list(pairs)


def recompute_seconds(eqn: JaxprEqn, hardware: Hardware) -> float:
    """Seconds of recomputing a cheap equation, where XLA fuses it with its readers.

    It computes and moves nothing: its operands are read in place of its result, and their bytes count where they are kept. A reduction
    ends before its readers start, so that its operand is read once more.
    """
    name = eqn.primitive.name
    if name in MOVES:
        return 0.0
    largest = max((_elements(v) for v in (*eqn.invars, *eqn.outvars)), default=0)
    seconds = largest * (hardware.transcendental_operations if name in TRANSCENDENTAL else 1.0) / hardware.vector_flops
    if name in REDUCTIONS:
        return max(seconds, sum(bytes_of(v) for v in eqn.invars if not isinstance(v, Literal)) / hardware.hbm_bandwidth)
    return seconds


def communicates(eqn: JaxprEqn, axes: Axes) -> bool:
    """Whether devices have to communicate to compute a cheap equation: it changes a dimension that is sharded, or shards it otherwise."""
    if not any(any(axes(v)) for v in reads(eqn)):
        return False
    build = LOCAL_RULES.get(eqn.primitive.name)
    local = None if build is None else build(Equation(eqn))
    if local is None:
        return eqn.primitive.name not in ANNOTATIONS or any(axes(v) != axes(eqn.outvars[0]) for v in reads(eqn))
    rule = local.rule
    for v, mapping in zip(eqn.invars, rule.operand_mappings):
        for cut, (factor, *_) in zip(() if isinstance(v, Literal) else axes(v), mapping):
            if cut and factor in (*rule.need_replication, *rule.permutation):
                return True
            for result, dims in zip(eqn.outvars, rule.result_mappings):
                to = next((d for d, factors in enumerate(dims) if factors[0] == factor), None)
                if cut and (to is None or axes(result)[to][: len(cut)] != cut):
                    return True
    return False


def _elements(v: Any) -> int:
    return math.prod(shape_of(v))


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

    nodes: tuple[FlatEquation, ...]
    free: frozenset[Var]
    arriving: tuple[Var, ...]
    read: tuple[Var, ...]
    sent: frozenset[Var]
    bound: tuple[tuple[Var, Var], ...]


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


def handovers(split: SplitStep, assigned: Assignment, programs: Mapping[tuple[str, int], TaskProgram]) -> list[Handover]:
    """The handover between the passes of every stage."""
    # What every program that needs it makes for itself, and what is an activation and no parameter.
    made_anywhere = {v for node, s in zip(split.micro.nodes, assigned.stage) if s is None for v in node.eqn.outvars}
    moving = {v for program in programs.values() for v in program.outputs}
    moving.update(v for v in split.micro.invars if v in split.examples)
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
        arriving = [v for v in forward.inputs if v in moving]
        available = {*results, *arriving}
        read = tuple(dict.fromkeys(v for program in late for v in program.inputs if v in available))
        needed, nodes = set(read), []
        for node in reversed(forward.nodes):
            if any(v in needed for v in node.eqn.outvars):
                nodes.append(node)
                if is_cheap(node.eqn) or node.eqn.outvars[0] in made_anywhere:
                    needed.update(reads(node.eqn))
        sent = frozenset(v for v in forward.outputs if v not in takers or any(t != s for t in takers[v]))
        free = frozenset(results & made_anywhere)
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
    """The results that are recomputed in the cheapest choice, in which fixed ones are kept.

    The network runs from reads to values that cannot be recomputed: of equally cheap choices the one that recomputes least wins.
    """
    network = Network()
    source, sink = network.vertex(), network.vertex()
    values: dict[Var, int] = {}
    equations: dict[Var, int] = {}  # of those that can be recomputed, all results of an equation at once

    def keep(v: Var, buffer: int, end: int) -> None:
        values[v] = network.vertex()
        network.edge(values[v], end, buffer + -(-bytes_of(v) // layout.num_shards(v)))

    for v in handover.arriving:
        keep(v, 0, sink)
    for node in handover.nodes:
        results = node.eqn.outvars
        operands = [v for v in dict.fromkeys(reads(node.eqn)) if v in values]
        vertex = sink
        if results[0] in handover.free:
            vertex = network.vertex()
            values.update(dict.fromkeys(results if operands else (), vertex))
        else:
            if results[0] not in fixed:
                vertex = network.vertex()
                equations.update(dict.fromkeys(results, vertex))
                seconds = recompute_seconds(node.eqn, hardware) / min(map(layout.num_shards, results))
                network.edge(vertex, sink, math.ceil(seconds * hardware.hbm_bandwidth))
            for v in results:
                keep(v, 0 if v in handover.sent else BUFFER_BYTES, vertex)
        for v in operands if vertex != sink else ():
            network.edge(vertex, values[v], math.inf)
    for a, b in handover.bound:
        # Free values are recomputed wherever they are read.
        if b not in handover.free and (a in values if a in handover.free else a in equations):
            network.edge(equations.get(a, values[a]), equations.get(b, sink), math.inf)
    for v in handover.read:
        network.edge(source, values[v], math.inf)
    _, reached = network.cut(source, sink)
    return frozenset(v for v, vertex in equations.items() if reached[vertex])


def _too_late(handover: Handover, recomputed: Set[Var]) -> set[Var]:
    """Recomputed values at which chains reach `LONGEST` and still go on; they are kept, and chains begin anew behind them."""
    steps: dict[Var, int] = {}
    maker: dict[Var, FlatEquation] = {}
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
