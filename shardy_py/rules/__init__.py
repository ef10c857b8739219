"""Sharding rules: which dimensions of an op's operands and results are sharded together, and how.

`registry.RULES` is the table of all of them; `einsum` holds the string form in which users write their own.
"""

from shardy_py.rules.builder import FactorBuilder as FactorBuilder
from shardy_py.rules.builder import Signature as Signature
from shardy_py.rules.builder import identity_rule as identity_rule
from shardy_py.rules.einsum import RuleSpec as RuleSpec
from shardy_py.rules.einsum import parse_einsum_rule as parse_einsum_rule
from shardy_py.rules.einsum_text import ShardingRuleError as ShardingRuleError
from shardy_py.rules.registry import CONTEXT as CONTEXT
from shardy_py.rules.registry import NO_RULE as NO_RULE
from shardy_py.rules.registry import RULES as RULES
from shardy_py.rules.registry import context_of as context_of
from shardy_py.rules.registry import is_registered as is_registered
from shardy_py.rules.registry import rule_for as rule_for
from shardy_py.rules.registry import rule_of as rule_of
from shardy_py.rules.rule_table import RuleTable as RuleTable
from shardy_py.rules.traits import is_elementwise as is_elementwise
from shardy_py.rules.traits import is_pure as is_pure
from shardy_py.rules.traits import pass_through_direction as pass_through_direction
