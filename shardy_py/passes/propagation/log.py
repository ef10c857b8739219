"""Provenance: every change of a sharding, in order, with what caused it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shardy_py.dialect import TensorSharding
    from shardy_py.ir import Op, Value


CONSTRAINTS = {
    "sdy.sharding_constraint": "a closed sharding constraint",
    "sdy.manual_computation": "the in sharding of a manual computation",
}
"""Ops that state the sharding of an operand -> the reason in the log where that is set before the propagation."""


class FunctionResult:
    """The place of a function result's sharding during propagation; behaves like a value without uses."""

    __slots__ = ("index", "name", "sharding", "uses")

    def __init__(self, index: int, sharding: TensorSharding | None) -> None:
        self.index = index
        self.sharding = sharding
        self.uses: dict[tuple[Op, int], None] = {}
        self.name = f"result {index}"


class LogStep(NamedTuple):
    """A change of a sharding.

    Attributes:
        target: The value (or function result) whose sharding changed.
        op: The op whose rule did it; None for function results, groups and preparations.
        tensors: The op's operands and results, so that sources can be found: those that had the axes before.
        reason: `propagate`, `group`, `priority`, ... `annotation` and `member` change nothing: the first is what a value was given before
            the propagation, the second a member of a group of several values, `tensors`, and the op that says so.
        op_priority: The stage of the op-priority schedule, 0 to 4.
        place: Which of `tensors` the target stands for, where it is more than one of them; -1 where that is not known.
    """

    target: Value | FunctionResult
    old: TensorSharding | None
    new: TensorSharding | None
    reason: str
    op: Op | None = None
    tensors: tuple[Value | FunctionResult, ...] = ()
    before: tuple[TensorSharding | None, ...] = ()
    user_priority: int = 0
    op_priority: int = -1
    place: int = -1


Log = list[LogStep]
"""All changes of a run, in order; passes append to it."""
