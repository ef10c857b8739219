"""Axes that tensors agree on, and how far they fit one tensor."""

from __future__ import annotations

import pytest

from shardy_py.dialect import AxisRef
from shardy_py.dialect.axis import Axes, is_prefix, is_strict_prefix
from shardy_py.dialect.projection import FactorSharding, TensorFactors
from shardy_py.passes.propagation.compatible import (
    compatible_major_axes,
    fit_across_factors,
    fit_within_factor,
    truncate,
)
from tests.passes.propagation.modules import BACKWARD, BOTH, FORWARD, MESH, NONE

A, B, C, D = (AxisRef(name) for name in "abcd")
C1, C2 = AxisRef("c", 1, 2), AxisRef("c", 2, 2)


def tensor(*axes: Axes | None, blocked: Axes = (), closed: bool = False, minor_most: bool = True, overflow: Axes = ()) -> TensorFactors:
    """A tensor with factors 0, 1, ...; None where it lacks one."""
    states = {f: FactorSharding(a, closed, minor_most, overflow if not f else ()) for f, a in enumerate(axes) if a is not None}
    return TensorFactors(states, blocked)


@pytest.mark.parametrize(
    ("first", "second", "prefix", "strict"),
    [
        ((), (), True, False),
        ((), (A,), True, True),
        ((A,), (A,), True, False),
        ((A,), (A, B), True, True),
        ((A, B), (A,), False, False),
        ((B,), (A, B), False, False),
        ((C1,), (C,), True, True),
        ((C1,), (C, A), True, True),
        ((C2,), (C,), False, False),
        ((C1, A), (C, A), False, False),
        ((A, C1), (A, C), True, True),
    ],
)
def test_prefixes(first: Axes, second: Axes, prefix: bool, strict: bool) -> None:
    assert is_prefix(first, second) == prefix
    assert is_strict_prefix(first, second) == strict


@pytest.mark.parametrize(
    ("operands", "results", "direction", "expected"),
    [
        ([(A,)], [()], BOTH, (A,)),
        ([(A,)], [()], FORWARD, (A,)),
        ([(A,)], [()], BACKWARD, ()),
        ([()], [(A,)], FORWARD, ()),
        ([()], [(A,)], BACKWARD, (A,)),
        ([(A,)], [()], NONE, ()),
        ([(A,), (A, B)], [(A, B, C)], BOTH, (A, B, C)),
        ([(A,), (A, B)], [(A, B, C)], FORWARD, (A, B)),
        ([(A,), (B,)], [()], BOTH, ()),
        ([(A, B), (A, C)], [()], BOTH, (A,)),
        # after a conflict nothing is added any more
        ([(A, B), (A, C)], [(A, B, C)], BOTH, (A,)),
        ([(A,)], [(B,)], FORWARD, ()),
        # sub-axes: a part and the whole agree on the whole, where it may still grow
        ([(C1,), (C,)], [()], BOTH, (C,)),
        ([(C,), (C1,)], [()], BOTH, (C,)),
        ([(C1,)], [(C,)], FORWARD, (C1,)),
        ([(C1, A), (C,)], [()], BOTH, (C1,)),
        ([(C,), (C1, A)], [()], BOTH, (C1,)),
        ([(C1,), (C2,)], [()], BOTH, ()),
    ],
)
def test_compatible_major_axes(operands: list[Axes], results: list[Axes], direction: int, expected: Axes) -> None:
    tensors = [tensor(axes) for axes in (*operands, *results)]
    assert compatible_major_axes(tensors, len(operands), 0, direction) == expected


def test_tensors_without_the_factor_do_not_matter() -> None:
    assert compatible_major_axes([tensor((A,)), tensor(None, (B,)), tensor(())], 2, 0, BOTH) == (A,)


def within(axis: AxisRef, state: TensorFactors, size: int, before: int = 1) -> AxisRef | None:
    return fit_within_factor(axis, before, state, state.factors[0], size, MESH)


def test_fit_within_factor() -> None:
    assert within(A, tensor(()), 8) is A
    assert within(A, tensor((), closed=True), 8) is None
    assert within(A, tensor((A,), closed=True), 8) is A
    assert within(C1, tensor((C,), closed=True), 8) is C1
    assert within(C, tensor((C1,), closed=True), 8) is C1
    assert within(A, tensor((), overflow=(B,)), 8) is None
    assert within(A, tensor((), blocked=(A,)), 8) is None
    assert within(C, tensor((), blocked=(C2,)), 8) is C1


def test_only_a_minor_most_factor_is_sharded_unevenly() -> None:
    assert within(D, tensor(()), 8) is D
    assert within(D, tensor((), minor_most=False), 8) is None
    assert within(C, tensor((), minor_most=False), 6) is C1
    assert within(C, tensor((), minor_most=False), 8, before=4) is C1
    assert within(C, tensor((), minor_most=False), 8, before=8) is None
    assert within(C, tensor((), minor_most=False), 8, before=3) is None


def test_fit_across_factors() -> None:
    assert fit_across_factors(A, tensor((), (B,)), 0) is A
    assert fit_across_factors(A, tensor((), (A,)), 0) is None
    assert fit_across_factors(A, tensor((A,), ()), 0) is A
    assert fit_across_factors(C, tensor((), (C2,)), 0) is C1
    assert fit_across_factors(C, tensor((), (C1,)), 0) is None
    assert fit_across_factors(A, tensor((), (), overflow=(A,)), 1) is None


def test_truncate() -> None:
    def all_but_c2(axis: AxisRef, before: int) -> AxisRef | None:
        return {A: A, B: None, C: C1, D: D}[axis]

    assert truncate((A, D), MESH, all_but_c2) == (A, D)
    assert truncate((A, B, D), MESH, all_but_c2) == (A,)
    assert truncate((A, C, D), MESH, all_but_c2) == (A, C1)
    assert truncate((A, C, D), MESH, all_but_c2, conservative=True) == (A,)
    sizes: list[int] = []
    truncate((A, C, D), MESH, lambda axis, before: sizes.append(before) or axis)
    assert sizes == [1, 2, 8]
