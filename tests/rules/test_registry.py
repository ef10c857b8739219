from __future__ import annotations

import pytest

from shardy_py.ir import TOKEN, Block, Op, TensorType
from shardy_py.rules import CONTEXT, NO_RULE, RULES, context_of, is_registered, rule_for
from shardy_py.rules.custom_call import NO_RULE_TARGETS, TARGETS
from shardy_py.rules.registry import merge_tables

f32 = TensorType((4, 8), "float32")


def op(name: str, *, operands: int = 1, **attributes: object) -> Op:
    return Op(name, Block([f32] * operands).arguments, [f32], attributes)


def test_a_name_in_two_tables_raises() -> None:
    with pytest.raises(ValueError, match="'b' is registered twice"):
        merge_tables(({"a": 1, "b": 2}, {"b": 3}))


def test_an_op_has_a_rule_or_is_listed_as_having_none() -> None:
    assert not RULES.keys() & NO_RULE
    assert not TARGETS.keys() & NO_RULE_TARGETS.keys()
    assert CONTEXT.keys() <= RULES.keys()


@pytest.mark.parametrize("name", [*sorted(NO_RULE), "stablehlo.map", "chlo.top_k", "unheard.of"])
def test_ops_without_a_rule(name: str) -> None:
    assert rule_for(op(name)) is None
    assert is_registered(name) == (name in NO_RULE)


def test_custom_calls() -> None:
    assert rule_for(op("stablehlo.custom_call", call_target_name="my_kernel")) is None
    assert rule_for(op("stablehlo.custom_call", call_target_name="tpu_custom_call")) is None
    assert rule_for(op("stablehlo.custom_call", call_target_name="mhlo.erf")) is rule_for(op("stablehlo.tanh"))
    assert [is_registered("stablehlo.custom_call", target) for target in ("my_kernel", "tpu_custom_call", "mhlo.erf")] == [
        False,
        True,
        True,
    ]


def test_tokens_have_no_rule() -> None:
    argument = Block([f32]).arguments[0]
    assert rule_for(Op("sdy.sharding_constraint", [argument], [TOKEN])) is None
    assert rule_for(Op("stablehlo.custom_call", [argument], [TOKEN], {"call_target_name": "InspectSharding"})) is None


def test_context_is_what_neighbours_change() -> None:
    whole = op("stablehlo.negate").result
    half = Op("stablehlo.slice", [whole], [TensorType((2, 8), "float32")]).result
    joined = TensorType((4, 8), "float32")
    assert context_of(Op("stablehlo.concatenate", [half, half], [joined], {"dimension": 0}))
    assert not context_of(op("stablehlo.concatenate", dimension=0))
    assert not context_of(op("stablehlo.add", operands=2))
    of_slices = rule_for(Op("stablehlo.concatenate", [half, half], [joined], {"dimension": 0}))
    assert of_slices is not None
    assert of_slices.permutation == (0,)


def test_a_permutation_names_every_dimension() -> None:
    with pytest.raises(ValueError, match="shorter"):
        rule_for(op("stablehlo.transpose", permutation=(0,)))
