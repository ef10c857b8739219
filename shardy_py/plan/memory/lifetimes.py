"""The buffers of a call with the steps at which they are alive, and the values of the plan that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardy_py.cost.liveness.live import Buffer, Life, Liveness
from shardy_py.cost.sizes import LocalSizes
from shardy_py.cost.traffic import RESHARDING
from shardy_py.dialect import TensorSharding
from shardy_py.ir import Block, Op, Program, Value
from shardy_py.plan.executed import explicit_of
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue

Role = Literal["argument", "output", "temporary"]


@dataclass(frozen=True, slots=True, eq=False)
class LiveBuffer:
    """A buffer that is alive at some step.

    Attributes:
        value: The value of the plan's program that it holds; None where it holds none, as scratch memory of a library call, or in a
            region, whose values are others. The value in `sharding` has exactly `bytes`.
        sharding: The layout in which it holds the value, which is not the value's own where that was gathered or exchanged for a reader.
    """

    bytes: int
    role: Role
    label: str = ""
    value: Value | None = None
    sharding: TensorSharding | None = None
    op: Op | None = None
    reader: Op | None = None
    leaf: PlannedValue | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Peak:
    """A step at which more is alive than before and after it; arguments and results always are."""

    step: int
    bytes: int
    buffers: tuple[LiveBuffer, ...]


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Lifetimes of the buffers of a call.

    Attributes:
        resident_bytes: Their bytes, with tables of addresses; `argument + output - alias` of the analysis.
    """

    plan: PlanRecord
    running: Program
    usage: Liveness
    resident: tuple[LiveBuffer, ...]
    resident_bytes: int
    sizes: LocalSizes

    def peaks(self, limit: int = 8) -> tuple[Peak, ...]:
        """The fullest steps among those at which more is alive than before and after, the fullest first."""
        series = self.usage.series
        steps = sorted(local_peaks(series), key=lambda step: (-series[step], step))[:limit]
        return tuple(Peak(step, self.resident_bytes + series[step], self.alive(step)) for step in steps)

    def alive(self, step: int) -> tuple[LiveBuffer, ...]:
        """The temporaries that are alive at a step, the largest first."""
        live = [self._described(b, step) for b in self.usage.buffers if b.start <= step <= b.end and b.bytes]
        return tuple(sorted(live, key=lambda b: -b.bytes))

    def _described(self, buffer: Buffer, step: int) -> LiveBuffer:
        """A buffer with the value that it holds at a step; between two values, the one before."""
        lives = [life for life in buffer.lives if life.start <= step] or buffer.lives
        op, value, sharding = buffer.maker, None, None
        if lives:
            life = max(lives, key=lambda life: (life.end >= step, self._planned(life, buffer)[0] is not None, life.start))
            value, sharding = self._planned(life, buffer)
            op = life.value.defining_op or op
        label = "" if op is None else label_of(op)
        reader = None if op is None or self.plan.active_partitioner is not None else explicit_of(self.plan).causes.get(op)
        return LiveBuffer(buffer.bytes, "temporary", label, value, sharding, op, reader)

    def _planned(self, life: Life, buffer: Buffer) -> tuple[Value | None, TensorSharding | None]:
        """The value of the plan's program that a value of a buffer is, if it fills the buffer, and the layout in which it lies there."""
        source = value = life.value
        if self.plan.active_partitioner is not None:
            return None, None
        program, explicit = self.plan.program, explicit_of(self.plan)
        while value not in explicit.values:
            op = value.defining_op
            if op is None or op.name not in RESHARDING:
                return None, None
            value = op.operands[0]
        planned = explicit.values[value]
        fills = self.sizes.bytes_of(planned.type, source.sharding) == buffer.bytes
        return (planned, source.sharding) if fills and _block(planned) is program.main.body else (None, None)


def label_of(op: Op) -> str:
    """The name of an op for users."""
    return op.primitive or op.name.rpartition(".")[2]


def local_peaks(series: Sequence[int]) -> list[int]:
    """The first step of each plateau that is higher than the steps before and after it.

    Example:
        >>> local_peaks([1, 3, 3, 2, 4, 1, 1])
        [1, 4]
    """
    steps: list[int] = []
    rise: int | None = None
    for step, (before, size) in enumerate(zip((0, *series), series)):
        if size > before:
            rise = step
        elif size < before and rise is not None:
            steps.append(rise)
            rise = None
    return steps if rise is None else [*steps, rise]


def _block(value: Value) -> Block | None:
    """The body of the function around a value."""
    block = value.owner if isinstance(value.owner, Block) else value.owner.block
    while block is not None and isinstance(block.parent, Op):
        block = block.parent.block
    return block
