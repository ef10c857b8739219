"""The log of a propagation, indexed: the sharding of each value before each step, and the step that brought each axis.

While a propagation runs, an edge op stands on every value that a loop, branch or computation carries, and holds its sharding. In a planned
program these are gone, so that holders are named by what is left: the owner of the edge.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.axis import Axes, is_prefix
from shardy_py.ir import Op, Value
from shardy_py.passes import dataflow
from shardy_py.passes.propagation.graph import Holder
from shardy_py.passes.propagation.log import FunctionResult, Step

ANNOTATION, GROUP, MEMBER, PRIORITY, PROPAGATE = "annotation", "group", "member", "priority", "propagate"
CONSTRAINING = ("a closed sharding constraint", "the in sharding of a manual computation")
"""Reasons of steps in which a value takes the sharding of its constraint, before the propagation."""

_PROPAGATION = frozenset((ANNOTATION, GROUP, MEMBER, PRIORITY, PROPAGATE, *CONSTRAINING))


class History:
    """The log of one propagation, whose steps from `end` on only cut shardings, and the annotations that it began with."""

    def __init__(self, log: Sequence[Step]) -> None:
        self.log = log
        self.end = len(log)
        self.steps: dict[Holder, list[int]] = {}
        self.groups: dict[Holder, Step] = {}
        self.results: dict[int, FunctionResult] = {}
        self.annotated: dict[Holder, TensorSharding] = {}
        self._initial: dict[Holder, TensorSharding | None] = {}
        self._holders: dict[Value, Holder] = {}
        for number, step in enumerate(log):
            target, reason = step.target, step.reason
            if reason not in _PROPAGATION:
                self.end = min(self.end, number)
                if step.op is not None and step.op.name == "func.return":
                    continue  # told of the value that is returned; it is the result that is cut, see `cuts`
            holder = self.holder(target)
            if holder not in self._initial:
                self._initial[holder] = step.old
                if step.old is not None and not (step.old.is_fully_open and not step.old.has_axes):
                    self.annotated[holder] = step.old
            if reason == MEMBER:
                self.groups.setdefault(holder, step)
            if step.old is not step.new:
                self.steps.setdefault(holder, []).append(number)

    def holder(self, value: Any) -> Holder:
        """The value of a planned program that stands for the holder of a sharding."""
        if not isinstance(value, Value):
            return self.results.setdefault(value.index, value)
        owner = value.owner
        if isinstance(owner, Op):
            if owner.name == dataflow.EDGE:
                return owner.operands[0]
            if owner.name not in dataflow.DATA_FLOW_OPS:
                return value
        holder = self._holders.get(value)
        if holder is None:
            shardable = dataflow.shardable_value(value) or value
            if isinstance(shardable.owner, Op) and shardable.owner.name == dataflow.EDGE:
                shardable = shardable.owner.operands[0]
            holder = self._holders[value] = shardable
        return holder

    def initial(self, holder: Holder) -> TensorSharding | None:
        """The sharding of a holder before the first step."""
        return self._initial.get(holder)

    def at(self, holder: Holder, time: int) -> TensorSharding | None:
        """The sharding of a holder before a step; None is open."""
        steps = self.steps.get(holder, ())
        i = bisect_left(steps, time)
        return self.log[steps[i - 1]].new if i else self._initial.get(holder)

    def arrival(self, holder: Holder, dim: int, axes: Axes, time: int) -> int | None:
        """The step before `time` that brought the last of some axes to a dimension; None where an annotation has them."""
        steps = self.steps.get(holder, ())
        for i in range(bisect_left(steps, time) - 1, -1, -1):
            step = self.log[steps[i]]
            if begins_with(step.new, dim, axes) and not begins_with(step.old, dim, axes):
                return steps[i]
        return None

    def cuts(self, holder: Holder, dim: int) -> list[tuple[TensorSharding, TensorSharding | None, str]]:
        """Shardings before and after each cut of a dimension that follows the propagation, and the reason."""
        cuts = []
        for number in range(self.end, len(self.log)):
            step = self.log[number]
            of_result = step.op is not None and step.op.name == "func.return"
            if of_result:
                same = isinstance(holder, FunctionResult) and step.op is not None and self._returns(step, holder.index)
            else:
                same = self.holder(step.target) is holder
            if same and step.old is not None and (step.new is None or step.old.dims[dim].axes != step.new.dims[dim].axes):
                cuts.append((step.old, step.new, step.reason))
        return cuts

    @staticmethod
    def _returns(step: Step, index: int) -> bool:
        assert step.op is not None
        return index < len(step.op.operands) and step.op.operands[index] is step.target


def begins_with(sharding: TensorSharding | None, dim: int, axes: Axes) -> bool:
    """Whether the axes of a dimension begin with these; the last may be the major part of an axis."""
    return sharding is not None and dim < sharding.rank and is_prefix(axes, sharding.dims[dim].axes)
