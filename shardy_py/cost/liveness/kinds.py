"""The table of ops by their kind: how each treats memory."""

from __future__ import annotations

from collections.abc import Mapping

from shardy_py.cost.liveness.graph import Kind
from shardy_py.rules.chlo import POINTWISE
from shardy_py.rules.traits import ELEMENTWISE

_CHEAP = (
    "abs add and ceil clamp compare complex convert floor imag is_finite maximum minimum multiply negate not or real reduce_precision"
    " round_nearest_afz round_nearest_even select shift_left shift_right_arithmetic shift_right_logical sign subtract xor bitcast_convert"
).split()
"""Elementwise ops that XLA computes again rather than keep (`InstructionFusion::IsExpensive`)."""

_SHAPES = "concatenate dynamic_slice gather pad reverse slice transpose".split()
_COLLECTIVES = "all_gather all_reduce all_to_all collective_broadcast collective_permute reduce_scatter".split()

KINDS: Mapping[str, Kind] = {
    **dict.fromkeys((*ELEMENTWISE, *POINTWISE), Kind.EXPENSIVE),
    **dict.fromkeys((f"stablehlo.{name}" for name in _CHEAP), Kind.ELEMENTWISE),
    **dict.fromkeys((f"stablehlo.{name}" for name in _SHAPES), Kind.SHAPE),
    **dict.fromkeys((f"{dialect}.{name}" for name in _COLLECTIVES for dialect in ("stablehlo", "sdy")), Kind.COLLECTIVE),
    "sdy.all_reduce": Kind.SUM,
    "sdy.all_slice": Kind.SHAPE,
    "sdy.reshard": Kind.COLLECTIVE,
    "stablehlo.all_reduce": Kind.SUM,
    "stablehlo.broadcast_in_dim": Kind.BROADCAST,
    "stablehlo.case": Kind.BRANCH,
    "stablehlo.dynamic_update_slice": Kind.UPDATE,
    "stablehlo.if": Kind.BRANCH,
    "stablehlo.iota": Kind.BROADCAST,
    "stablehlo.optimization_barrier": Kind.BARRIER,
    "stablehlo.reduce": Kind.REDUCE,
    "stablehlo.reshape": Kind.VIEW,
    "stablehlo.scatter": Kind.SCATTER,
    "stablehlo.while": Kind.LOOP,
}
"""Op -> kind; other ops read and write whole arrays."""


def kind_of(name: str) -> Kind:
    """The kind of an op.

    Example:
        >>> kind_of("stablehlo.tanh"), kind_of("stablehlo.dot_general")
        (<Kind.EXPENSIVE: 'expensive'>, <Kind.WHOLE: 'whole'>)
    """
    return KINDS.get(name, Kind.WHOLE)
