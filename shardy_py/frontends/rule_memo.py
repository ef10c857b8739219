"""One rule per signature of an op, for ops that no template holds."""

from __future__ import annotations

from typing import Any

from shardy_py.dialect import OpShardingRule
from shardy_py.ir import Op
from shardy_py.rules import rule_for

_RULES: dict[Any, OpShardingRule | None] = {}
_RULES_AT_MOST = 20_000


def memoised_rule(op: Op) -> OpShardingRule | None:
    """As `rules.rule_for`, for ops whose neighbours do not matter (`rules.CONTEXT`)."""
    key = (op.name, tuple([v.type for v in op.operands]), tuple([v.type for v in op.results]), tuple(op.attributes.items()))
    try:
        return _RULES[key]
    except KeyError:
        if len(_RULES) >= _RULES_AT_MOST:
            _RULES.clear()
        rule = _RULES[key] = rule_for(op)
        return rule
    except TypeError:  # an attribute that has no hash
        return rule_for(op)
