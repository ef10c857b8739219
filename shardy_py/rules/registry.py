"""The table of all rules, by op name, and the function that looks one up."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardy_py.dialect import INSTALLED, OpShardingRule, Semantics
from shardy_py.dialect.collectives import AXES_OF
from shardy_py.ir.tables import merge_tables
from shardy_py.ir.types import OpaqueType
from shardy_py.rules import (
    contraction,
    custom_call,
    elementwise,
    gather_scatter,
    linear_algebra,
    reductions,
    shape_ops,
    slicing,
)
from shardy_py.rules.builder import Builder, Shape, Signature

if TYPE_CHECKING:
    from shardy_py.ir.core import Op

RULES: dict[str, Builder] = merge_tables(
    (
        elementwise.RULES,
        shape_ops.RULES,
        slicing.RULES,
        contraction.RULES,
        gather_scatter.RULES,
        reductions.RULES,
        linear_algebra.RULES,
        custom_call.RULES,
    )
)
"""Op name -> what builds its rule."""

CONTEXT: dict[str, Callable[[Op], bool]] = merge_tables((slicing.CONTEXT, custom_call.CONTEXT))
"""Op name -> the fact about neighbouring ops that its rule depends on, besides shapes and attributes."""

NO_RULE = frozenset(AXES_OF) | frozenset(
    """
    func.call func.func func.return sdy.collective_permute sdy.constant sdy.data_flow_edge sdy.func_data_flow_edge sdy.manual_computation
    sdy.mesh sdy.named_computation sdy.propagation_barrier sdy.reshard sdy.return sdy.sharding_group stablehlo.after_all stablehlo.case
    stablehlo.constant stablehlo.create_token stablehlo.get_tuple_element stablehlo.infeed stablehlo.iota stablehlo.optimization_barrier
    stablehlo.outfeed stablehlo.partition_id stablehlo.recv stablehlo.return stablehlo.send stablehlo.while
    """.split()
)
"""Ops without a rule by design: they lack operands or results, move data between shardings that are decided, or propagate along edges."""


def is_registered(op_name: str, call_target_name: str | None = None) -> bool:
    """Whether an op has a rule or is listed as having none by design; what is neither should be reported.

    Example:
        >>> is_registered("stablehlo.add"), is_registered("stablehlo.while"), is_registered("stablehlo.map")
        (True, True, False)
        >>> is_registered("stablehlo.custom_call", "Qr"), is_registered("stablehlo.custom_call", "my_kernel")
        (True, False)
    """
    if call_target_name is not None:
        return call_target_name in custom_call.TARGETS or call_target_name in custom_call.NO_RULE_TARGETS
    return op_name in RULES or op_name in NO_RULE


def context_of(op: Op) -> bool:
    """The fact about neighbouring ops that the rule of `op` depends on; False for most ops.

    With it, name, shapes and attributes decide the rule: a cache of rules needs nothing else in its key.
    """
    find = CONTEXT.get(op.name)
    return find is not None and find(op)


def rule_of(op: Op, semantics: Semantics = INSTALLED) -> OpShardingRule | None:
    """The rule that was decided for an op, else the one that it gets."""
    return op.rule if op.rule_decided else rule_for(op, semantics=semantics)


def rule_for(op: Op, *, conservative: bool = False, semantics: Semantics = INSTALLED) -> OpShardingRule | None:
    """The sharding rule of an op as of `sdy-populate-op-sharding-rules`, whatever is attached to it; None if it has none or is unknown."""
    build = RULES.get(op.name)
    if build is None:
        return None
    for result in op.results:
        if type(result.type) is OpaqueType:
            return None
    for operand in op.operands:
        if type(operand.type) is OpaqueType and operand.type.text.startswith("tensor<"):
            return None  # a size that is not known
    operands = tuple([operand.type.shape for operand in op.operands])
    results = tuple([result.type.shape for result in op.results])
    if not operands or not results:
        return None
    context = context_of(op)
    try:
        return _rule(op.name, operands, results, tuple(op.attributes.items()), conservative, context, semantics)
    except TypeError:  # an attribute that has no hash
        return build(Signature(operands, results, op.attributes, conservative, context, semantics))


@functools.lru_cache(maxsize=20_000)
def _rule(
    name: str,
    operands: tuple[Shape, ...],
    results: tuple[Shape, ...],
    attributes: tuple[tuple[str, Any], ...],
    conservative: bool,
    context: bool,
    semantics: Semantics,
) -> OpShardingRule | None:
    return RULES[name](Signature(operands, results, dict(attributes), conservative, context, semantics))
