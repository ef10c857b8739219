"""The programs of a pipeline: a forward and a backward pass for every stage, and updates, with their seconds and what they send."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
from jax.core import eval_jaxpr
from jax.extend.core import Literal, Var

from shardy_py.cost.hardware import Hardware
from shardy_py.dialect.grouping import Components
from shardy_py.frontends.partial_sums import partial_sums
from shardy_py.pipelines.assignment import Assignment
from shardy_py.pipelines.cost import equation_seconds
from shardy_py.pipelines.flatten import FlatEquation, inputs_of
from shardy_py.pipelines.jaxprs import bytes_of, closed_jaxpr, dtype_of, reads, shape_of
from shardy_py.pipelines.microbatching import SplitStep
from shardy_py.pipelines.placing import Places

SMALL = 4096
"""Bytes up to which a value that needs no gradient, such as a learning rate, is computed on every stage that wants it."""


@dataclass(frozen=True)
class Updates:
    """The (round, stage) of each equation that runs once (None: in every group that needs it), and the stage of each kept input."""

    group: tuple[tuple[int, int] | None, ...]
    owner: dict[Var, int]


def place_updates(
    nodes: Sequence[FlatEquation], located: Mapping[Var, int], uses: Mapping[Var, Sequence[int]], inputs: Iterable[Var]
) -> Updates:
    """Assigns the nodes that run once; `located` values of the pipeline, such as sums over microbatches, have a stage."""
    same = Components[Var]()
    for node in nodes:
        large = [v for v in (*reads(node.eqn), *node.eqn.outvars) if bytes_of(v) > SMALL or v in located]
        same.join(v for v in large if shape_of(v) == shape_of(large[0]))
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


def closure(
    nodes: Sequence[FlatEquation], chosen: Callable[[int], bool], free: Callable[[int], bool], results: Iterable[Var]
) -> list[FlatEquation]:
    """The chosen nodes with the free ones that they or these results need, in order."""
    needed = set(results)
    nodes_needed: list[FlatEquation] = []
    for i in range(len(nodes) - 1, -1, -1):
        eqn = nodes[i].eqn
        if chosen(i) or (free(i) and any(v in needed for v in eqn.outvars)):
            nodes_needed.append(nodes[i])
            needed.update(v for v in eqn.invars if not isinstance(v, Literal))
    return nodes_needed[::-1]


@dataclass(frozen=True)
class PartialSums:
    """A value, `member`, as partial sums, one per device."""

    member: Var
    num_shards: int


@dataclass(frozen=True)
class TaskProgram:
    """A part of the step that is compiled by itself.

    Attributes:
        role: "F", "B" (the whole backward pass), "b" (without gradients of parameters), "W" (these), "U" (an update), or "P" (parts of
            parameters for other stages).
        sums: Values that it adds to accumulators, which are further operands and results, in this order.
        resets: Sums of microbatches for which it makes zeros, as further results.
        stands: Inputs and sums that stand for the value that they sum up to.
    """

    role: str
    stage: int
    turn: int
    nodes: tuple[FlatEquation, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    sums: tuple[Var, ...]
    resets: tuple[Var, ...] = ()
    recomputed: tuple[FlatEquation, ...] = ()
    stands: Mapping[Var, PartialSums] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name for messages and profiles: `stage1_forward`."""
        label = {"F": "forward", "B": "backward", "b": "backward_inputs", "W": "backward_weights", "P": "parts"}
        label["U"] = f"update{self.turn or ''}"
        return f"stage{self.stage}_{label[self.role]}"

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """(inputs, accumulators) to (outputs, accumulators)."""

        def run(*arguments: Any) -> tuple[Any, ...]:
            count = len(self.inputs)
            env: dict[Var, Any] = {}
            for v, value in zip(self.inputs, arguments):
                stand = self.stands.get(v)
                env[v if stand is None else stand.member] = value if stand is None else jax.numpy.sum(value, 0, dtype=value.dtype)
            evaluate(self.nodes, env)
            added = [jax.numpy.add(total, self._summand(v, env)) for total, v in zip(arguments[count:], self.sums)]
            zeros = [jax.numpy.zeros(shape_of(v), dtype_of(v)) for v in self.resets]
            return (*(env[v] for v in self.outputs), *added, *zeros)

        run.__name__ = run.__qualname__ = self.name
        return run

    def _summand(self, v: Var, env: Mapping[Var, Any]) -> Any:
        stand = self.stands.get(v)
        return env[v] if stand is None else partial_sums(env[stand.member], stand.num_shards)


