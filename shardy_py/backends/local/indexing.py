"""Gathers and scatters: each shard reads or writes its range of an indexed dimension."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from shardy_py.backends.local.dynamic_slicing import write_window
from shardy_py.backends.local.in_bounds import (
    COMBINATIONS,
    are_in_bounds,
    clamped_indices,
    clamped_start,
    is_single_window,
    writes_itself,
)
from shardy_py.backends.local.local_rule import (
    Array,
    Builder,
    Combine,
    Equation,
    Factors,
    LocalContext,
    LocalRule,
    affine,
    identity_fill,
    is_key,
    make_rule,
)


@dataclass(frozen=True, eq=False)
class _GatherFactors:
    """The factors of a gather."""

    factors: Factors
    source: list[int]
    indexed: dict[int, int]
    batch: list[int]
    vector: int
    offsets: dict[int, int]


def _gather_factors(equation: Equation) -> _GatherFactors:
    shape, indices = equation.shapes
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    factors = Factors()
    batch = [factors.new(n) for n in indices[:-1]]
    batching = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    offset_dims = iter(numbers.offset_dims)
    offsets: dict[int, int] = {}
    source: list[int] = []
    indexed: dict[int, int] = {}
    for d, (n, length) in enumerate(zip(shape, sizes, strict=True)):
        if d in batching:
            source.append(batch[batching[d]])
            continue
        collapsed = d in numbers.collapsed_slice_dims
        if not collapsed and length == n:
            source.append(factors.new(n))
            offsets[next(offset_dims)] = source[-1]
            continue
        if length == 1 and d in numbers.start_index_map and n > 1 and _is_summable(equation.dtypes[0]):
            source.append(factors.new(n))
            indexed[d] = source[-1]
        else:
            source.append(factors.new(n, whole=True))
        if not collapsed:
            offsets[next(offset_dims)] = factors.new(length, whole=True)
    return _GatherFactors(factors, source, indexed, batch, factors.new(indices[-1], whole=True), offsets)


def gather(equation: Equation) -> LocalRule | None:
    """Full slices and batch dimensions pass through; a dimension that is indexed element by element leaves partial results.

    A shard reads the elements in its range and has zeros elsewhere, so that one shard has the element and the sum is it.
    """
    shape, _ = equation.shapes
    params = equation.params
    numbers, sizes, mode = params["dimension_numbers"], params["slice_sizes"], params["mode"]
    dtype = equation.dtypes[0]
    if 0 in shape or 0 in equation.result_shapes[0]:
        return None
    of = _gather_factors(equation)
    factors, source, indexed = of.factors, of.source, of.indexed
    rank = len(equation.result_shapes[0])
    rest = iter(of.batch)
    result = [of.offsets[d] if d in of.offsets else next(rest) for d in range(rank)]
    operands = [source, [*of.batch, of.vector]]
    rule = make_rule(factors.sizes, operands, [result], reduction=sorted(indexed.values()), whole=factors.whole)
    batch_out = [d for d in range(rank) if d not in of.offsets]
    point_dims = {*numbers.operand_batching_dims, *numbers.collapsed_slice_dims}
    fills = mode == lax.GatherScatterMode.FILL_OR_DROP

    def run(local: LocalContext, arrays: list) -> list:
        x, i = arrays
        lengths = tuple(local.block(f) if n == length else length for f, n, length in zip(source, shape, sizes, strict=True))
        lengths = tuple(1 if d in point_dims else n for d, n in enumerate(lengths))
        cut = {d: f for d, f in indexed.items() if local.names(f)}
        bounds = [shape[d] - sizes[d] for d in numbers.start_index_map]
        if not cut:
            if is_single_window(i) and not fills:
                i = clamped_indices(i, bounds)
            return local.bind(x, i, slice_sizes=lengths, **({"indices_are_sorted": False} if _any_padded(local) else {}))
        valid = are_in_bounds(i, bounds) if fills else None
        i = clamped_indices(i, bounds)
        i, is_own = _own_indices(local, i, cut)
        clip = lax.GatherScatterMode.CLIP
        (y,) = local.bind(x, i, slice_sizes=lengths, mode=clip, fill_value=None, indices_are_sorted=False, unique_indices=False)
        nothing = lax.full(y.shape, identity_fill("add", y.dtype), y.dtype)
        spread = functools.partial(lax.broadcast_in_dim, shape=y.shape, broadcast_dimensions=batch_out)
        y = lax.select(spread(is_own), y, nothing)
        if valid is None:
            return [y]
        fill = lax.full(y.shape, _fill_value(params["fill_value"], y.dtype), y.dtype)
        return [lax.select(spread(valid), y, lax.select(lax.broadcast(_is_first(local, cut.values()), y.shape), fill, nothing))]

    return LocalRule(
        rule,
        run,
        "or" if dtype == jnp.bool_ else "add",
        uneven=frozenset(range(len(factors.sizes))) - frozenset(factors.whole),
        linear=() if fills or not jnp.issubdtype(dtype, jnp.inexact) else ((0,),),
        weight=0.02 / max(1, math.prod(shape[d] for d in indexed)),
    )


def _own_indices(local: LocalContext, i: Array, cut: Mapping[int, int]) -> tuple[Array, Array]:
    """Indices of a gather into this device's part of the operand, and whether each index vector lies in it."""
    owned: list[Array] = []
    columns = []
    for at, d in enumerate(local.params["dimension_numbers"].start_index_map):
        column = lax.index_in_dim(i, at, -1, keepdims=False)
        if d in cut:
            column = _from(column, affine(local.index(cut[d]), local.block(cut[d])))
            owned.append(_lies_in(column, local.block(cut[d])))
        columns.append(column)
    return _side_by_side(columns), functools.reduce(lax.bitwise_and, owned)


