"""Assigns equations to stages: forward ones by markers or by cost, backward ones to the stage that holds their operands."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jax.extend.core import JaxprEqn, Var
from numpy.typing import NDArray

from shardy_py.cost.hardware import Hardware
from shardy_py.pipelines.cost import equation_seconds
from shardy_py.pipelines.errors import PipelineError, place
from shardy_py.pipelines.flatten import FlatEquation
from shardy_py.pipelines.jaxprs import bytes_of
from shardy_py.pipelines.microbatching import SplitStep

SLACK = 1.05
"""Share by which a stage may be longer than the best slowest stage, for the sake of fewer bytes."""


def balanced(costs: Sequence[float], crossing: Sequence[float], stages: int, *, seconds_per_byte: float = 0.0) -> list[int]:
    """The cuts with the fewest bytes of all whose slowest stage is within `SLACK` of the best; of several the fastest.

    A stage takes as long as what it computes, or as what it sends over one of its ends and gets back, whichever is longer: both go
    on at once, as `sp.pipedream.partition` counts in exact mode.

    Args:
        seconds_per_byte: Seconds for a byte that crosses, in both directions together.

    Example:
        >>> balanced([1, 1, 1, 1, 2], [0, 9, 9, 1, 9], 2)
        [3]
        >>> balanced([1, 1, 1, 2, 1], [0, 9, 1, 9, 9], 2), balanced([1, 1, 1, 2, 1], [0, 9, 1, 9, 9], 2, seconds_per_byte=1)
        ([3], [2])
    """
    n, none = len(costs), float("inf")
    total, sent = np.cumsum([0.0, *costs]), np.array([0.0, *crossing[1:], 0.0])
    start = np.array([0.0] + [none] * n)

    def longest(slowest: NDArray[np.float64], end: int) -> NDArray[np.float64]:
        """Seconds of the slowest stage up to an end, by where the last one starts."""
        return np.maximum.reduce([slowest[:end], seconds_per_byte * sent[:end], total[end] - total[:end]])

    slowest = start
    for _ in range(stages):
        slowest = np.array([none, *(longest(slowest, end).min() for end in range(1, n + 1))])
    bound = slowest[n] * SLACK * (1 + 1e-9)
    size, slowest, paths = start, start, [[0] * (n + 1)]
    for _ in range(stages):
        sizes, slow, path = np.full(n + 1, none), np.full(n + 1, none), [0] * (n + 1)
        for end in range(1, n + 1):
            seconds = longest(slowest, end)
            amounts = np.where(seconds <= bound, size[:end] + sent[:end], none)
            # Of equal ones the last.
            path[end] = end - 1 - int(np.where(amounts == amounts.min(), seconds, none)[::-1].argmin())
            sizes[end], slow[end] = amounts[path[end]], seconds[path[end]]
        size, slowest = sizes, slow
        paths.append(path)
    cuts = [n]
    for path in reversed(paths[1:]):
        cuts.append(path[cuts[-1]])
    return cuts[-2:0:-1]


HEAVY = frozenset(
    {
        "conv_general_dilated", "cond", "custom_call", "dot_general", "ffi_call", "pallas_call", "scan", "sort", "threefry2x32", "while",
    }
)  # fmt: skip
"""Primitives that are not recomputed on every stage that reads their result."""


@dataclass(frozen=True)
class Assignment:
    """The stage of every equation (None for one that each program computes for itself), and the stages that read each input."""

    stages: int
    stage: tuple[int | None, ...]
    backward: tuple[bool, ...]
    names: tuple[str, ...]
    uses: dict[Var, tuple[int, ...]]


def assign(
    split: SplitStep, stages: int | None, hardware: Hardware, names: Sequence[str] | None = None, cuts: Sequence[int] | None = None
) -> Assignment:
    """The stages of a microbatch's equations, by markers or `cuts`, or of equal time. Raises PipelineError if there are too few."""
    return _Assigner(split, hardware).assign(stages, names, cuts)


def pieces(split: SplitStep, most: int, hardware: Hardware) -> tuple[int, ...] | None:
    """Cuts of the forward pass into pieces of about equal time, for `assign`; None where stages are marked."""
    assigner = _Assigner(split, hardware)
    count = min(most, len(assigner.heavy))
    return None if assigner.markers else tuple(assigner.cuts(count)) if count > 1 else ()


def uses_of(split: SplitStep, stage: Sequence[int | None], hardware: Hardware) -> dict[Var, tuple[int, ...]]:
    """For every value, the stages whose forward pass has it."""
    return {v: tuple(sorted(stages)) for v, stages in _Assigner(split, hardware).uses(stage).items()}


