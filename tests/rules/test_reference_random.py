"""Rules of random ops against the rules that jaxlib's Shardy attaches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rules.mlir_text import COMPARE, Shape, Slicing, array, combiner, function, gather, pairs, scatter
from tests.rules.reference import check

SIZES = st.sampled_from((1, 1, 2, 3, 4, 5, 6, 8, 12))
FACTORS = st.lists(st.sampled_from((1, 1, 2, 2, 2, 3, 3, 5, 7)), min_size=1, max_size=7)
BATCH = 8  # ops per example: a request to the reference costs more than an op


@st.composite
def grouped(draw: st.DrawFn, factors: Sequence[int]) -> Shape:
    """A shape whose dimensions are products of consecutive factors."""
    cuts = draw(st.lists(st.booleans(), min_size=len(factors) - 1, max_size=len(factors) - 1))
    shape = [factors[0]]
    for factor, cut in zip(factors[1:], cuts):
        if cut:
            shape.append(factor)
        else:
            shape[-1] *= factor
    return tuple(shape)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Shape, Shape]:
    factors = draw(FACTORS)
    if draw(st.integers(0, 15)) == 0:
        factors[draw(st.integers(0, len(factors) - 1))] = 0
    return draw(grouped(factors)), draw(grouped(draw(st.permutations(factors)) if draw(st.booleans()) else factors))


@given(st.lists(reshapes(), min_size=1, max_size=BATCH))
@settings(max_examples=100)
def test_reshape(cases: list[tuple[Shape, Shape]]) -> None:
    assert all(math.prod(a) == math.prod(b) for a, b in cases)
    check((function("stablehlo.reshape", [(a, "f32")], [(b, "f32")]) for a, b in cases), conservative=False)


@st.composite
def convolutions(draw: st.DrawFn) -> str:
    spatial = draw(st.integers(0, 3))
    batch_groups, feature_groups = draw(st.sampled_from(((1, 1), (1, 1), (1, 4), (1, 6), (2, 1), (4, 1))))
    batch, in_per_group = draw(SIZES), draw(SIZES)
    out = draw(SIZES) * batch_groups * feature_groups
    lhs, rhs, result, dims = [], [], [], []
    for _ in range(spatial):
        size, window = draw(st.integers(1, 30)), draw(st.integers(1, 12))
        stride, lhs_dilation, rhs_dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
        dilated, reach = (size - 1) * lhs_dilation + 1, (window - 1) * rhs_dilation + 1
        low = draw(st.integers(-1, 8))
        high = draw(st.integers(max(0, reach - dilated - low), reach + 4))
        lhs.append(size)
        rhs.append(window)
        result.append((dilated + low + high - reach) // stride + 1)
        dims.append((stride, (low, high), lhs_dilation, rhs_dilation))
    shapes, orders = [], []
    for first, second, inner in (
        (batch * batch_groups, in_per_group * feature_groups, lhs),
        (in_per_group, out, rhs),
        (batch, out, result),
    ):
        order = draw(st.permutations(range(spatial + 2)))
        shape = [0] * (spatial + 2)
        for position, size in zip(order, (first, second, *inner)):
            shape[position] = size
        shapes.append(tuple(shape))
        orders.append(order)

    def layout(order: list[int], first: str, second: str) -> str:
        names: dict[int, Any] = {order[0]: first, order[1]: second, **{d: i for i, d in enumerate(order[2:])}}
        return ", ".join(str(names[i]) for i in range(len(order)))

    numbers = f"[{layout(orders[0], 'b', 'f')}]x[{layout(orders[1], 'i', 'o')}]->[{layout(orders[2], 'b', 'f')}]"
    attributes = [
        f"dimension_numbers = #stablehlo.conv<{numbers}>",
        f"batch_group_count = {batch_groups} : i64",
        f"feature_group_count = {feature_groups} : i64",
    ]
    if spatial:
        attributes += [
            f"window_strides = {array(d[0] for d in dims)}",
            f"padding = {pairs([d[1] for d in dims])}",
            f"lhs_dilation = {array(d[2] for d in dims)}",
            f"rhs_dilation = {array(d[3] for d in dims)}",
        ]
    return function("stablehlo.convolution", [(shapes[0], "f32"), (shapes[1], "f32")], [(shapes[2], "f32")], ", ".join(attributes))


@pytest.mark.slow
@given(st.lists(convolutions(), min_size=1, max_size=BATCH))
@settings(max_examples=100)
def test_convolution(functions: list[str]) -> None:
    check(functions)


@st.composite
def slicings(draw: st.DrawFn) -> Slicing:
    rank = draw(st.integers(0, 4))
    operand = draw(st.lists(SIZES, min_size=rank, max_size=rank))
    kinds = draw(st.lists(st.sampled_from(("window", "window", "collapsed", "batching")), min_size=rank, max_size=rank))
    batching = [d for d in range(rank) if kinds[d] == "batching"]
    indexed = [d for d in draw(st.permutations(range(rank))) if d not in batching]
    index_map = indexed[: draw(st.integers(0, len(indexed)))]
    sizes = [1 if kind != "window" else draw(st.sampled_from((n, n, 1, draw(st.integers(1, n))))) for n, kind in zip(operand, kinds)]

    batch = [*draw(st.permutations([(operand[d], d) for d in batching])), *((draw(SIZES), -1) for _ in range(draw(st.integers(0, 2))))]
    batch = draw(st.permutations(batch))
    vector_dim = draw(st.integers(0, len(batch)))
    indices: list[tuple[int, int]] = list(batch)
    if len(index_map) != 1 or draw(st.booleans()):
        indices.insert(vector_dim, (len(index_map), -1))
    else:
        vector_dim = len(batch)
    windows = kinds.count("window")
    window_dims = sorted(draw(st.permutations(range(windows + len(batch))))[:windows])
    return Slicing(
        tuple(operand),
        tuple(n for n, _ in indices),
        tuple(window_dims),
        tuple(d for d in range(rank) if kinds[d] == "collapsed"),
        tuple(batching),
        tuple(next(i for i, (_, source) in enumerate(indices) if source == d) for d in batching),
        tuple(index_map),
        vector_dim,
        tuple(sizes),
    )


@given(st.lists(slicings(), min_size=1, max_size=BATCH))
@settings(max_examples=100)
def test_gather(cases: list[Slicing]) -> None:
    check(map(gather, cases), conservative=False)


@given(
    st.lists(
        st.tuples(
            slicings(),
            st.sampled_from(("stablehlo.add", "stablehlo.multiply", "stablehlo.maximum", "stablehlo.subtract")),
            st.integers(1, 2),
        ),
        min_size=1,
        max_size=BATCH,
    )
)
@settings(max_examples=100)
def test_scatter(cases: list[tuple[Slicing, str, int]]) -> None:
    check((scatter(case, op=op, inputs=inputs) for case, op, inputs in cases), conservative=False)


@st.composite
def dot_generals(draw: st.DrawFn) -> str:
    batch, contract, left, right = (draw(st.lists(SIZES, max_size=2)) for _ in range(4))
    lhs, rhs = [0] * (len(batch + contract + left)), [0] * (len(batch + contract + right))
    dims = []
    for shape in (lhs, rhs):
        order = draw(st.permutations(range(len(shape))))
        positions = list(order)
        groups = []
        for sizes in (batch, contract):
            groups.append([positions.pop() for _ in sizes])
            for position, size in zip(groups[-1], sizes):
                shape[position] = size
        for position, size in zip(sorted(positions), left if shape is lhs else right):
            shape[position] = size
        dims.append(groups)
    result = (*batch, *left, *right)
    text = (
        f"lhs_batching_dimensions = {dims[0][0]}, rhs_batching_dimensions = {dims[1][0]}, "
        f"lhs_contracting_dimensions = {dims[0][1]}, rhs_contracting_dimensions = {dims[1][1]}"
    )
    attributes = f"dot_dimension_numbers = #stablehlo.dot<{text}>"
    return function("stablehlo.dot_general", [(tuple(lhs), "f32"), (tuple(rhs), "f32")], [(result, "f32")], attributes)


@given(st.lists(dot_generals(), min_size=1, max_size=BATCH))
@settings(max_examples=60)
def test_dot_general(functions: list[str]) -> None:
    check(functions, conservative=False)


@st.composite
def windows(draw: st.DrawFn) -> str:
    rank = draw(st.integers(1, 3))
    shape, window, strides, padding, base = [], [], [], [], []
    for _ in range(rank):
        shape.append(draw(SIZES))
        window.append(draw(st.integers(1, 3)))
        strides.append(draw(st.integers(1, 3)))
        padding.append((draw(st.integers(-1, 2)) if shape[-1] > 1 else 0, draw(st.integers(2, 4)) if window[-1] > 1 else 0))
        base.append(draw(st.integers(1, 2)))
    scatters = draw(st.booleans())
    sizes = [n if scatters else (n - 1) * b + 1 for n, b in zip(shape, base)]
    result = tuple((n + lo + hi - w) // s + 1 for n, w, s, (lo, hi) in zip(sizes, window, strides, padding))
    text = f"window_dimensions = {array(window)}, window_strides = {array(strides)}, padding = {pairs(padding)}"
    if scatters:
        operands = [(tuple(shape), "f32"), (result, "f32"), ((), "f32")]
        return function("stablehlo.select_and_scatter", operands, [(tuple(shape), "f32")], text, f"{COMPARE}, {combiner()}")
    text += f", base_dilations = {array(base)}"
    return function("stablehlo.reduce_window", [(tuple(shape), "f32"), ((), "f32")], [(result, "f32")], text, combiner())


@given(st.lists(windows(), min_size=1, max_size=BATCH))
@settings(max_examples=60)
def test_windows(functions: list[str]) -> None:
    check(functions)