def _is_summable(dtype: Any) -> bool:
    """Whether collectives can sum an element type; they cannot for keys and narrow integers."""
    return not is_key(dtype) and (
        dtype in (jnp.bool_, jnp.bfloat16) or (dtype.kind in "fciu" and jnp.dtype(dtype).itemsize * 8 == _bits(dtype))
    )


def _bits(dtype: Any) -> int:
    return jnp.finfo(dtype).bits if jnp.issubdtype(dtype, jnp.inexact) and dtype.kind != "c" else jnp.dtype(dtype).itemsize * 8


def _fill_value(value: Any, dtype: Any) -> Any:
    if value is not None:
        return value
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.nan
    if dtype == jnp.bool_:
        return True
    return jnp.iinfo(dtype).min if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.iinfo(dtype).max


def _from(indices: Array, start: Array) -> Array:
    """Indices counted from a start."""
    return lax.sub(indices, lax.convert_element_type(start, indices.dtype))


def _lies_in(indices: Array, length: int) -> Array:
    """Whether indices lie between zero and a length, by an unsigned comparison, in which negative ones are large."""
    unsigned = lax.convert_element_type(indices, f"uint{8 * indices.dtype.itemsize}")
    return lax.lt(unsigned, unsigned.dtype.type(length))


def _side_by_side(columns: Sequence[Array]) -> Array:
    """Index vectors of their numbers."""
    return lax.concatenate([lax.expand_dims(column, (column.ndim,)) for column in columns], columns[0].ndim)


def _wide(indices: Array) -> Array:
    """Indices in a signed type, so that an offset can be subtracted."""
    return lax.convert_element_type(indices, jnp.int64 if indices.dtype.itemsize == 8 else jnp.int32)


def _is_first(local: LocalContext, factors: Iterable[int]) -> Array:
    """Whether this device has the first block along every one of some factors; at least one is cut."""
    firsts = [lax.eq(local.index(f), np.int32(0)) for f in factors if local.names(f)]
    return functools.reduce(lax.bitwise_and, firsts)


def _any_padded(local: LocalContext) -> bool:
    return any(local.is_padded(f) for f in range(local.rule.num_factors))


@dataclass(frozen=True, eq=False)
class _ScatterFactors:
    """The factors of a scatter.

    Attributes:
        split: Factors of batches of updates that may be cut; each device makes its own updates.
    """

    factors: Factors
    source: list[int]
    lengths: list[int]
    indexed: dict[int, int]
    indices: list[int]
    update: list[int]
    split: list[int]


