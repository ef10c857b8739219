from __future__ import annotations

from shardy_py.dialect import AxisRef, Mesh, OpShardingRule
from shardy_py.dialect.axis import is_strict_prefix
from shardy_py.dialect.projection import FactorSharding, TensorFactors
from shardy_py.opt.explicit_reshards.decision import compatible_axes, find_common_axes, redistribute

MESH = Mesh([("x", 2), ("y", 2), ("z", 4)])
X, Y, Z = (AxisRef(name) for name in "xyz")
Z1, Z2 = AxisRef("z", 1, 2), AxisRef("z", 2, 2)
DOT = OpShardingRule((8, 4, 16), [[[0], [2]], [[2], [1]]], [[[0], [1]]], reduction=[2])
SIZES = (128, 64, 32)


def test_prefixes_may_end_in_part_of_an_axis() -> None:
    assert is_strict_prefix((), (X,))
    assert is_strict_prefix((X, Z1), (X, Z))
    assert not is_strict_prefix((Z2,), (Z,))
    assert not is_strict_prefix((X,), (X,))
    assert not is_strict_prefix((X, Y), (X,))


def test_tensors_that_agree_keep_their_axes() -> None:
    tensors = [{0: (X,), 2: (Y,)}, {2: (Y,), 1: ()}, {0: (X,), 1: ()}]
    assert compatible_axes(DOT, tensors) == [(X,), (), (Y,)]
    assert find_common_axes(DOT, tensors, SIZES, MESH) == [(X,), (), (Y,)]


def test_an_axis_cannot_be_used_for_two_factors() -> None:
    assert compatible_axes(DOT, [{0: (X,), 2: ()}, {2: (), 1: (X,)}, {0: (X,), 1: (X,)}]) is None


def test_the_proposal_of_the_largest_tensors_wins_and_the_others_keep_what_is_left() -> None:
    tensors = [{0: (X,), 2: (Z,)}, {2: (Z,), 1: (X, Y)}, {0: (), 1: ()}]
    assert find_common_axes(DOT, tensors, SIZES, MESH) == [(X,), (), (Z,)]


def test_a_longer_proposal_extends_a_shorter_one() -> None:
    tensors = [{0: (Z1,), 2: ()}, {2: (), 1: ()}, {0: (Z1, X), 1: ()}]
    assert find_common_axes(DOT, tensors, SIZES, MESH) == [(Z1, X), (), ()]


def test_a_factor_waits_for_the_one_in_front_of_it() -> None:
    merge = OpShardingRule((4, 6), [[[0], [1]]], [[[0, 1]]])
    assert find_common_axes(merge, [{0: (X,), 1: (Y,)}, {0: (), 1: ()}], (24, 24), MESH) == [(X,), ()]
    assert find_common_axes(merge, [{0: (Z,), 1: (Y,)}, {0: (), 1: ()}], (24, 24), MESH) == [(Z,), (Y,)]


def test_of_two_tensors_the_preferred_wins() -> None:
    reverse = OpShardingRule((8, 8), [[[0], [1]]], [[[0], [1]]], permutation=[1])
    larger_but_permuted = {0: (), 1: (Z,)}
    assert find_common_axes(reverse, [larger_but_permuted, {0: (X,), 1: ()}], (64, 64), MESH) == [(X,), ()]
    reduce = OpShardingRule((8, 8), [[[0], [1]]], [[[0]]], reduction=[1])
    assert find_common_axes(reduce, [{0: (X,), 1: (Y,)}, {0: (Y,)}], (64, 8), MESH) == [(X,), (Y,)]


def test_axes_of_factors_that_need_replication_go_to_batching_factors_that_they_divide() -> None:
    sort = OpShardingRule((6, 8, 8), [[[0], [1], [2]]], [[[0], [1], [2]]], need_replication=[2])
    tensors = [{0: (), 1: (Y,), 2: (X, Z)}, {0: (), 1: (Y,), 2: (X, Z)}]
    assert find_common_axes(sort, tensors, (384, 384), MESH) == [(X,), (Y, Z), ()]
    custom = OpShardingRule((8, 8), [[[0], [1]]], [[[0]]], need_replication=[1])
    assert find_common_axes(custom, [{0: (), 1: (X,)}, {0: ()}], (64, 8), MESH) == [(), ()]


def test_axes_are_dealt_out_to_the_first_factor_that_they_divide() -> None:
    merge = OpShardingRule((3, 4), [[[0], [1]]], [[[0, 1]]])
    operand = TensorFactors({0: FactorSharding((), True, True), 1: FactorSharding((), True, True)}, ())
    result = TensorFactors({0: FactorSharding((), True, False, overflow=(X,)), 1: FactorSharding((), True, True)}, ())
    assert redistribute(merge, [operand, result], "mesh", MESH) == [(), ()]
    six = OpShardingRule((6, 4), merge.operand_mappings, merge.result_mappings)
    result = TensorFactors({0: FactorSharding((), True, False, overflow=(Z,)), 1: FactorSharding((), True, True)}, ())
    assert redistribute(six, [operand, result], "mesh", MESH) == [(Z1,), ()]
