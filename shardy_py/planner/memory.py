"""Limits of memory: rows of bytes over the entries of a model's tables.

Arguments, and results that take no argument's memory, are exact. Temporaries are those of a finished plan at one of its fullest steps:
the row is exact at that plan, and says how its bytes change where the same values lie otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shardy_py.dialect import Mesh
from shardy_py.ir import Program, Value
from shardy_py.ir.types import Type
from shardy_py.partition.layouts import Layout, local_shape
from shardy_py.partition.price import piece_bytes
from shardy_py.plan.memory.lifetimes import LiveBuffer, Peak
from shardy_py.planner.model import Model
from shardy_py.planner.problem import Limit

Array = Any


def fixed_bytes(program: Program, model: Model, aliased: Iterable[int], dropped: Collection[int], budget: float) -> Limit:
    """The bytes of arguments, and of results that take no argument's memory; `argument + output - alias` of every plan."""
    main, mesh = program.main, model.space.mesh
    in_place = set(aliased)
    values: list[tuple[Value | int, Type]] = [(a, a.type) for i, a in enumerate(main.arguments) if i not in dropped]
    values += [(n, type_) for n, type_ in enumerate(main.result_types) if n not in in_place]
    weights: dict[int, Array] = {}
    for value, type_ in values:
        table = model.values.get(value)
        if table is None:
            budget -= bytes_of(type_, model.space.layout(value, (0,) * len(model.space.strategies)), mesh)
        else:
            weights[table] = np.array([bytes_of(type_, layout, mesh) for layout in model.layouts[table]], float)
    return Limit(tuple(weights), tuple(weights.values()), budget)


def peak_bytes(
    model: Model,
    fixed: Limit,
    peak: Peak,
    budget: float,
    chosen: Sequence[int],
    copies: Mapping[Value, Value],
) -> Limit:
    """The bytes at a step of a finished plan (`chosen` entries): arguments, results, and temporaries alive there."""
    weights = dict(zip(fixed.tables, fixed.weights))
    for buffer in peak.buffers:
        row = _row(model, buffer, copies)
        if row is not None:
            table, bytes_ = row
            weights[table] = weights.get(table, 0.0) + bytes_
    decided = sum(float(row[chosen[table]]) for table, row in weights.items())
    return Limit(tuple(weights), tuple(weights.values()), budget - (peak.bytes - decided))


def _row(model: Model, buffer: LiveBuffer, copies: Mapping[Value, Value]) -> tuple[int, Array] | None:
    """The bytes of a buffer per entry of a table; None where no table decides them, and of a value in another layout than its own."""
    value = None if buffer.value is None else copies.get(buffer.value)
    if value is None or buffer.value is None or buffer.reader is not None or buffer.sharding is not buffer.value.sharding:
        return None
    table = model.values.get(value)
    if table is None:
        return None
    return table, np.array([bytes_of(value.type, layout, model.space.mesh) for layout in model.layouts[table]], float)


def bytes_of(type_: Type, layout: Layout, mesh: Mesh) -> int:
    """The bytes of the piece of a value that a device has."""
    return piece_bytes(type_, math.prod(local_shape(type_.shape, layout, mesh)))
