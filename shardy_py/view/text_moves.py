"""Reshards of a plan, or the collectives of a program that is partitioned, as lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardy_py.dialect.format import short_location
from shardy_py.dialect.grouping import grouped
from shardy_py.plan.collectives import Collective, trips_text
from shardy_py.plan.movements import format_bytes
from shardy_py.plan.reshards import Reshard
from shardy_py.plan.values import typed

_Row = tuple[str, str, str, str, str]
"""Bytes, trips, steps, place, and the value that moves."""


def reshards(reshards_of_plan: Sequence[Reshard], limit: int | None) -> list[str]:
    """Reshards with the most bytes first; alike ones of several values share a line."""
    moves = [_Move(len(g), g[0].call_bytes, g[0].trips is not None, _reshard(g)) for g in equal_reshards(reshards_of_plan)]
    return _moves("reshard", moves, limit)


def equal_reshards(reshards_of_plan: Iterable[Reshard]) -> list[list[Reshard]]:
    """Groups of reshards that differ in nothing but the value, in order of the first of each."""
    return list(
        grouped(
            reshards_of_plan, lambda r: (r.type, r.source, r.target, r.collectives, r.bytes_per_device, r.reason, r.location, r.trips)
        ).values()
    )


def collectives(collectives_of_plan: Sequence[Collective], limit: int | None) -> list[str]:
    """Collectives of a program that is partitioned, in the order and form of `reshards`."""
    groups = grouped(collectives_of_plan, lambda c: (c.kind, c.axes, c.dtype, c.shape, c.trips, c.location, c.primitive))
    moves = [_Move(len(g), g[0].call_bytes, g[0].trips is not None, _collective(g)) for g in groups.values()]
    return _moves("collective", moves, limit)


@dataclass(frozen=True, slots=True)
class _Move:
    """Movements that are alike: how many, the bytes of one in a call, whether its trip count is known, and their line."""

    count: int
    bytes: int
    exact: bool
    row: _Row


def _moves(what: str, moves: Sequence[_Move], limit: int | None) -> list[str]:
    """A part of the text."""
    if not moves:
        return []
    ordered = sorted(moves, key=lambda move: -move.count * move.bytes)
    listed = ordered if limit is None else ordered[: max(limit // 3, 1)]
    widths = [min(max(len(move.row[k]) for move in listed), 24) for k in range(4)]
    rows = [move.row for move in listed]
    lines = []
    for size, trips, *cells in rows:
        columns = [f"{cell:<{width}}" for cell, width in zip(cells, widths[2:]) if width]
        lines.append("  ".join([f"  {size:>{widths[0]}}{trips:<{widths[1]}}", *columns, cells[-1]]).rstrip())
    count = sum(move.count for move in moves)
    least = "at least " if any(not move.exact for move in moves) else ""
    bring = "which bring" if count > 1 else "which brings"
    total = format_bytes(sum(move.count * move.bytes for move in moves))
    left = ordered[len(listed) :]
    more = [f"  ... and {sum(move.count for move in left):,} more {what}s, of {format_bytes(left[0].bytes)} or less each"] if left else []
    return [f"{what}s  {count:,}, {bring} {least}{total} to each device in a call", *lines, *more]


def _collective(group: Sequence[Collective]) -> _Row:
    c = group[0]
    steps = f"{c.kind}({','.join(c.axes)})"
    what = " of ".join(part for part in (c.operand, c.value) if part) + (f" and {len(group) - 1} more" if len(group) > 1 else "")
    return format_bytes(c.received_bytes), trips_text(c.trips), steps, short_location(c.location), f"{what}  {c.primitive}"


def _reshard(group: Sequence[Reshard]) -> _Row:
    r = group[0]
    value = r.value + (f" and {len(group) - 1} more" if len(group) > 1 else "")
    target, reason = typed(r.type, r.target), r.reason
    if len(r.collectives) == 1 and r.collectives[0].kind in ("all_reduce", "reduce_scatter"):
        move, reason = target, r.primitive or reason
    else:
        move = f"{typed(r.type, r.source)} -> {target[target.find('[') :]}"
    steps = ", ".join(map(str, r.collectives))
    return format_bytes(r.bytes_per_device), trips_text(r.trips), steps, short_location(r.location), f"{value} {move}  {reason}"
