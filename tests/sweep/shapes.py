"""Configurations of primitives that make, move and pick elements by position alone."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from tests.sweep.draw import ANY, FLOATS, Case, Draw, Generator, Shape


def _smooth(array: object) -> tuple[int, ...]:
    return (0,) if jnp.dtype(array.dtype) in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.float64) else ()  # type: ignore[attr-defined]


def _array(draw: Draw, shape: Shape) -> object:
    return draw.array(shape, draw.dtype(ANY))


def _regrouped(draw: Draw, shape: Shape) -> Shape:
    """Another shape with as many elements."""
    left, sizes = math.prod(shape), []
    if not left:
        return tuple(draw.shuffled(shape))
    while left > 1 and len(sizes) < 3:
        sizes.append(draw.one_of([n for n in range(2, left + 1) if left % n == 0]))
        left //= sizes[-1]
    sizes += [left] if left > 1 or not sizes else []
    if draw.chance(20):
        sizes.insert(draw.integer(0, len(sizes)), 1)
    return tuple(sizes)


def _reshape(draw: Draw) -> Case:
    shape = draw.shape()
    new = _regrouped(draw, shape)
    x = _array(draw, shape)
    return Case(lambda x: lax.reshape(x, new), (x,), _smooth(x))


def _reshape_permuted(draw: Draw) -> Case:
    shape = draw.shape(2)
    new, order = _regrouped(draw, shape), tuple(draw.shuffled(range(len(shape))))
    return Case(lambda x: lax.reshape(lax.transpose(x, order), new), (_array(draw, shape),))


def _broadcast(draw: Draw) -> Case:
    shape = draw.shape(0)
    out = draw.shape(0, 2, empty=False)
    order = sorted(draw.shuffled(range(len(shape) + len(out)))[: len(shape)])
    sizes = list(out)
    full = tuple(shape[order.index(d)] if d in order else sizes.pop() for d in range(len(shape) + len(out)))
    x = _array(draw, shape)
    return Case(lambda x: lax.broadcast_in_dim(x, full, order), (x,), _smooth(x))


def _stretch(draw: Draw) -> Case:
    shape = draw.shape(2, empty=False)
    ones = tuple(1 if draw.chance(50) else n for n in shape)
    return Case(lambda x: jnp.broadcast_to(x, shape), (_array(draw, ones),))


def _transpose(draw: Draw) -> Case:
    shape = draw.shape(2)
    order = tuple(draw.shuffled(range(len(shape))))
    return Case(lambda x: lax.transpose(x, order), (_array(draw, shape),))


def _squeeze(draw: Draw) -> Case:
    shape = list(draw.shape())
    d = draw.integer(0, len(shape))
    return Case(lambda x: lax.squeeze(x, (d,)), (_array(draw, (*shape[:d], 1, *shape[d:])),))


def _rev(draw: Draw) -> Case:
    shape = draw.shape()
    dims = tuple(draw.some_of(range(len(shape)))) or (0,)
    x = _array(draw, shape)
    return Case(lambda x: lax.rev(x, dims), (x,), _smooth(x))


def _slice(draw: Draw) -> Case:
    shape = draw.shape(empty=False)
    starts = [draw.integer(0, n - 1) if draw.chance(70) else 0 for n in shape]
    limits = [draw.integer(a + 1, n) if draw.chance(70) else n for a, n in zip(starts, shape)]
    strides = [draw.integer(1, 3) if draw.chance(40) else 1 for _ in shape]
    x = _array(draw, shape)
    return Case(lambda x: lax.slice(x, starts, limits, strides), (x,), _smooth(x))


def _pad(draw: Draw) -> Case:
    shape, dtype = draw.shape(), draw.dtype(ANY)
    config = []
    for n in shape:
        inner = draw.integer(1, 2) if draw.chance(30) else 0
        full = n + inner * max(n - 1, 0)
        low = draw.integer(-min(full, 3), 3) if draw.chance(70) else 0
        high = draw.integer(-min(full, 3), 3) if draw.chance(70) else 0
        if full + low + high < 0:
            low = high = 0
        config.append((low, high, inner))
    smooth = (0, 1) if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize > 1 else ()
    return Case(lambda x, v: lax.pad(x, v, config), (draw.array(shape, dtype), draw.array((), dtype, 1, 3)), smooth)


def _jnp_pad(draw: Draw) -> Case:
    shape = draw.shape(at_least=3, empty=False)
    widths = [(draw.integer(0, 2), draw.integer(0, 2)) for _ in shape]
    mode = draw.one_of(("constant", "edge", "wrap", "reflect", "symmetric"))
    return Case(lambda x: jnp.pad(x, widths, mode=mode), (draw.array(shape, "float32"),), (0,))


def _pad_of_slice(draw: Draw) -> Case:
    shape = draw.shape(at_least=3, empty=False)
    d = draw.integer(0, len(shape) - 1)
    n = shape[d]
    start, cut = draw.integer(0, 1), draw.integer(1, 2)
    low, high = draw.integer(0, 2), draw.integer(0, 2)
    widths = [(low, high, 0) if e == d else (0, 0, 0) for e in range(len(shape))]
    first = draw.integer(0, max(n - cut - start + low + high - 1, 0))

    def function(x: jax.Array) -> jax.Array:
        x = lax.slice_in_dim(x * 3, start, max(n - cut, start), axis=d)
        return lax.slice_in_dim(lax.pad(x, jnp.float32(-7), widths), first, None, axis=d)

    return Case(function, (draw.array(shape, "float32"),), (0,))


def _concatenate(draw: Draw) -> Case:
    shape, dtype = draw.shape(), draw.dtype(ANY)
    d = draw.integer(0, len(shape) - 1)
    parts = [draw.array((*shape[:d], n, *shape[d + 1 :]), dtype) for n in (draw.size() for _ in range(draw.integer(1, 3)))]
    smooth = tuple(range(len(parts))) if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize > 1 else ()
    return Case(lambda *xs: lax.concatenate(xs, d), tuple(parts), smooth)


def _roll(draw: Draw) -> Case:
    shape = draw.shape(empty=False)
    d = draw.integer(0, len(shape) - 1)
    shift = draw.integer(-shape[d], shape[d])
    if draw.chance(30):
        return Case(lambda x, k: jnp.roll(x, k, d), (draw.array(shape, "float32"), np.int32(shift)), (0,), (1,))
    return Case(lambda x: jnp.roll(x, shift, d), (draw.array(shape, "float32"),), (0,))


def _split(draw: Draw) -> Case:
    shape = draw.shape(empty=False)
    d = draw.integer(0, len(shape) - 1)
    cuts = sorted(draw.integer(0, shape[d]) for _ in range(draw.integer(1, 3)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, shape[d]])]
    x = _array(draw, shape)
    return Case(lambda x: lax.split(x, sizes, d), (x,), _smooth(x))


def _stack(draw: Draw) -> Case:
    shape, dtype, count = draw.shape(0, 2), draw.dtype(ANY), draw.integer(1, 4)
    d = draw.integer(0, len(shape))
    return Case(lambda *xs: jnp.stack(xs, d), tuple(draw.array(shape, dtype) for _ in range(count)))


def _unstack(draw: Draw) -> Case:
    shape = list(draw.shape(1, 2))
    d = draw.integer(0, len(shape))
    count = draw.integer(1, 4)
    return Case(lambda x: jnp.unstack(x, axis=d), (_array(draw, (*shape[:d], count, *shape[d:])),))


def _tile(draw: Draw) -> Case:
    shape = draw.shape()
    times = tuple(draw.integer(1, 3) for _ in shape)
    x = _array(draw, shape)
    return Case(lambda x: jnp.tile(x, times), (x,), _smooth(x))


def _repeat(draw: Draw) -> Case:
    shape = draw.shape(empty=False)
    d, times = draw.integer(0, len(shape) - 1), draw.integer(1, 4)
    return Case(lambda x: jnp.repeat(x, times, d), (draw.array(shape, "float32"),), (0,))


def _iota(draw: Draw) -> Case:
    shape, dtype = draw.shape(), draw.dtype(("int32", "float32", "uint8", "bfloat16", "complex64"))
    d = draw.integer(0, len(shape) - 1)
    factor = draw.array((), dtype, 1, 3)
    return Case(lambda k: lax.broadcasted_iota(dtype, shape, d) * k, (factor,))


def _iota_reshaped(draw: Draw) -> Case:
    shape = draw.shape(empty=False)
    new = _regrouped(draw, (math.prod(shape),)) if draw.chance(70) else shape
    order = tuple(draw.shuffled(range(len(new))))
    source = draw.integer(0, 2)

    def function(x: jax.Array) -> jax.Array:
        if source == 0:
            made = jnp.arange(math.prod(shape), dtype=jnp.float32) * 2 + 1
        elif source == 1:
            made = jax.random.bits(jax.random.key(3), (math.prod(shape),)).astype(jnp.float32) // 65536
        else:
            made = jnp.repeat(jnp.arange(shape[0], dtype=jnp.float32), math.prod(shape[1:]))
        return lax.reshape(made, new).transpose(order) * x

    return Case(function, (draw.array(tuple(new[d] for d in order), "float32", 1, 3),), (0,))


def _triangle(draw: Draw) -> Case:
    shape, k = draw.shape(2, 3, empty=False), draw.integer(-2, 2)
    name = draw.one_of(("tril", "triu"))
    return Case(lambda x: getattr(jnp, name)(x, k), (draw.array(shape, draw.dtype(FLOATS)),), (0,))


def _diagonal(draw: Draw) -> Case:
    shape, k = draw.shape(2, 3, at_least=2, empty=False), draw.integer(-1, 1)
    return Case(lambda x: jnp.diagonal(x, k, -2, -1), (draw.array(shape, "float32"),), (0,))


def _push(draw: Draw) -> Case:
    """A buffer is moved on by some places and written to at its end."""
    shape = draw.shape(at_least=3, empty=False)
    n, k = shape[0], draw.integer(1, 2)
    if draw.chance(50):
        return Case(
            lambda b, r: b.at[:-k].set(b[k:]).at[n - k :].set(r),
            (draw.distinct(shape, "float32"), draw.array((k, *shape[1:]), "float32")),
            (0, 1),
        )
    method = draw.one_of(("set", "add", "max"))
    return Case(lambda b: getattr(b.at[k:], method)(b[:-k]), (draw.distinct(shape, "float32"),), (0,))


def _associative_scan(draw: Draw) -> Case:
    shape = draw.shape(empty=False)
    axis, reverse = draw.integer(0, len(shape) - 1), draw.chance(30)
    combine = draw.one_of((jnp.add, jnp.maximum))
    return Case(lambda x: lax.associative_scan(combine, x, axis=axis, reverse=reverse), (draw.array(shape, "float32"),), (0,))


def _diff(draw: Draw) -> Case:
    shape = draw.shape(at_least=3, empty=False)
    axis, times = draw.integer(0, len(shape) - 1), draw.integer(1, 2)
    return Case(lambda x: jnp.diff(x, times, axis), (draw.array(shape, "float32"),), (0,))


GENERATORS: dict[str, Generator] = {
    "reshape": _reshape,
    "reshape/of a transposed one": _reshape_permuted,
    "broadcast_in_dim": _broadcast,
    "broadcast_in_dim/stretched": _stretch,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "rev": _rev,
    "slice": _slice,
    "slice/differences": _diff,
    "pad": _pad,
    "pad/modes": _jnp_pad,
    "pad/of a slice": _pad_of_slice,
    "concatenate": _concatenate,
    "concatenate/rolled": _roll,
    "concatenate/associative scan": _associative_scan,
    "split": _split,
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "tile/repeated": _repeat,
    "iota": _iota,
    "iota/reshaped": _iota_reshaped,
    "iota/triangles": _triangle,
    "gather/diagonals": _diagonal,
    "scatter/pushed": _push,
}
