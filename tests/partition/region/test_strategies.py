"""Under which axes an equation runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardy_py.backends.local.local_rule import make_rule
from shardy_py.dialect import AxisRef, Mesh, OpShardingRule
from shardy_py.partition.region.layouts import Layout, layout
from shardy_py.partition.region.strategies import EquationSpec, Strategy, TensorLayouts, strategies

MESH = Mesh([("x", 2), ("y", 2), ("one", 1)])
AXES = [(), (AxisRef("x"),), (AxisRef("y"),), (AxisRef("x"), AxisRef("y")), (AxisRef("y"), AxisRef("x")), (AxisRef("one"),)]
M, N, K = range(3)
RULES = {
    "add": make_rule((4, 6), [[M, N], [M, N]], [[M, N]]),
    "transpose": make_rule((4, 6), [[M, N]], [[N, M]]),
    "dot": make_rule((4, 6, 8), [[M, K], [K, N]], [[M, N]], reduction=[K]),
    "sort": make_rule((4, 6), [[M, N]], [[M, N], [M, N]], whole=[N]),
    "shift": make_rule((4, 6), [[M, N]], [[M, N]], permutation=[N]),
    "reshape": make_rule((4, 6), [[[M, N]]], [[M, N]]),
}


def decided(rule: OpShardingRule, given: list[tuple[Layout, ...] | None], uneven: frozenset[int] = frozenset()) -> tuple[Strategy, ...]:
    """The strategies of an equation, given layouts of operands and wanted layouts of results."""
    shapes = [tuple(rule.factor_sizes[dim[0]] if len(dim) == 1 else 24 for dim in mapping) for mapping in rule.mappings]
    tensors = [TensorLayouts(shape, 32, versions) for shape, versions in zip(shapes, given, strict=True)]
    count = len(rule.operand_mappings)
    equation = EquationSpec(rule, tuple(tensors[:count]), tuple(tensors[count:]), MESH, "add", uneven, (), None, 0.05)
    return strategies.__wrapped__(equation)  # not the cached answer: a test compares two ways to it


def test_nothing_moves_where_all_agree() -> None:
    cut = layout([AXES[1], AXES[2]])
    (strategy,) = decided(RULES["add"], [(cut,), None, (cut,)])
    assert strategy.operands == (cut, cut)
    assert strategy.results == (cut,)
    assert strategy.cost == strategy.work == 0.05 * 24 / 4


def test_an_operand_moves_where_it_is_alone() -> None:
    cut, other = layout([AXES[1], ()]), layout([(), AXES[1]])
    strategy = decided(RULES["add"], [(cut,), (other,), (cut,)])[0]
    assert strategy.operands == (cut, cut)
    assert strategy.cost > strategy.work


def test_no_axis_cuts_two_factors() -> None:
    cut = layout([AXES[1], ()])
    strategy = decided(RULES["dot"], [(cut,), (layout([(), AXES[1]]),), None])[0]
    assert not set(strategy.axes[M]) & set(strategy.axes[N])


@given(data=st.data(), name=st.sampled_from(sorted(RULES)), uneven=st.booleans())
def test_what_is_plain_is_what_proposals_give(data: st.DataObject, name: str, uneven: bool) -> None:
    rule = RULES[name]

    def one(rank: int) -> st.SearchStrategy[Layout]:
        def legal(dims: tuple[tuple[AxisRef, ...], ...]) -> bool:
            flat = [axis for dim in dims for axis in dim]
            return len(flat) == len(set(flat))

        return st.tuples(*[st.sampled_from(AXES)] * rank).filter(legal).map(layout)

    shared = data.draw(one(2))  # so that tensors often agree

    def versions(rank: int) -> st.SearchStrategy[tuple[Layout, ...] | None]:
        likely = [st.just((shared,))] * 3 if rank == 2 else []
        return st.one_of(*likely, st.none(), one(rank).map(lambda of: (of,)), st.lists(one(rank), max_size=2, unique=True).map(tuple))

    count = len(rule.operand_mappings)
    tensors = [data.draw(versions(len(m)).filter(lambda v, i=i: i >= count or v != ())) for i, m in enumerate(rule.mappings)]
    cuttable = frozenset((M, N)) if uneven else frozenset()
    found = decided(rule, tensors, cuttable)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EquationSpec, "agreement", lambda self: None)
        assert decided(rule, tensors, cuttable) == found
