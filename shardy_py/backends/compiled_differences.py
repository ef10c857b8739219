"""Compares the collectives that were planned with those of the compiled program."""

from __future__ import annotations

import math
from collections.abc import Iterable

from shardy_py.backends.compiled_text import CompiledCollective
from shardy_py.dialect.format import short_location
from shardy_py.ir.types import element_bits
from shardy_py.plan.collectives import Collective

_Key = tuple[str, int, int, int | None]

_PACKED = ("int4", "uint4", "int2", "uint2")


def differences(predicted: Iterable[Collective], compiled: Iterable[CompiledCollective], *, platform: str = "cpu") -> list[str]:
    """Differences of planned and compiled collectives, a line each, largest first; on `"cpu"` XLA moves narrow types as wider ones."""
    planned: dict[_Key, list[str]] = {}
    for c in predicted:
        if c.group_size > 1:
            group = 0 if c.kind == "collective_permute" else c.group_size
            where = " ".join(part for part in (short_location(c.location), c.value, c.primitive) if part)
            planned.setdefault((c.kind, group, wire_bytes(c, platform), c.trips), []).append(where)
    actual: dict[_Key, list[str]] = {}
    for op in compiled:
        if op.kind == "collective_permute" or op.group_size > 1:
            group = 0 if op.kind == "collective_permute" else op.group_size
            for piece in op.pieces:
                where = " ".join(part for part in (short_location(op.location), op.op_name) if part)
                actual.setdefault((op.kind, group, piece, op.trips), []).append(where)
    lines: list[tuple[int, str]] = []
    for key in dict.fromkeys((*planned, *actual)):
        ours, theirs = planned.get(key, []), actual.get(key, [])
        if len(ours) != len(theirs):
            more, title = (ours, "planned, not compiled") if len(ours) > len(theirs) else (theirs, "compiled, not planned")
            lines.append((key[2], f"{title}: {_described(key, abs(len(ours) - len(theirs)))}{_places(more)}"))
    return [line for _, line in sorted(lines, key=lambda entry: -entry[0])]


def wire_bytes(c: Collective, platform: str = "cpu") -> int:
    """Bytes of a collective's operand as they are sent.

    XLA's compiler for CPUs turns bfloat16 into float32, 8 bit floats into float16 and packed integers into 8 bit ones, for all kinds of
    collectives.

    Example:
        >>> wire_bytes(Collective("all_gather", ("x",), 4, 128, dtype="bfloat16", shape=(8, 8)))
        256
    """
    if platform != "cpu" or not c.dtype:
        return c.operand_bytes
    elements = math.prod(c.shape)
    if c.dtype in _PACKED:
        return elements
    if c.dtype == "bfloat16" or (c.dtype.startswith("float") and element_bits(c.dtype) <= 8):
        return elements * (4 if c.dtype == "bfloat16" else 2)
    return c.operand_bytes


def _described(key: _Key, count: int) -> str:
    kind, group, size, trips = key
    among = f" among {group}" if group else ""
    trips_text = ", trips unknown" if trips is None else f", {trips} trips" if trips != 1 else ""
    return f"{count} {kind} of {size} B{among}{trips_text}"


def _places(places: list[str]) -> str:
    named = list(dict.fromkeys(filter(None, places)))
    return f" ({'; '.join(named[:3])}{'; ...' if len(named) > 3 else ''})" if named else ""
