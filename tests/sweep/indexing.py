"""Configurations of slices at run-time positions, gathers and scatters: starts out of range, equal and distinct rows, every mode."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax import numpy as jnp

from tests.sweep.draw import FLOATS, INTEGERS, NUMBERS, Case, Draw, Generator, Shape

MODES = ("clip", "fill", "promise_in_bounds")


def _floating(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize > 1


def _start(draw: Draw, last: int) -> int:
    """A start of a window: mostly one that fits, else one before the beginning or too near the end."""
    return draw.integer(0, last) if draw.chance(60) else draw.integer(-last - 6, last + 6)


def _starts(draw: Draw, shape: Shape, sizes: Shape) -> list[Any]:
    kind = draw.one_of(("int32", "int32", "uint8", "int16"))
    out = []
    for n, m in zip(shape, sizes):
        start = _start(draw, n - m)
        out.append(np.asarray(max(start, 0) if kind[0] == "u" else start, kind))
    return out


def _dynamic_slice(draw: Draw) -> Case:
    shape, dtype = draw.shape(empty=False), draw.dtype((*NUMBERS, "bool"))
    sizes = tuple(draw.integer(1, n) if draw.chance(65) else n for n in shape)
    smooth = (0,) if _floating(dtype) else ()
    starts = _starts(draw, shape, sizes)
    if draw.chance(30):  # known when the program is compiled
        return Case(lambda x: lax.dynamic_slice(x, starts, sizes), (draw.array(shape, dtype),), smooth)
    return Case(lambda x, *s: lax.dynamic_slice(x, s, sizes), (draw.array(shape, dtype), *starts), smooth, tuple(range(1, len(shape) + 1)))


def _dynamic_update_slice(draw: Draw) -> Case:
    shape, dtype = draw.shape(empty=False), draw.dtype((*NUMBERS, "bool"))
    sizes = tuple(draw.one_of((1, draw.integer(1, n))) if draw.chance(65) else n for n in shape)
    smooth = (0, 1) if _floating(dtype) else ()
    starts = _starts(draw, shape, sizes)
    arrays = draw.array(shape, dtype), draw.array(sizes, dtype)
    if draw.chance(30):
        return Case(lambda x, u: lax.dynamic_update_slice(x, u, starts), arrays, smooth)
    return Case(lambda x, u, *s: lax.dynamic_update_slice(x, u, s), (*arrays, *starts), smooth, tuple(range(2, len(shape) + 2)))


class Windows(NamedTuple):
    """Numbers of a gather or a scatter.

    Attributes:
        operand: Shape of the array that windows lie in.
        indices: Shape of the array of starts; its last dimension holds the start of one window.
        result: Shape of all windows.
        sizes: Of one window.
        offset: Dimensions of the result that run inside of a window.
        collapsed: Dimensions of the operand, of size 1 in a window, that the result has not.
        operand_batching: Dimensions of the operand that go along with dimensions of the indices.
        indices_batching: Those dimensions of the indices.
        start_index_map: Dimensions of the operand that a start is for.
    """

    operand: Shape
    indices: Shape
    result: Shape
    sizes: Shape
    offset: Shape
    collapsed: Shape
    operand_batching: Shape
    indices_batching: Shape
    start_index_map: Shape


def _windows(draw: Draw) -> Windows:
    operand = draw.shape(1, 3, empty=False)
    rank = len(operand)
    batching = tuple(sorted(draw.some_of(range(rank), 15)))
    free = [d for d in range(rank) if d not in batching]
    started = tuple(draw.shuffled(draw.some_of(free, 60)))
    collapsed = tuple(sorted(d for d in free if draw.chance(65 if d in started else 10)))
    sizes = []
    for d, n in enumerate(operand):
        if d in batching or d in collapsed:
            sizes.append(1)
        else:
            sizes.append(draw.integer(1, n) if d in started or draw.chance(15) else n)
    rows = [operand[d] for d in batching]
    positions = list(range(len(batching)))
    for _ in range(draw.one_of((0, 1, 1, 2)) if started else 0):  # of several windows in one place XLA scatters one, on one device too
        at = draw.integer(0, len(rows))
        rows.insert(at, draw.size())
        positions = [p + (p >= at) for p in positions]
    while math.prod(rows) > 256:
        own = [i for i, n in enumerate(rows) if i not in positions and n > 2]
        if not own:
            break
        rows[max(own, key=lambda i: rows[i])] = 2
    inner = [n for d, n in enumerate(sizes) if d not in batching and d not in collapsed]
    total = len(rows) + len(inner)
    offset = tuple(range(len(rows), total)) if draw.chance(60) else tuple(sorted(draw.shuffled(range(total))[: len(inner)]))
    left, right = list(rows), list(inner)
    result = tuple(right.pop(0) if d in offset else left.pop(0) for d in range(total))
    return Windows(operand, (*rows, len(started)), result, tuple(sizes), offset, collapsed, batching, tuple(positions), started)


def _indices(draw: Draw, w: Windows, mode: str, *, distinct: bool = False) -> Any:
    """Starts of windows; out of range where the mode allows it."""
    dtype = draw.one_of(("int32", "int32", "int32", "int16", "uint8"))
    count = math.prod(w.indices[:-1])
    last = [w.operand[d] - w.sizes[d] for d in w.start_index_map]
    outside = mode != "promise_in_bounds" and draw.chance(60)
    rows = []
    every = list(np.ndindex(*(n + 1 for n in last))) if distinct else []
    draw.random.shuffle(every)
    for i in range(count):
        row = list(every[i % len(every)]) if every else [draw.integer(0, n) for n in last]
        if outside and not distinct and draw.chance(40):
            row = [_start(draw, n) for n in last]
        rows.append([max(r, 0) for r in row] if dtype[0] == "u" else row)
    return np.asarray(rows, dtype).reshape(w.indices)


def _gather(draw: Draw) -> Case:
    w, dtype, mode = _windows(draw), draw.dtype((*NUMBERS, "bool")), draw.one_of(MODES)
    numbers = lax.GatherDimensionNumbers(w.offset, w.collapsed, w.start_index_map, w.operand_batching, w.indices_batching)
    indices = _indices(draw, w, mode)
    smooth = (0,) if _floating(dtype) else ()
    array = draw.array(w.operand, dtype)
    if draw.chance(25):
        return Case(lambda x: lax.gather(x, indices, numbers, w.sizes, mode=mode), (array,), smooth)
    return Case(lambda x, i: lax.gather(x, i, numbers, w.sizes, mode=mode), (array, indices), smooth, (1,))


SCATTERS = {
    "scatter": lax.scatter,
    "scatter-add": lax.scatter_add,
    "scatter-mul": lax.scatter_mul,
    "scatter-min": lax.scatter_min,
    "scatter-max": lax.scatter_max,
    "scatter-sub": lax.scatter_sub,
}


def _scatter(name: str) -> Generator:
    function = SCATTERS[name]

    def generate(draw: Draw) -> Case:
        w, mode = _windows(draw), draw.one_of(MODES)
        dtype = draw.dtype((*FLOATS, *INTEGERS, *(("complex64", "bool") if name == "scatter" else ())))
        numbers = lax.ScatterDimensionNumbers(w.offset, w.collapsed, w.start_index_map, w.operand_batching, w.indices_batching)
        one_window_each = all(w.sizes[d] == 1 for d in w.start_index_map)
        possible = math.prod(w.operand[d] for d in w.start_index_map)
        rows = math.prod(n for i, n in enumerate(w.indices[:-1]) if i not in w.indices_batching)
        distinct = one_window_each and rows <= possible and not w.indices_batching and draw.chance(50)
        indices = _indices(draw, w, mode, distinct=distinct)
        updates = draw.array(w.result, dtype, 1, 3) if name == "scatter-mul" else draw.array(w.result, dtype)
        if name == "scatter" and not distinct and rows > 1:  # which one of several stays is not defined, so all are equal
            updates = np.full_like(updates, updates.flat[0]) if updates.size else updates
        arrays = draw.array(w.operand, dtype), updates
        smooth = (
            (0, 1) if _floating(dtype) and name in ("scatter", "scatter-add", "scatter-sub") and (distinct or name != "scatter") else ()
        )
        options: dict[str, Any] = {"mode": mode, "unique_indices": distinct and draw.chance(50)}
        fixed = (2,) if name != "scatter" or distinct else (1, 2)
        if draw.chance(25):
            return Case(lambda x, u: function(x, indices, u, numbers, **options), arrays, smooth, fixed[:-1])
        return Case(lambda x, u, i: function(x, i, u, numbers, **options), (*arrays, indices), smooth, fixed)

    return generate


def _rows(draw: Draw, n: int, count: int, *, distinct: bool) -> Any:
    """Positions along a dimension, from either end, some outside of it."""
    if distinct:
        return np.asarray((draw.shuffled(range(n)) * count)[:count], np.int32)
    low, high = (-n - 3, n + 3) if draw.chance(40) else (-n, n - 1) if draw.chance(40) else (0, n - 1)
    return np.asarray([draw.integer(low, high) for _ in range(count)], np.int32)


def _indexed(draw: Draw) -> Case:
    """NumPy's indexing with arrays of positions, single positions and slices."""
    shape, dtype = draw.shape(empty=False), draw.dtype((*FLOATS, *INTEGERS))
    d = draw.integer(0, len(shape) - 1)
    kind = draw.integer(0, 4)
    mode = draw.one_of((None, "clip", "fill"))
    lead = (slice(None),) * d
    smooth = (0,) if _floating(dtype) else ()
    x = draw.array(shape, dtype)
    if kind == 0:
        rows = _rows(draw, shape[d], draw.size(), distinct=False)
        return Case(lambda x, i: x.at[(*lead, i)].get(mode=mode), (x, rows), smooth, (1,))
    if kind == 1:
        row = np.int32(draw.integer(-shape[d] - 2, shape[d] + 2))
        return Case(lambda x, i: x.at[(*lead, i)].get(mode=mode), (x, row), smooth, (1,))
    if kind == 2 and len(shape) > 1:
        count = draw.size()
        first, second = (_rows(draw, shape[e], count, distinct=False) for e in (0, 1))
        return Case(lambda x, i, j: x.at[i, j].get(mode=mode), (x, first, second), smooth, (1, 2))
    if kind == 3:
        along = tuple(draw.size() if e == d else n for e, n in enumerate(shape))
        positions = draw.array(along, "int32", 0, shape[d] - 1)
        return Case(lambda x, i: jnp.take_along_axis(x, i, d), (x, positions), smooth, (1,))
    mask = draw.array(shape, "bool")
    return Case(lambda x, m: jnp.where(m, x, 0), (x, mask), smooth)


