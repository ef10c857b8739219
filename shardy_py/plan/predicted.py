"""The collectives that a plan's reshards stand for."""

from __future__ import annotations

from collections.abc import Iterable

from shardy_py.dialect.format import format_axis
from shardy_py.plan.collectives import KINDS, Collective
from shardy_py.plan.reshards import Reshard


def predicted(reshards: Iterable[Reshard]) -> tuple[Collective, ...]:
    """What Shardy's explicit collectives would move, one entry per collective, in program order.

    Args:
        reshards: Those of a plan.
    """
    return tuple(
        Collective(
            step.kind,
            tuple(map(format_axis, step.axes)),
            step.group,
            _operand_bytes(step.kind, step.group, step.bytes_per_device),
            reshard.trips,
            value=reshard.value,
            primitive=reshard.primitive,
            location=reshard.location,
        )
        for reshard in reshards
        for step in reshard.collectives
        if step.kind in KINDS and step.group > 1
    )


def _operand_bytes(kind: str, group: int, received: int) -> int:
    """Bytes of the operand of which a device receives so many."""
    if kind == "all_gather":
        return received // (group - 1)
    if kind == "collective_permute":
        return received
    return -(-received * group // ((2 if kind == "all_reduce" else 1) * (group - 1)))