def _scatter_factors(equation: Equation, splits: bool) -> _ScatterFactors:
    shape, indices, updates = equation.shapes
    numbers = equation.params["dimension_numbers"]
    factors = Factors()
    batching = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    batch = [factors.new(n, whole=not splits and d not in batching.values()) for d, n in enumerate(indices[:-1])]
    windows = iter(numbers.update_window_dims)
    source: list[int] = []
    from_window: dict[int, int] = {}
    indexed: dict[int, int] = {}
    lengths: list[int] = []
    movable = not is_key(equation.dtypes[0]) and all(n <= _INT32 for n in shape)
    for d, n in enumerate(shape):
        if d in batching:
            source.append(batch[batching[d]])
            lengths.append(1)
            continue
        inserted = d in numbers.inserted_window_dims
        at = -1 if inserted else next(windows)
        length = 1 if inserted else updates[at]
        lengths.append(length)
        if not inserted and length == n:
            source.append(factors.new(n))
            from_window[at] = source[-1]
            continue
        if n > 1 and d in numbers.scatter_dims_to_operand_dims and (length == 1 or movable):
            source.append(factors.new(n))
            indexed[d] = source[-1]
        else:
            source.append(factors.new(n, whole=True))
        if not inserted:
            from_window[at] = factors.new(length, whole=True)
    vector = factors.new(indices[-1], whole=True)
    rest = iter(batch)
    update = [from_window[d] if d in from_window else next(rest) for d in range(len(updates))]
    split = [f for d, f in enumerate(batch) if splits and d not in batching.values()]
    return _ScatterFactors(factors, source, lengths, indexed, [*batch, vector], update, split)


def scatter(equation: Equation) -> LocalRule | None:
    """Full windows and batching dimensions pass through; the dimensions of the operand in which windows begin anywhere may be cut.

    A shard makes the updates that lie in its range: of a single window its part, of several one element after the other along dimensions
    that are cut. Updates that are themselves cut are made by the shards that have them, the first of which starts from the operand, and
    the others from what changes nothing.
    """
    shape, _, updates = equation.shapes
    dtype = equation.dtypes[0]
    if 0 in shape or 0 in updates:
        return None
    combine = COMBINES.get(equation.name)
    splits = combine is not None and _is_summable(dtype) and dtype != jnp.bool_ and not (dtype.kind == "c" and combine in ("max", "min"))
    of = _scatter_factors(equation, splits)
    factors, lengths, indexed = of.factors, of.lengths, of.indexed
    rule = make_rule(factors.sizes, [of.source, of.indices, of.update], [of.source], reduction=of.split, whole=factors.whole)

    def run(local: LocalContext, arrays: list) -> list:
        x, i, u = arrays
        changed: dict[str, Any] = {"indices_are_sorted": False, "unique_indices": False} if _any_padded(local) else {}
        if combine is not None:
            x, u = _own_updates(local, x, u, of, combine)
        cut = {d: f for d, f in indexed.items() if local.names(f)}
        wide = any(lengths[d] > 1 for d in cut)
        if is_single_window(i) and (not wide or writes_itself(local.eqn.primitive, local.params)):
            return [_single_window(local, x, i, u, cut, shape, lengths)]
        if cut:
            i, u, changed = _shifted(local, i, u, cut, shape, lengths)
        return local.bind(x, i, u, **changed)

    return LocalRule(
        rule,
        run,
        combine or "add",
        uneven=frozenset(range(len(factors.sizes))) - frozenset(factors.whole),
        linear=((0, 2),) if combine == "add" and jnp.issubdtype(dtype, jnp.inexact) else (),
        weight=0.02 / max(1, math.prod(shape[d] for d in indexed)),
    )


def _own_updates(local: LocalContext, x: Array, u: Array, of: _ScatterFactors, combine: Combine) -> tuple[Array, Array]:
    """The operand and the updates of a device's partial result; padding changes nothing, and one device alone has the operand."""
    nothing = identity_fill(combine, x.dtype)
    for d, f in enumerate(of.update):
        if f in of.split:
            u = local.mask(u, d, f, nothing)
    parts = [f for f in of.split if local.names(f)]
    if parts and combine in ("add", "mul"):
        x = lax.select(lax.broadcast(_is_first(local, parts), x.shape), x, lax.full(x.shape, nothing, x.dtype))
    return x, u


