from __future__ import annotations

import pytest

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.dialect.rule import factor_symbol


def test_matrix_product() -> None:
    rule = OpShardingRule([2, 8, 4, 6], [[[0], [1], [3]], [[0], [3], [2]]], [[[0], [1], [2]]], reduction=[3])
    assert str(rule) == "#sdy.op_sharding_rule<([i, j, l], [i, l, k])->([i, j, k]) {i=2, j=8, k=4, l=6} reduction={l}>"
    assert rule.num_factors == 4
    assert rule.mappings == rule.operand_mappings + rule.result_mappings
    assert rule.factor_types == (FactorType.PASS_THROUGH,) * 3 + (FactorType.REDUCTION,)
    assert rule.batching_factors == (0,)
    assert rule.tensor_sizes == (96, 48, 64)
    assert not rule.has_compound_dims
    assert not rule.is_custom


def test_scalars_do_not_count_for_batching() -> None:
    rule = OpShardingRule.parse("<([i, j], [])->([i]) {i=4, j=2} reduction={j}>")
    assert rule.non_scalar_tensors == (0, 2)
    assert rule.batching_factors == (0,)
    assert rule.is_in_all_non_scalar_tensors(0)
    assert not rule.is_in_all_non_scalar_tensors(1)


def test_factor_types() -> None:
    rule = OpShardingRule.parse(
        "<([i, j, k, l])->([i, k, l]) {i=2, j=3, k=4, l=5} reduction={j} need_replication={k} permutation={l} blocked_propagation={i, l}>"
    )
    assert rule.factor_types == (FactorType.PASS_THROUGH, FactorType.REDUCTION, FactorType.NEED_REPLICATION, FactorType.PERMUTATION)
    assert rule.batching_factors == (0,)


def test_the_first_type_that_applies_counts() -> None:
    rule = OpShardingRule([2], [[[0]]], [[[0]]], reduction=[0], need_replication=[0], permutation=[0])
    assert rule.factor_types[0] is FactorType.REDUCTION
    rule = OpShardingRule([2], [[[0]]], [[[0]]], need_replication=[0], permutation=[0])
    assert rule.factor_types[0] is FactorType.NEED_REPLICATION


def test_compound_dimensions() -> None:
    rule = OpShardingRule.parse("<([i, j])->([ij]) {i=2, j=4}>")
    assert rule.has_compound_dims
    assert rule.tensor_sizes == (8, 8)


def test_malformed_rules_can_be_made_and_printed() -> None:
    rule = OpShardingRule([2], [[[], [5]]], [], reduction=[9])
    assert str(rule) == "#sdy.op_sharding_rule<([#sdy.dim_mapping, n])->() {i=2} reduction={r}>"


@pytest.mark.parametrize(("factor", "symbol"), [(0, "i"), (1, "j"), (17, "z"), (18, "z_1"), (27, "z_10")])
def test_factor_symbol(factor: int, symbol: str) -> None:
    assert factor_symbol(factor) == symbol


def test_many_factors_read_back() -> None:
    n = 40
    rule = OpShardingRule([2] * n, [[list(range(n))]], [[[f] for f in range(n)]])
    assert "yzz_1z_2" in str(rule)
    assert OpShardingRule.parse(str(rule)) is rule