def reassign_backward(
    split: SplitStep, assigned: Assignment, hardware: Hardware, copies: Sequence[Iterable[Var]], moves: Callable[[JaxprEqn], bool]
) -> Assignment:
    """Moves backward equations to stages that compute further forward values; those that `moves` excludes stay."""
    assigner = _Assigner(split, hardware)
    stage = list(assigned.stage)
    uses = assigner.uses(stage)
    for s, values in enumerate(copies):
        for v in values:
            for w in (v, *assigner.through(assigner.nodes[assigner.producer[v]].eqn.invars)):
                uses[w].add(s)
    fixed = [not moves(node.eqn) for node in split.micro.nodes]
    assigner.assign_backward(stage, assigned.stages, uses, fixed)
    return replace(assigned, stage=tuple(stage))


class _Assigner:
    def __init__(self, split: SplitStep, hardware: Hardware) -> None:
        self.hardware = hardware
        self.split = split
        self.nodes = split.micro.nodes
        self.producer = {v: i for i, node in enumerate(self.nodes) for v in node.eqn.outvars}
        self.copied: set[Var] = {*split.micro.invars, *split.micro.consts, *split.prologue}
        self.back: list[bool] = []
        self.free: list[bool] = []
        cotangents: set[Var] = set()
        for node in self.nodes:
            inputs = [v for v in node.eqn.invars if isinstance(v, Var)]
            is_back = any(v in cotangents for v in inputs)
            only_copied = not node.eqn.effects and all(v in self.copied for v in inputs)
            free = only_copied and (self.is_light(node) or (node.backward and node.eqn.primitive.name not in HEAVY))
            if (node.backward and not free) or is_back:
                cotangents.update(node.eqn.outvars)
                is_back = True
            if free:
                self.copied.update(node.eqn.outvars)
            self.back.append(is_back)
            self.free.append(free)
        self.forward = [i for i in range(len(self.nodes)) if not self.free[i] and not self.back[i]]

    def is_light(self, node: FlatEquation) -> bool:
        """Whether a node of inputs alone is computed wherever it is used: it does not depend on examples, or is cheap."""
        if not any(v in self.split.examples for v in node.eqn.outvars):
            return True
        return node.eqn.primitive.name not in HEAVY and all(v in self.split.data_only for v in node.eqn.outvars)

    @property
    def markers(self) -> list[str]:
        """The markers that forward equations are traced in, in order."""
        return list(dict.fromkeys(m for i in self.forward if (m := self.nodes[i].marker) is not None))

    @property
    def heavy(self) -> list[int]:
        """The forward equations with results of some size."""
        return [i for i in self.forward if any(map(bytes_of, self.nodes[i].eqn.outvars))]

    def assign(self, stages: int | None, names: Sequence[str] | None, cuts: Sequence[int] | None) -> Assignment:
        if not any(self.back):
            raise PipelineError(
                "there is no gradient in the function", where="sp.pipeline", why="a pipeline runs the two passes of a loss",
                fix="pass a training step that calls jax.grad or jax.value_and_grad, or a function that returns one loss",
            )  # fmt: skip
        markers = list(names or self.markers)
        if markers and stages is not None and len(markers) != stages:
            raise PipelineError(
                f"{len(markers)} stages are marked and {stages} are asked for", where=f"sp.stage: {', '.join(markers)}",
                why="every stage that is marked is one stage of the pipeline", fix=f"pass num_stages={len(markers)}, or change the marks",
            )  # fmt: skip
        count = stages if stages is not None else len(markers)
        if not count:
            raise PipelineError(
                "the number of stages is not known", where="sp.pipeline(num_stages=None)", why='the function has no sp.stage("name")',
                fix="pass num_stages=",
            )  # fmt: skip
        stage: list[int | None] = [None] * len(self.nodes)
        if markers:
            self.by_markers(stage, markers)
        else:
            self.by_cuts(stage, self.cuts(count) if cuts is None else cuts)
        uses = self.uses(stage)
        self.assign_backward(stage, count, uses)
        stage_names = tuple(markers) if markers else tuple(f"stage{i}" for i in range(count))
        return Assignment(count, tuple(stage), tuple(self.back), stage_names, {v: tuple(sorted(s)) for v, s in uses.items()})

    def by_cuts(self, stage: list[int | None], cuts: Sequence[int]) -> None:
        for s, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(self.forward)])):
            for i in self.forward[start:end]:
                stage[i] = s

    def cuts(self, count: int) -> list[int]:
        """The first forward equation of every stage but the first, where stages take equal time."""
        heavy = self.heavy
        if len(heavy) < count:
            raise PipelineError(
                f"{count} stages and {len(heavy)} operations", where=f"sp.pipeline(num_stages={count})",
                why="every stage needs an operation on the examples", fix=f"pass num_stages={max(len(heavy), 1)} or fewer",
            )  # fmt: skip
        position = {i: k for k, i in enumerate(self.forward)}
        last: dict[Var, int] = {}
        for k, i in enumerate(self.forward):
            for v in self.through(self.nodes[i].eqn.invars):
                last[v] = k
        change = [0.0] * (len(self.forward) + 1)
        for v, k in last.items():
            first = position.get(self.producer.get(v, -1))
            if first is not None and k > first:
                change[first + 1] += bytes_of(v)
                change[k + 1] -= bytes_of(v)
        crossing = list(itertools.accumulate(change[:-1]))
        # As in PipeDream: activations cross forwards, their cotangents back.
        return balanced(self.seconds(), crossing, count, seconds_per_byte=2 / self.hardware.fabric.bandwidth)

    def seconds(self) -> list[float]:
        """Seconds of every forward equation and of the backward equations that go with it, as if each were a stage of its own."""
        results = [v for v in self.split.micro.outvars if isinstance(v, Var)]
        stage: list[int | None] = [None] * len(self.nodes)
        for k, i in enumerate(self.forward):
            stage[i] = k
        self.assign_backward(stage, len(self.forward), self.uses(stage))
        totals = [0.0] * len(self.forward)
        for k, seconds in zip(stage, equation_seconds([node.eqn for node in self.nodes], results, self.hardware)):
            if k is not None:
                totals[k] += seconds
        return totals

    def by_markers(self, stage: list[int | None], markers: Sequence[str]) -> None:
        number = {name: s for s, name in enumerate(markers)}
        consumers: dict[int, list[int]] = defaultdict(list)
        waiting: list[int] = []
        for i in self.forward:
            producers = [self.producer[v] for v in self.through(self.nodes[i].eqn.invars) if v in self.producer]
            for j in producers:
                consumers[j].append(i)
            stages = [s for j in producers if (s := stage[j]) is not None]
            marker = self.nodes[i].marker
            if marker is None:
                # Equations of only the batch and parameters go to their first consumer, below.
                stage[i] = max(stages) if stages else None
                if not stages:
                    waiting.append(i)
                continue
            stage[i] = number[marker]
            if stages and max(stages) > number[marker]:
                raise PipelineError(
                    f"stage {marker!r} uses a value of stage {markers[max(stages)]!r}, which comes later", where=place(self.nodes[i].eqn),
                    why="stages run in the order in which their marks are met first", fix="mark stages in the order of the data",
                )  # fmt: skip
        for i in reversed(waiting):
            stage[i] = min((s for j in consumers[i] if (s := stage[j]) is not None), default=0)

    def through(self, atoms: Sequence[object]) -> list[Var]:
        """The operands of a node, and transitively those of free nodes among them."""
        values: dict[Var, None] = {}
        todo = [v for v in atoms if isinstance(v, Var)]
        while todo:
            v = todo.pop()
            if v in values:
                continue
            values[v] = None
            i = self.producer.get(v)
            if i is not None and self.free[i]:
                todo += [w for w in self.nodes[i].eqn.invars if isinstance(w, Var)]
        return list(values)

    def uses(self, stage: Sequence[int | None]) -> dict[Var, set[int]]:
        """For every value, the stages whose forward pass has it."""
        stages: dict[Var, set[int]] = defaultdict(set)
        for i in self.forward:
            s = stage[i]
            assert s is not None
            for v in self.through(self.nodes[i].eqn.invars):
                stages[v].add(s)
            for v in self.nodes[i].eqn.outvars:
                stages[v].add(s)
        return stages

    def assign_backward(self, stage: list[int | None], count: int, uses: dict[Var, set[int]], fixed: Sequence[bool] = ()) -> None:
        """Backward equations run at the latest stage that holds most of their operands, and never after their cotangents went by."""
        for i, node in enumerate(self.nodes):
            if self.free[i] or not self.back[i] or (fixed and fixed[i]):
                continue
            limit = count - 1
            there: dict[int, float] = defaultdict(float)
            for v in self.through(node.eqn.invars):
                producer = self.producer.get(v)
                if producer is not None and self.back[producer]:
                    limit = min(limit, _stage_of(stage[producer], node.eqn))
                elif producer is None or not self.free[producer]:
                    for s in uses.get(v, ()):
                        there[s] += bytes_of(v)
            # One that had a stage only goes up: what does not move may read it.
            stage[i] = max((s for s in there if (stage[i] or 0) <= s <= limit), key=lambda s: (there[s], s), default=limit)


def _stage_of(stage: int | None, eqn: JaxprEqn) -> int:
    assert stage is not None, eqn
    return stage
