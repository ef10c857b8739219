"""Name of an op -> how it is converted."""

from __future__ import annotations

from collections.abc import Mapping

from shardy_py.passes.partitioner.convert_global_to_local import (
    collectives,
    computations,
    constants,
    edges,
    exchanges,
    gather,
    products,
    scatter,
)
from shardy_py.passes.partitioner.convert_global_to_local.emitter import Conversion


def _merged(*tables: Mapping[str, Conversion]) -> dict[str, Conversion]:
    merged: dict[str, Conversion] = {}
    for table in tables:
        for name, conversion in table.items():
            if name in merged:
                raise ValueError(f"the conversion of '{name}' is registered twice")
            merged[name] = conversion
    return merged


ALWAYS: Mapping[str, Conversion] = _merged(collectives.CONVERSIONS, exchanges.CONVERSIONS, computations.ALWAYS, constants.ALWAYS)
"""Ops that no local program has."""

WHERE_CUT: Mapping[str, Conversion] = _merged(
    constants.CONVERSIONS, edges.CONVERSIONS, gather.CONVERSIONS, products.CONVERSIONS, scatter.CONVERSIONS
)
"""Ops that are converted where an operand or result is cut; any other op gets local types and stays as it is."""

KEPT_SDY = frozenset(("sdy.named_computation", "sdy.return"))
"""Ops of the SDY dialect that a local program may have."""

_both = _merged(ALWAYS, WHERE_CUT)  # raises where a name is in two tables
