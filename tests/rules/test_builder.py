from __future__ import annotations

from shardy_py.dialect import FactorType
from shardy_py.rules import FactorBuilder, Signature, identity_rule
from shardy_py.rules.builder import NO_DIM
from shardy_py.rules.elementwise import pointwise


def test_dimensions_without_a_factor_get_one_of_size_one() -> None:
    builder = FactorBuilder([(4, 8), (8,)], [(4,)])
    builder.add((NO_DIM, 0), (NO_DIM,), 8)
    assert str(builder.build()) == "#sdy.op_sharding_rule<([j, k], [i])->([l]) {i=8, j=1, k=1, l=1}>"


def test_a_factor_of_size_one_is_not_added_to_a_dimension_that_has_one() -> None:
    builder = FactorBuilder([(4,), (4,)], [(4,)])
    builder.add((0,), (0,), 4)
    builder.add((0, 0), (0,), 1, FactorType.REDUCTION)
    assert str(builder.build()) == "#sdy.op_sharding_rule<([i], [j])->([i]) {i=4, j=1} reduction={j}>"


def test_factors_of_one_dimension_are_major_to_minor() -> None:
    builder = FactorBuilder([(8,)], [(2, 4)])
    builder.add((0,), (0,), 2)
    builder.add((0,), (1,), 4)
    assert str(builder.build()) == "#sdy.op_sharding_rule<([ij])->([i, j]) {i=2, j=4}>"


def test_scalars_are_left_out_of_factors_for_all() -> None:
    builder = FactorBuilder([(4,), ()], [(4,), ()])
    builder.add_to_all(0, 4, FactorType.PERMUTATION, blocked=True)
    assert str(builder.build()) == "#sdy.op_sharding_rule<([i], [])->([i], []) {i=4} permutation={i} blocked_propagation={i}>"


def test_equal_rules_are_one_object() -> None:
    shape = (4, 8)
    assert pointwise(Signature((shape,), (shape,))) is identity_rule(shape)
    assert identity_rule(shape, 2) is pointwise(Signature((shape, shape), (shape,)))
