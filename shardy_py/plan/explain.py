"""Why a value has its sharding: the chain of propagation steps back to an annotation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.dialect.format import format_axis


@dataclass(frozen=True, slots=True)
class Reason:
    """One link of the chain: how one mesh axis came to one dimension of one value.

    Attributes:
        value: The value's path or name.
        dim: The dimension.
        axis: The mesh axis.
        cause: `annotation`, or what brought it: `propagated`, `group`, `result`, ...
        through: The primitive whose rule brought it; empty for annotations.
        rule: The rule, as SDY text.
        location: `file:line` of that primitive.
        step: Number of the step in the propagation log; -1 for annotations.
        user_priority: The user priority at which it happened.
        op_priority: The op priority at which it happened; -1 where none applies.
    """

    value: str
    dim: int
    axis: str
    cause: str
    through: str = ""
    rule: str = ""
    location: str = ""
    step: int = -1
    user_priority: int = 0
    op_priority: int = -1

    def __str__(self) -> str:
        head = f"{self.value} has {self.axis!r} on dimension {self.dim}"
        if self.cause == "annotation":
            return f"{head}: annotated" + (f" at {self.location}" if self.location else "")
        where = f" at {self.location}" if self.location else ""
        how = f"through {self.through}{where}" if self.through else f"by {self.cause}"
        ranks = f", user priority {self.user_priority}" if self.user_priority else ""
        ranks += f", op priority {self.op_priority}" if self.op_priority >= 0 else ""
        return f"{head}: {how} (step {self.step}{ranks})"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Chains of reasons, one per mesh axis of the value.

    Attributes:
        target: The value that was asked about.
        sharding: Its type with its sharding.
        chains: One per axis; each goes back from the value to an annotation.
        axis: The only axis that was asked about; None for all.
    """

    target: str
    sharding: str
    chains: tuple[tuple[Reason, ...], ...]
    axis: str | None = None

    def as_text(self) -> str:
        """The chains, one reason per line."""
        lines = [f"{self.target}: {self.sharding}"]
        if not self.chains:
            lines.append("  no axis reached it: it is replicated" if self.axis is None else f"  {self.axis!r} did not reach it")
        for chain in self.chains:
            lines += ["  " * (i + 1) + str(reason) for i, reason in enumerate(chain)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        return self.as_text()


def chain_of(
    holder: Any,
    dim: int,
    axis: AxisRef,
    log: Sequence[Any],
    name: Callable[[Any], str],
    locate: Callable[[Any], str],
    limit: int = 64,
) -> tuple[Reason, ...]:
    """Follows one axis of one dimension of a value back through the log.

    Args:
        holder: The value, or the function result, as the log names it.
        dim: The dimension.
        axis: The axis on it.
        log: Steps of the propagation, in order.
        name: Gives the name of a value.
        locate: Gives `file:line` of an op.
        limit: Longest chain.
    """
    reasons: list[Reason] = []
    before = len(log)
    while len(reasons) < limit:
        found = _introduced(holder, dim, axis, log, before)
        if found is None:
            owner = getattr(holder, "defining_op", None)
            reasons.append(Reason(name(holder), dim, format_axis(axis), "annotation", location="" if owner is None else locate(owner)))
            break
        number, step = found
        reasons.append(
            Reason(
                name(holder),
                dim,
                format_axis(axis),
                "propagated" if step.op is not None else step.reason,
                "" if step.op is None else step.op.primitive or step.op.name,
                "" if step.op is None or step.op.rule is None else str(step.op.rule),
                "" if step.op is None else locate(step.op),
                number,
                step.user_priority,
                step.op_priority,
            )
        )
        source = _source(step, holder, dim, axis)
        if source is None:
            break
        holder, dim, before = *source, number
    return tuple(reasons)


def _introduced(holder: Any, dim: int, axis: AxisRef, log: Sequence[Any], before: int) -> tuple[int, Any] | None:
    for number in range(before - 1, -1, -1):
        step = log[number]
        if step.target is holder and _has(step.new, dim, axis) and not _has(step.old, dim, axis):
            return number, step
    return None


def _has(sharding: TensorSharding | None, dim: int, axis: AxisRef) -> bool:
    return sharding is not None and dim < sharding.rank and any(a.name == axis.name for a in sharding.dims[dim].axes)


def _source(step: Any, holder: Any, dim: int, axis: AxisRef) -> tuple[Any, int] | None:
    """The other tensor of the step, and its dimension, that had the axis on the same factor."""
    rule = None if step.op is None else step.op.rule
    factors: set[int] = set()
    if rule is not None:
        for tensor, mapping in zip(step.tensors, rule.mappings):
            if tensor is holder and dim < len(mapping):
                factors |= set(mapping[dim])
    fallback: tuple[Any, int] | None = None
    for i, (tensor, sharding) in enumerate(zip(step.tensors, step.before)):
        if tensor is holder or sharding is None:
            continue
        for d in range(sharding.rank):
            if not _has(sharding, d, axis):
                continue
            if rule is None or (i < len(rule.mappings) and d < len(rule.mappings[i]) and factors & set(rule.mappings[i][d])):
                return tensor, d
            fallback = fallback or (tensor, d)
    return fallback
