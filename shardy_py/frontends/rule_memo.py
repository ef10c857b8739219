"""One rule per signature of an op, for ops that no template holds."""

from __future__ import annotations

import functools
from typing import Any

from shardy_py.dialect import OpShardingRule
from shardy_py.ir import Block, Op, Type
from shardy_py.rules import rule_for


def memoised_rule(op: Op) -> OpShardingRule | None:
    """As `rules.rule_for`, for ops whose neighbours do not matter (`rules.CONTEXT`)."""
    try:
        return _rule(op.name, tuple([v.type for v in op.operands]), tuple([v.type for v in op.results]), tuple(op.attributes.items()))
    except TypeError:  # an attribute that has no hash
        return rule_for(op)


@functools.lru_cache(maxsize=20_000)
def _rule(
    name: str, operands: tuple[Type, ...], results: tuple[Type, ...], attributes: tuple[tuple[str, Any], ...]
) -> OpShardingRule | None:
    return rule_for(Op(name, Block(operands).arguments, results, dict(attributes)))
