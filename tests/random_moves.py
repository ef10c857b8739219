"""Statements that make values from nothing, move elements by position, and have effects; more of what random programs are made of.

They are those that partitioners got wrong most often: numbers that depend on a position, starts out of range, updates that no axis divides,
slices that are put back, and pads of slices.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tests.random_parts import dimension, skip, with_size

if TYPE_CHECKING:
    from tests.random_programs import Writer

Shape = tuple[int, ...]


def _shape(w: Writer) -> Shape:
    """The shape of an earlier value, or another small one."""
    if w.choose.chance(70):
        return w.choose.one_of([v.shape for v in w.values if v.rank])
    return tuple(w.size() for _ in range(w.choose.integer(1, 2)))


def _regrouped(w: Writer, count: int) -> Shape:
    """Sizes of up to three dimensions with so many elements."""
    left, sizes = count, []
    while left > 1 and len(sizes) < 2:
        sizes.append(w.choose.one_of([n for n in range(2, left + 1) if left % n == 0]))
        left //= sizes[-1]
    return (*sizes, left) if left > 1 or not sizes else tuple(sizes)


SOURCES = (
    "jnp.arange({n}, dtype=jnp.float32)",
    "lax.iota(jnp.float32, {n}) * 0.5 - 1.0",
    "jax.random.uniform(jax.random.key({k}), ({n},))",
    "(jax.random.bits(jax.random.key({k}), ({n},)) >> 24).astype(jnp.float32) / 256",
    "jnp.linspace(-1.0, 1.0, {n})",
    "(jnp.arange({n}) % 5).astype(jnp.float32)",
    "jnp.repeat(jnp.arange({n}, dtype=jnp.float32), 1)",
)


def source(w: Writer) -> None:
    """Numbers made from nothing, in another shape than they are made in."""
    shape = _shape(w)
    text = w.choose.one_of(SOURCES).format(n=math.prod(shape), k=w.choose.integer(0, 3))
    order = w.choose.shuffled(range(len(shape)))
    turned = tuple(shape[d] for d in order)
    if w.choose.chance(30):
        back = tuple(order.index(d) for d in range(len(shape)))
        w.let(f"jnp.reshape({text}, {turned}).transpose({back})", shape)
    else:
        w.let(f"jnp.reshape({text}, {shape})", shape)


def weighted_by_source(w: Writer) -> None:
    """An array times numbers that depend on the position."""
    x = w.array()
    text = w.choose.one_of(SOURCES).format(n=math.prod(x.shape), k=w.choose.integer(0, 3))
    w.let(f"{x.name} * jnp.reshape({text}, {x.shape})", x.shape)


def regroup(w: Writer) -> None:
    """Elements in other groups, turned, and back in some shape."""
    x = w.array()
    shape = _regrouped(w, math.prod(x.shape))
    order = tuple(w.choose.shuffled(range(len(shape))))
    out = x.shape if w.choose.chance(50) else _regrouped(w, math.prod(x.shape))
    w.let(f"jnp.reshape(jnp.reshape({x.name}, {shape}).transpose({order}), {out})", out)


def _start(w: Writer, n: int) -> str:
    """The text of a start that may lie before the beginning or behind the end."""
    number = w.choose.integer(0, n + 3) if w.choose.chance(70) else w.choose.integer(-n - 3, -1)
    scalars = [v for v in w.values if v.dtype == "int32" and not v.rank]
    if scalars and w.choose.chance(40):
        return f"{w.choose.one_of(scalars).name} + {number}"
    return f"jnp.int32({number})" if w.choose.chance(50) else f"jnp.argmin({w.array().name}).astype(jnp.int32) * 0 + {number}"


def slice_from_anywhere(w: Writer) -> None:
    """A slice whose start may be out of range."""
    x = w.array()
    d = dimension(w, x)
    size = w.choose.integer(1, x.shape[d])
    made = w.let(f"lax.dynamic_slice_in_dim({x.name}, {_start(w, x.shape[d])}, {size}, axis={d})", with_size(x.shape, d, size))
    others = [v for v in w.values if v.shape == made.shape and v.dtype == "float32" and v is not made]
    if others and w.choose.chance(50):
        w.let(f"{made.name} * {w.choose.one_of(others).name}", made.shape)


def update_anywhere(w: Writer) -> None:
    """A few rows that are written, or added, at a position that may be out of range."""
    x = w.array()
    d = dimension(w, x)
    n = x.shape[d]
    size = w.choose.one_of((1, w.choose.integer(1, n)))
    lead = ":, " * d
    kind = w.choose.integer(0, 2)
    if kind == 0:
        rows = f"{x.name}[{lead}:{size}] * 2"
        w.let(f"lax.dynamic_update_slice_in_dim({x.name}, {rows}, {_start(w, n)}, axis={d})", x.shape)
    elif kind == 1:
        w.let(f"jnp.asarray({x.name}).at[{lead}{_start(w, n)}].{w.choose.one_of(('set', 'add'))}({x.name}[{lead}0] - 1)", x.shape)
    else:
        rows = f"(jnp.arange({size}) * {w.choose.integer(1, 3)} + {w.choose.integer(-2, 2)})"
        w.let(f"jnp.asarray({x.name}).at[{lead}{rows}].add({x.name}[{lead}:{size}])", x.shape)


def put_back(w: Writer) -> None:
    """A slice of an array that is written into the same array, elsewhere."""
    x = w.array()
    d = dimension(w, x)
    n = x.shape[d]
    if n < 3:
        skip()
    lead = ":, " * d
    size = w.choose.integer(1, n - 1)
    to, origin = w.choose.integer(0, n - size), w.choose.integer(0, n - size)
    method = w.choose.one_of(("set", "set", "add", "add" if w.smooth else "max"))
    w.let(f"jnp.asarray({x.name}).at[{lead}{to}:{to + size}].{method}({x.name}[{lead}{origin}:{origin + size}])", x.shape)


def pad_of_slice(w: Writer) -> None:
    """An array without some rows, with others in their place, or cut by a negative pad."""
    x = w.array()
    d = dimension(w, x)
    n = x.shape[d]
    if n < 3:
        skip()
    lead = ":, " * d
    first, last = w.choose.integer(0, 1), w.choose.integer(0, 1)
    low, high = w.choose.integer(0, 2), w.choose.integer(0, 2)
    size = n - first - last + low + high
    widths = tuple((low, high) if e == d else (0, 0) for e in range(x.rank))
    y = w.let(f"jnp.pad({x.name}[{lead}{first}:{n - last}], {widths}, constant_values=1.5)", with_size(x.shape, d, size))
    if w.choose.chance(40) and size > 2:
        config = tuple((-w.choose.integer(0, 1), -1, 0) if e == d else (0, 0, 0) for e in range(x.rank))
        w.let(f"lax.pad({y.name}, jnp.float32(0), {config})", with_size(x.shape, d, size + config[d][0] - 1))


def uneven(w: Writer) -> None:
    """All but a few rows, so that hardly any axis divides them, used by what sums over them or moves them."""
    x = w.array()
    d = dimension(w, x)
    n = x.shape[d]
    if n < 2:
        skip()
    lead = ":, " * d
    y = w.let(f"{x.name}[{lead}1:]" if w.choose.chance(50) else f"{x.name}[{lead}:-1]", with_size(x.shape, d, n - 1))
    kind = w.choose.integer(0, 4)
    if kind == 0:
        w.let(f"jnp.cumsum({y.name}, axis={d})", y.shape)
    elif kind == 1:
        w.let(f"jnp.sort({y.name}, axis={d})", y.shape)
    elif kind == 2:
        w.let(f"jnp.flip({y.name}, axis={d})", y.shape)
    elif kind == 3 and d == 0:
        segments = w.size()
        w.let(f"jax.ops.segment_sum({y.name}, jnp.arange({n - 1}) % {segments + 1}, {segments})", (segments, *y.shape[1:]))


def effects(w: Writer) -> None:
    """One or several callbacks, which nothing comes back from."""
    for _ in range(w.choose.integer(1, 2)):
        names = [w.any().name for _ in range(w.choose.integer(1, 2))]
        w.line(f"jax.debug.callback(lambda *_: None, {', '.join(names)})")


def manual(w: Writer) -> None:
    """A region of the user's over all or some axes of the mesh."""
    if not w.constraints or w.depth:
        skip()
    x = w.array()
    axes = [a for a, size in w.mesh.items() if size > 1]
    fits = [(a, d) for a in axes for d, n in enumerate(x.shape) if n % w.mesh[a] == 0]
    a, d = w.choose.one_of(fits)
    spec = f"P({', '.join('None' if e != d else repr(a) for e in range(d + 1))})"
    some = f", axis_names={{{a!r}}}" if w.choose.chance(30) else ""
    kind = w.choose.integer(0, 3)
    if kind == 0:
        body, out, shape = f"x * 2.0 + lax.axis_index({a!r})", spec, x.shape
    elif kind == 1:
        body, out, shape = f"lax.psum(x, {a!r})", "P()", with_size(x.shape, d, x.shape[d] // w.mesh[a])
    elif kind == 2:
        body, out, shape = f"x - lax.pmean(x, {a!r})", spec, x.shape
    else:
        body, out, shape = "x + jnp.arange(x.size, dtype=x.dtype).reshape(x.shape)", spec, x.shape
    w.let(f"jax.shard_map(lambda x: {body}, mesh=mesh, in_specs={spec}, out_specs={out}{some})({x.name})", shape)


MOVES = (
    source, weighted_by_source, regroup, slice_from_anywhere, update_anywhere, put_back, put_back, pad_of_slice, uneven, effects, manual,
)  # fmt: skip
