"""Configurations of reductions, products, cumulative ops and sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import lax
from jax import numpy as jnp

from tests.sweep.draw import COMPLEX, FLOATS, INTEGERS, NUMBERS, SMALL_FLOATS, Case, Draw, Generator

ORDERED = (*FLOATS, *INTEGERS)


def _axes(draw: Draw, rank: int) -> tuple[int, ...]:
    return tuple(draw.some_of(range(rank))) or (draw.integer(0, rank - 1),)


def _reduction(function: Callable[..., Any], types: tuple[str, ...], *, smooth: bool = False, high: int = 4) -> Generator:
    def generate(draw: Draw) -> Case:
        shape, dtype = draw.shape(), draw.dtype(types)
        axes, keep = _axes(draw, len(shape)), draw.chance(25)
        options = {"keepdims": True} if keep else {}
        able = smooth and jnp.issubdtype(dtype, jnp.floating)
        low = 1 if high < 4 else -4
        return Case(lambda x: function(x, axis=axes, **options), (draw.array(shape, dtype, low, high),), (0,) if able else ())

    return generate


def _extreme(function: Callable[..., Any], types: tuple[str, ...]) -> Generator:
    def generate(draw: Draw) -> Case:
        shape, dtype = draw.shape(empty=False), draw.dtype(types)
        axes = _axes(draw, len(shape))
        return Case(lambda x: function(x, axis=axes), (draw.array(shape, dtype),), (0,) if jnp.issubdtype(dtype, jnp.floating) else ())

    return generate


def _arg(name: str) -> Generator:
    def generate(draw: Draw) -> Case:
        shape, dtype = draw.shape(empty=False), draw.dtype((*ORDERED, "bool"))
        axis, index = draw.integer(0, len(shape) - 1), draw.one_of((jnp.int32, jnp.uint8))
        return Case(lambda x: getattr(lax, name)(x, axis, index), (draw.array(shape, dtype),))

    return generate


def _reduce_xor(draw: Draw) -> Case:
    shape, dtype = draw.shape(), draw.dtype((*INTEGERS, "bool"))
    axes = _axes(draw, len(shape))
    return Case(lambda x: lax.reduce(x, jnp.zeros((), dtype), lax.bitwise_xor, axes), (draw.array(shape, dtype, 0, 7),))


def _reduce(draw: Draw) -> Case:
    shape = draw.shape()
    axes = _axes(draw, len(shape))
    kind = draw.integer(0, 2)
    if kind == 0:  # of two operands at once
        two = lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1]))  # noqa: E731
        arguments = draw.array(shape, "float32"), draw.array(shape, "float32")
        return Case(lambda x, y: lax.reduce((x, y), (jnp.float32(0), jnp.float32(-9)), two, axes), arguments)
    if kind == 1:  # not one that XLA has a name for
        return Case(lambda x: lax.reduce(x, jnp.float32(0), lambda a, b: a + b + a * b, axes), (draw.reals(shape, "float32", -0.3, 0.3),))
    start = draw.integer(1, 3)  # from a start that is not neutral
    return Case(lambda x: lax.reduce(x, jnp.float32(start), lax.max, axes), (draw.array(shape, "float32", -4, 2),))


def _cumulative(name: str, types: tuple[str, ...]) -> Generator:
    def generate(draw: Draw) -> Case:
        shape, dtype = draw.shape(empty=False), draw.dtype(types)
        axis, reverse = draw.integer(0, len(shape) - 1), draw.chance(35)
        array = draw.array(shape, dtype, *((1, 2) if name == "cumprod" else (-4, 4)))
        smooth = (0,) if jnp.issubdtype(dtype, jnp.floating) and name != "cumprod" else ()
        return Case(lambda x: getattr(lax, name)(x, axis=axis, reverse=reverse), (array,), smooth)

    return generate


def _two_cumulative(draw: Draw) -> Case:
    shape = draw.shape(empty=False)
    axis = draw.integer(0, len(shape) - 1)
    first, second = draw.shuffled((lax.cumsum, lax.cummax, lax.cummin))[:2]
    return Case(lambda x: (first(x, axis), second(x, axis)), (draw.array(shape, "float32"),))


def _sort(draw: Draw) -> Case:
    shape, count = draw.shape(), draw.one_of((1, 1, 2, 3))
    axis, keys = draw.integer(0, len(shape) - 1), draw.integer(1, count)
    arrays = [draw.array(shape, draw.dtype(ORDERED)) for _ in range(count)]
    smooth = tuple(i for i, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.floating))
    if count == 1:
        return Case(lambda x: lax.sort(x, dimension=axis), tuple(arrays), smooth)
    return Case(lambda *xs: lax.sort(xs, dimension=axis, num_keys=keys), tuple(arrays), smooth)


def _median(draw: Draw) -> Case:
    shape = draw.shape(empty=False)
    axis = draw.one_of((None, *range(len(shape))))
    return Case(lambda x: jnp.median(x, axis), (draw.distinct(shape, "float32"),), (0,))


def _top_k(draw: Draw) -> Case:
    shape, dtype = draw.shape(empty=False), draw.dtype(ORDERED)
    axis = draw.integer(0, len(shape) - 1)
    k = draw.integer(1, shape[axis])
    return Case(lambda x: lax.top_k(x, k, axis=axis), (draw.array(shape, dtype),), (0,) if jnp.issubdtype(dtype, jnp.floating) else ())


def _approx_top_k(draw: Draw) -> Case:
    shape = draw.shape(empty=False)
    axis, name = draw.integer(0, len(shape) - 1), draw.one_of(("approx_max_k", "approx_min_k"))
    k = draw.integer(1, shape[axis])
    return Case(lambda x: getattr(lax, name)(x, k, reduction_dimension=axis), (draw.distinct(shape, "float32"),))


def _dot_general(draw: Draw) -> Case:
    dtype = draw.dtype((*NUMBERS, *SMALL_FLOATS))
    batch, contracting, left, right = (
        [draw.size() for _ in range(draw.one_of(counts))] for counts in ((0, 0, 1), (0, 1, 1, 2), (0, 1, 1), (0, 1, 1))
    )
    sides = []
    for own in (left, right):
        named = [
            *((("b", i), n) for i, n in enumerate(batch)),
            *((("c", i), n) for i, n in enumerate(contracting)),
            *((None, n) for n in own),
        ]
        named = draw.shuffled(named)
        at = {key: d for d, (key, _) in enumerate(named) if key is not None}
        sides.append((tuple(n for _, n in named), at))
    (one, at_one), (two, at_two) = sides
    pairs = lambda kind, count: tuple(tuple(at[kind, i] for i in range(count)) for at in (at_one, at_two))  # noqa: E731
    numbers = (pairs("c", len(contracting)), pairs("b", len(batch)))
    arguments = draw.array(one, dtype, -2, 2), draw.array(two, dtype, -2, 2)
    preferred = jnp.float32 if dtype.itemsize < 4 and jnp.issubdtype(dtype, jnp.floating) and draw.chance(60) else None
    smooth = (0, 1) if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize > 1 else ()
    return Case(lambda x, y: lax.dot_general(x, y, numbers, preferred_element_type=preferred), arguments, smooth)


def _ragged_dot(draw: Draw) -> Case:
    groups, rows, inner, columns = draw.integer(1, 4), draw.size(), draw.size(), draw.size()
    cuts = sorted(draw.integer(0, rows) for _ in range(groups - 1))
    sizes = jnp.asarray([b - a for a, b in zip([0, *cuts], [*cuts, rows])], jnp.int32)
    arguments = draw.array((rows, inner), "float32", -2, 2), draw.array((groups, inner, columns), "float32", -2, 2), sizes
    return Case(lax.ragged_dot, arguments, (0, 1), (2,))


def _einsum(draw: Draw) -> Case:
    sizes = {c: draw.size() for c in "abcd"}
    terms = ["".join(draw.shuffled("abcd")[: draw.integer(1, 3)]) for _ in range(draw.integer(1, 3))]
    out = "".join(draw.some_of(sorted(set("".join(terms)))))
    arrays = tuple(draw.array(tuple(sizes[c] for c in t), "float32", -2, 2) for t in terms)
    return Case(lambda *xs: jnp.einsum(f"{','.join(terms)}->{out}", *xs), arrays, tuple(range(len(arrays))))


GENERATORS: dict[str, Generator] = {
    "reduce_sum": _reduction(jnp.sum, NUMBERS, smooth=True),
    "reduce_prod": _reduction(jnp.prod, ("float32", "int32", *COMPLEX), high=2),
    "reduce_max": _extreme(jnp.max, ORDERED),
    "reduce_min": _extreme(jnp.min, ORDERED),
    "reduce_max/complex": _extreme(jnp.max, COMPLEX),
    "reduce_and": _reduction(jnp.all, ("bool",)),
    "reduce_or": _reduction(jnp.any, ("bool",)),
    "reduce_xor": _reduce_xor,
    "reduce": _reduce,
    "argmax": _arg("argmax"),
    "argmin": _arg("argmin"),
    "cumsum": _cumulative("cumsum", NUMBERS),
    "cumprod": _cumulative("cumprod", ("float32", "int32")),
    "cummax": _cumulative("cummax", ORDERED),
    "cummin": _cumulative("cummin", ORDERED),
    "cumlogsumexp": _cumulative("cumlogsumexp", FLOATS),
    "cumsum/two of one array": _two_cumulative,
    "sort": _sort,
    "sort/median": _median,
    "top_k": _top_k,
    "approx_top_k": _approx_top_k,
    "dot_general": _dot_general,
    "dot_general/einsum": _einsum,
    "ragged_dot_general": _ragged_dot,
}