def _single_window(
    local: LocalContext, x: Array, i: Array, u: Array, cut: Mapping[int, int], shape: Sequence[int], lengths: Sequence[int]
) -> Array:
    """A scatter of one window into a part of the operand; a user's own function combines whole windows."""
    numbers = local.params["dimension_numbers"]
    mapped = numbers.scatter_dims_to_operand_dims
    vector = lax.reshape(i, (len(mapped),))
    at: list[Array] = [np.int32(0)] * len(shape)
    for k, d in enumerate(mapped):
        at[d] = clamped_start(lax.index_in_dim(vector, k, keepdims=False), shape[d] - lengths[d])
    clips = local.params["mode"] == lax.GatherScatterMode.CLIP
    valid = None if clips else are_in_bounds(vector, [shape[d] - lengths[d] for d in mapped])
    windows = iter(numbers.update_window_dims)
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    new = lax.reshape(u, tuple([1 if d in single else u.shape[next(windows)] for d in range(len(shape))]))
    combine = COMBINATIONS.get(local.eqn.primitive.name)
    if not writes_itself(local.eqn.primitive, local.params):
        combine = lambda old, _: local.bind(old, lax.full_like(i, 0), u)[0]  # noqa: E731
    return write_window(local, x, new, at, cut, combine, valid)


def _shifted(
    local: LocalContext, i: Array, u: Array, cut: Mapping[int, int], shape: Sequence[int], lengths: Sequence[int]
) -> tuple[Array, Array, dict[str, Any]]:
    """Indices into this device's part, indices into other parts being out of bounds; the updates; and the parameters that this changes.

    A window that is longer than one element along a dimension that is cut becomes several: a further dimension of the indices.
    """
    numbers, mode = local.params["dimension_numbers"], local.params["mode"]
    mapped = numbers.scatter_dims_to_operand_dims
    wide = [d for d in mapped if d in cut and lengths[d] > 1]
    bounds = [shape[d] - lengths[d] for d in mapped]
    if mode == lax.GatherScatterMode.CLIP:
        i = clamped_indices(i, bounds)
    room = tuple(lengths[d] for d in wide)
    batch = i.shape[:-1]
    spread = functools.partial(lax.broadcast_in_dim, shape=(*batch, *room), broadcast_dimensions=range(len(batch)))
    valid = spread(are_in_bounds(i, bounds)) if wide else None
    columns = []
    for at, d in enumerate(mapped):
        column = _wide(lax.index_in_dim(i, at, -1, keepdims=False))
        inside = _lies_in(column, shape[d]) if d in cut and d not in wide and local.is_padded(cut[d]) else None
        if wide:
            column = spread(column)
            inside = inside if inside is None else spread(inside)
        if d in wide:
            column = lax.add(column, lax.broadcasted_iota(column.dtype, column.shape, len(batch) + wide.index(d)))
        if d in cut:
            column = _from(column, affine(local.index(cut[d]), local.block(cut[d])))
        for kept in (inside, valid):
            if kept is not None:  # otherwise it could lie in the padding, or in the part of a window that fits
                column = lax.select(kept, column, lax.full_like(column, -1))
        columns.append(column)
    changed = {"mode": lax.GatherScatterMode.FILL_OR_DROP, "indices_are_sorted": False, "unique_indices": False}
    if wide:
        u, changed["dimension_numbers"] = _split_windows(u, numbers, wide, len(shape))
    return _side_by_side(columns), u, changed


def _split_windows(u: Array, numbers: Any, dims: Sequence[int], rank: int) -> tuple[Array, Any]:
    """Updates whose windows have one element along some dimensions, which follow the other indexed dimensions."""
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = dict(zip((d for d in range(rank) if d not in single), numbers.update_window_dims, strict=True))
    batch = [at for at in range(u.ndim) if at not in numbers.update_window_dims]
    rest = [at for d, at in window.items() if d not in dims]
    order = [*batch, *(window[d] for d in dims), *rest]
    first = len(order) - len(rest)
    inserted = tuple(sorted({*numbers.inserted_window_dims, *dims}))
    split = lax.ScatterDimensionNumbers(
        tuple(range(first, len(order))),
        inserted,
        numbers.scatter_dims_to_operand_dims,
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
    )
    return lax.transpose(u, order), split


_INT32 = (1 << 31) - 1

COMBINES: dict[str, Combine] = {
    "scatter-add": "add",
    "scatter-max": "max",
    "scatter-min": "min",
    "scatter-mul": "mul",
    "scatter-sub": "add",
}
"""Scatters whose updates may be made in any order -> how partial results are combined."""

LOCAL_RULES: dict[str, Builder] = {"gather": gather, "scatter": scatter, **dict.fromkeys(COMBINES, scatter)}
"""Primitive -> builder of its local rule."""