def evaluate(nodes: Sequence[FlatEquation], env: dict[Var, Any]) -> None:
    """Runs equations on the values of `env`, which gets their results."""
    results = list(dict.fromkeys(v for node in nodes for v in node.eqn.outvars))
    inputs = inputs_of(nodes)
    jaxpr = closed_jaxpr([node.eqn for node in nodes], inputs, results).jaxpr
    env.update(zip(results, eval_jaxpr(jaxpr, (), *(env[v] for v in inputs))))


def stages_reading(programs: Iterable[TaskProgram]) -> dict[Var, set[int]]:
    """Value -> stages of the programs that read it."""
    stages: dict[Var, set[int]] = {}
    for program in programs:
        for v in program.inputs:
            stages.setdefault(v, set()).add(program.stage)
    return stages


def parts_of_parameters(split: SplitStep, parameters: Iterable[Var]) -> dict[Var, Var]:
    """Slices of parameters that microbatches read only in slices, such as the rows of stacked parameters."""
    slices: dict[Var, Var] = {}
    whole_of = {v: v for v in parameters}
    read_whole: set[Var] = {v for v in split.micro.outvars if isinstance(v, Var)} & {*split.sums, *split.dims}
    for node in split.micro.nodes:
        operands = reads(node.eqn)
        cut = node.eqn.primitive.name == "slice" and operands[0] in whole_of
        if cut or (node.eqn.primitive.name in ("squeeze", "reshape") and operands and operands[0] in slices):
            slices[node.eqn.outvars[0]] = slices.get(operands[0], operands[0])
        else:
            read_whole.update(v for v in operands if v in whole_of)
    return {v: whole for v, whole in slices.items() if whole not in read_whole}


def part_programs(split: SplitStep, parts: Mapping[Var, Var], owner: Mapping[Var, int], slices: Iterable[Var]) -> list[TaskProgram]:
    """Programs that cut parameters where they are kept, once per step."""
    by_stage: dict[int, list[Var]] = {}
    for v in dict.fromkeys(slices):
        by_stage.setdefault(owner[parts[v]], []).append(v)
    programs = []
    for stage, outputs in sorted(by_stage.items()):
        body = closure(split.micro.nodes, lambda i: False, lambda i: split.micro.nodes[i].eqn.outvars[0] in parts, outputs)
        programs.append(TaskProgram("P", stage, 0, tuple(body), inputs_of(body), tuple(outputs), ()))
    return programs


def stage_programs(
    split: SplitStep, assigned: Assignment, split_backward: Sequence[bool], parts: Container[Var] = (), recomputed: Container[Var] = ()
) -> dict[tuple[str, int], TaskProgram]:
    """The programs of every stage, (role, stage) to program: F, and B or else b and W."""
    nodes = split.micro.nodes
    of: list[tuple[str, int] | None] = [
        None if s is None else ("B" if back else "F", s) for s, back in zip(assigned.stage, assigned.backward)
    ]
    for s in range(assigned.stages):
        if split_backward[s]:
            _split_backward(nodes, of, s)
    summed = set(split.sums)
    keys = [(role, s) for s in range(assigned.stages) for role in (("F", "b", "W") if split_backward[s] else ("F", "B"))]
    copied = [where is None and not any(v in parts for v in node.eqn.outvars) for where, node in zip(of, nodes)]
    repeated = {i for i, node in enumerate(nodes) if any(v in recomputed for v in node.eqn.outvars)}

    def is_free(key: tuple[str, int], i: int) -> bool:
        return copied[i] or (i in repeated and of[i] == ("F", key[1]))

    cut, read = _cut_out(nodes, of, keys, [*split.sums, *split.dims], ("F", assigned.stages - 1), is_free)
    programs: dict[tuple[str, int], TaskProgram] = {}
    for key, (body, own) in cut.items():
        outputs = tuple(v for v in own if v in read or v in split.dims)
        sums = tuple(v for v in own if v in summed)
        recomputed_here = () if key[0] == "F" else tuple(node for node in body if any(v in recomputed for v in node.eqn.outvars))
        programs[key] = TaskProgram(key[0], key[1], 0, body, inputs_of(body), outputs, sums, recomputed=recomputed_here)
    return programs


Key = TypeVar("Key")


