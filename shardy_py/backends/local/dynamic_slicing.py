"""Slices whose place is known at run time only: every device looks whether they touch its block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from shardy_py.backends.local.in_bounds import clamped_start
from shardy_py.backends.local.local_rule import (
    Builder,
    Equation,
    LocalContext,
    LocalRule,
    affine,
    identity_fill,
    is_before,
    is_key,
    make_rule,
    positions,
)
from shardy_py.backends.local.slicing import refuses

Array = Any


def dynamic_slice(equation: Equation) -> LocalRule | None:
    """Dimensions that are taken whole pass through; a sliced one may be cut, and leaves sums to which one block or two contribute.

    Keys cannot be summed, nor counted positions that do not fit into 32 bits: their sliced dimensions are whole.
    """
    shape, *scalars = equation.shapes
    (out,) = equation.result_shapes
    if 0 in shape or 0 in out:
        return None
    rank = range(len(shape))
    cuts = [d for d in rank if shape[d] != out[d]]
    sums = not is_key(equation.dtypes[0]) and all(n <= _INT32 for n in shape)
    sizes = list(shape)
    result = list(rank)
    for d in cuts:
        sizes.append(out[d])
        result[d] = len(sizes) - 1
    dtype = equation.dtypes[0]
    nothing = identity_fill("add", dtype)

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        x, *starts = arrays
        lengths = [out[d] if d in cuts else x.shape[d] for d in rank]
        split = [d for d in cuts if local.names(d)]
        if not split:
            if all(n <= _INT32 for n in shape):
                starts = [clamped_start(start, shape[d] - out[d]) if d in cuts else np.int32(0) for d, start in enumerate(starts)]
            return local.bind(x, *starts, slice_sizes=tuple(lengths))
        at = [clamped_start(starts[d], shape[d] - out[d]) if d in cuts else np.int32(0) for d in rank]
        begins = list(at)
        shifts: dict[int, Array] = {}
        for d in split:
            lengths[d] = min(out[d], x.shape[d])
            begins[d], shifts[d] = _own(at[d], affine(local.index(d), x.shape[d]), x.shape[d] - lengths[d])
        part = lax.dynamic_slice(x, begins, lengths, allow_negative_indices=False)
        room = [out[d] if d in cuts else part.shape[d] for d in rank]
        for d in split:
            part = lax.select(_within(part.shape, d, shifts[d], out[d]), part, lax.full_like(part, nothing))
        if all(out[d] == 1 for d in split):
            return [part]
        wide = lax.pad(part, np.array(nothing, dtype), [(room[d], room[d], 0) if d in split else (0, 0, 0) for d in rank])
        starts = [_between(lax.sub(np.int32(room[d]), shifts[d]), room[d] + lengths[d]) if d in split else np.int32(0) for d in rank]
        return [lax.dynamic_slice(wide, starts, room, allow_negative_indices=False)]

    whole = [result[d] for d in cuts] + ([] if sums else cuts)
    rule = make_rule(sizes, [rank, *[()] * len(scalars)], [result], reduction=cuts if sums else (), whole=whole)
    combine = "or" if dtype == jnp.bool_ else "add"
    return LocalRule(rule, run, combine, uneven=frozenset(rank), linear=((0,),) if sums else ())


def dynamic_update_slice(equation: Equation) -> LocalRule | None:
    """Dimensions that are updated whole pass through; along the others each device updates its own block, and nothing is sent."""
    if refuses(equation) or any(n > _INT32 for n in equation.shapes[0]):
        return None
    shape, update, *scalars = equation.shapes
    rank = range(len(shape))
    cuts = [d for d in rank if shape[d] != update[d]]
    sizes = list(shape)
    update_dims = list(rank)
    for d in cuts:
        sizes.append(update[d])
        update_dims[d] = len(sizes) - 1

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        x, new, *starts = arrays
        split = [d for d in cuts if local.names(d)]
        if not split:
            return local.bind(*arrays)
        at = [clamped_start(starts[d], shape[d] - update[d]) if d in cuts else np.int32(0) for d in rank]
        return [write_window(local, x, new, at, {d: d for d in split})]

    rule = make_rule(sizes, [rank, update_dims, *[()] * len(scalars)], [rank], whole=[update_dims[d] for d in cuts])
    return LocalRule(rule, run, uneven=frozenset(rank), linear=((0, 1),), weight=0.0001)


def write_window(
    local: LocalContext,
    x: Array,
    new: Array,
    at: Sequence[Array],
    cut: Mapping[int, int],
    combine: Callable[[Array, Array], Array] | None = None,
    valid: Array | None = None,
) -> Array:
    """Writes a window of the global operand to this device's part, where the window overlaps it.

    Args:
        at: Start of the window in each dimension, clamped to lie within the operand.
        combine: Computes the written elements from old and new ones; None writes the new ones.
    """
    begins, lengths = list(at), list(new.shape)
    shifts: dict[int, Array] = {}
    for d, factor in cut.items():
        lengths[d] = min(new.shape[d], x.shape[d])
        begins[d], shifts[d] = _own(at[d], affine(local.index(factor), x.shape[d]), x.shape[d] - lengths[d])
    old = lax.dynamic_slice(x, begins, lengths, allow_negative_indices=False)
    inside = None if valid is None else lax.broadcast_in_dim(valid, old.shape, ())
    for d in cut:
        here = _within(old.shape, d, shifts[d], new.shape[d])
        inside = here if inside is None else lax.bitwise_and(inside, here)
    moving = {d: new.shape[d] for d in cut if new.shape[d] > 1}
    if moving:
        room = [lengths[d] if d in moving else 0 for d in range(new.ndim)]
        wide = lax.pad(new, np.zeros((), new.dtype), [(n, n, 0) for n in room])
        first = [_between(lax.add(shifts[d], np.int32(n)), moving[d] + n) if d in moving else np.int32(0) for d, n in enumerate(room)]
        new = lax.dynamic_slice(wide, first, lengths, allow_negative_indices=False)
    new = new if combine is None else combine(old, new)
    return lax.dynamic_update_slice(x, new if inside is None else lax.select(inside, new, old), begins, allow_negative_indices=False)


def _own(start: Array, first: Array, most: int) -> tuple[Array, Array]:
    """Start, in this device's block beginning at `first`, of the part of a slice inside it, and its distance from the slice's start."""
    mine = lax.sub(start, first)
    begin = _between(mine, most)
    return begin, lax.sub(begin, mine)


def _within(shape: Sequence[int], dim: int, start: Array, stop: int) -> Array:
    """A mask of the elements of a block that lie in a slice, given the position of its first element."""
    position = positions(tuple(shape), dim, start)
    return lax.bitwise_and(lax.ge(position, np.int32(0)), is_before(position, stop))


def _between(x: Array, most: int) -> Array:
    return lax.clamp(np.int32(0), x, np.int32(most))


_INT32 = (1 << 31) - 1

LOCAL_RULES: dict[str, Builder] = {"dynamic_slice": dynamic_slice, "dynamic_update_slice": dynamic_update_slice}
"""Primitive -> builder of its local rule."""