def _written(draw: Draw) -> Case:
    """`x.at[...]` of single positions, arrays of positions, slices and slices with steps."""
    shape, dtype = draw.shape(empty=False), draw.dtype(("float32", "float32", "int32", "bfloat16"))
    d = draw.integer(0, len(shape) - 1)
    n, lead = shape[d], (slice(None),) * draw.one_of((0, d))
    d = len(lead)
    n = shape[d]
    kind = draw.integer(0, 3)
    method = draw.one_of(("set", "set", "add", "max", "min", "multiply"))
    mode = draw.one_of((None, None, "clip", "drop"))
    smooth = (0, 1) if _floating(dtype) and method in ("set", "add") else ()
    x = draw.array(shape, dtype)

    def write(x: Any, position: Any, update: Any) -> Any:
        return getattr(x.at[(*lead, position)], method)(update, mode=mode)

    if kind == 0:
        row, update = np.int32(draw.integer(-n - 2, n + 2)), draw.array((*shape[:d], *shape[d + 1 :]), dtype)
        if draw.chance(40):
            return Case(lambda x, u: write(x, int(row), u), (x, update), smooth)
        return Case(lambda x, u, i: write(x, i, u), (x, update, row), smooth, (2,))
    if kind == 1:
        start = draw.integer(0, n - 1)
        stop, step = draw.integer(start + 1, n), draw.one_of((1, 1, 2, 3))
        update = draw.array((*shape[:d], len(range(start, stop, step)), *shape[d + 1 :]), dtype)
        return Case(lambda x, u: write(x, slice(start, stop, step), u), (x, update), smooth)
    distinct = method == "set" or draw.chance(40)
    count = draw.integer(1, n) if distinct else draw.size()
    rows = _rows(draw, n, count, distinct=distinct)
    update = draw.array((*shape[:d], count, *shape[d + 1 :]), dtype)
    if kind == 2:
        return Case(lambda x, u: write(x, rows, u), (x, update), smooth)
    return Case(lambda x, u, i: write(x, i, u), (x, update, rows), smooth, (2,))


def _segment_sum(draw: Draw) -> Case:
    shape, segments = draw.shape(empty=False), draw.size()
    ids = draw.array(shape[:1], "int32", -1, segments)
    return Case(lambda x, i: jnp.zeros((segments, *shape[1:]), x.dtype).at[i].add(x), (draw.array(shape, "float32"), ids), (0,), (1,))


def _embedding(draw: Draw) -> Case:
    rows, width = draw.size(), draw.size()
    tokens = draw.array(draw.shape(1, 2, at_least=2, empty=False), "int32", 0, rows - 1)
    return Case(lambda t, i: t[i[..., :-1]], (draw.array((rows, width), "float32"), tokens), (0,), (1,))


GENERATORS: dict[str, Generator] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    **{name: _scatter(name) for name in SCATTERS},
    "gather/indexed": _indexed,
    "scatter/written": _written,
    "scatter-add/segments": _segment_sum,
    "scatter-add/embedding": _embedding,
}