def _cut_out(
    nodes: Sequence[FlatEquation],
    of: Sequence[Key | None],
    keys: Iterable[Key],
    results: Iterable[Var],
    at: Key,
    is_free: Callable[[Key, int], bool],
) -> tuple[dict[Key, tuple[tuple[FlatEquation, ...], list[Var]]], set[Var]]:
    """For every key the equations of its program and its own results, free `results` at one of them; and what programs read."""
    producer = {v: key for node, key in zip(nodes, of) for v in node.eqn.outvars}
    free_results = {v for v in results if v in producer and producer[v] is None}
    cut: dict[Key, tuple[tuple[FlatEquation, ...], list[Var]]] = {}
    for key in keys:
        extra = free_results if key == at else set[Var]()
        body = closure(nodes, lambda i, key=key: of[i] == key, functools.partial(is_free, key), extra)
        cut[key] = tuple(body), [v for node in body for v in node.eqn.outvars if producer[v] == key or v in extra]
    return cut, {v for body, _ in cut.values() for v in inputs_of(body)}


def _split_backward(nodes: Sequence[FlatEquation], of: list[tuple[str, int] | None], stage: int) -> None:
    """Splits the backward pass of a stage: equations that lead to its sends are "b", all others "W"."""
    producer = {v: i for i, node in enumerate(nodes) for v in node.eqn.outvars}
    mine = {i for i, key in enumerate(of) if key == ("B", stage)}
    todo = [
        producer[v]
        for i, node in enumerate(nodes)
        if i not in mine and of[i] is not None and of[i] != ("W", stage)
        for v in reads(node.eqn)
        if producer.get(v) in mine
    ]
    hurried: set[int] = set()
    while todo:
        i = todo.pop()
        if i not in hurried and (i in mine or of[i] is None):
            hurried.add(i)
            todo += [producer[v] for v in reads(nodes[i].eqn) if v in producer]
    for i in mine:
        of[i] = ("b" if i in hurried else "W", stage)


def update_programs(split: SplitStep, updates: Updates, results: Sequence[Var]) -> list[TaskProgram]:
    """Programs of equations that run once, in the order in which they run."""
    keys = sorted({(0, 0), *(key for key in updates.group if key is not None)})
    cut, read = _cut_out(split.update, updates.group, keys, results, (0, 0), lambda _, i: updates.group[i] is None)
    needed = read.union(results)
    return [
        TaskProgram("U", stage, turn, body, inputs_of(body), tuple(v for v in own if v in needed), ())
        for (turn, stage), (body, own) in cut.items()
        if body
    ]


Programs = Mapping[tuple[str, int], TaskProgram]

PASSES = {"F": "forward", "B": "backward", "b": "backward", "W": "weight"}
"""Role of a program -> the name that `simulate` has for its time."""


def stage_times(programs: Programs, places: Places, hardware: Hardware) -> dict[str, list[float]]:
    """Seconds of every stage, as `simulate` takes them; the devices of a stage share its work evenly, and exchange nothing."""
    count = places.stages
    times = {role: [0.0] * count for role in ("forward", "backward", "weight")}
    for (role, s), program in programs.items():
        results = dict.fromkeys((*program.outputs, *program.sums))
        seconds = equation_seconds([node.eqn for node in program.nodes], list(results), hardware)
        times[PASSES[role]][s] = math.fsum(seconds) / places.mesh(s).size
    return {**times, "transfer": transfers(programs, places, hardware)}


def transfers(programs: Programs, places: Places, hardware: Hardware) -> list[float]:
    """Seconds that a microbatch takes across the boundary behind each stage but the last, in one direction, on the links there."""
    moved = sent(programs)
    seconds = list[float]()
    for s in range(places.stages - 1):
        crossing = sum(n for (a, b), n in moved.items() if min(a, b) <= s < max(a, b))
        links = hardware.network if places.apart(s, s + 1, hardware.fabric.reach) else hardware.fabric
        seconds.append(crossing / 2 / links.bandwidth + links.latency)  # half of it goes forwards, half back
    return seconds


def sent(programs: Programs) -> dict[tuple[int, int], int]:
    """(from, to) -> bytes of activations and cotangents that a microbatch sends between these stages."""
    moved: dict[tuple[int, int], int] = {}
    producer: dict[Var, int] = {v: s for (_, s), program in programs.items() for v in program.outputs}
    seen: set[tuple[Var, int]] = set()
    for (_, t), program in programs.items():
        for v in program.inputs:
            if v in producer and producer[v] != t and (v, t) not in seen:
                seen.add((v, t))
                moved[producer[v], t] = moved.get((producer[v], t), 0) + bytes_of(v)
    return moved
