"""The conversions of ops, by name."""

from __future__ import annotations

from collections.abc import Mapping

from shardy_py.ir.tables import merge_tables
from shardy_py.opt.partitioner.convert_global_to_local import (
    collectives,
    constants,
    edges,
    exchanges,
    gather,
    products,
    scatter,
)
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Conversion

ALWAYS: Mapping[str, Conversion] = merge_tables((collectives.CONVERSIONS, exchanges.CONVERSIONS, constants.ALWAYS))
"""Ops that no local program has."""

WHERE_CUT: Mapping[str, Conversion] = merge_tables(
    (constants.CONVERSIONS, edges.CONVERSIONS, gather.CONVERSIONS, products.CONVERSIONS, scatter.CONVERSIONS)
)
"""Ops that are converted where an operand or result is cut; any other op gets local types and stays as it is."""

KEPT_SDY = frozenset(("sdy.named_computation", "sdy.return"))
"""Ops of the SDY dialect that a local program may have."""

_both = merge_tables((ALWAYS, WHERE_CUT))  # raises where a name is in two tables
