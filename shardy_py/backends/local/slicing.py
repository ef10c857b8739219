"""Slices, padding and concatenations along sharded dimensions, with exchanges of the elements that a device's block lacks."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import Literal

from shardy_py.backends.local import halo
from shardy_py.backends.local.local_rule import Builder, Equation, LocalContext, LocalRule, as_is, identity_fill, is_key, make_rule
from shardy_py.backends.local.windows import LocalWindow, Windowed

Array = Any
Part = tuple[tuple[int, ...], Sequence[int], Sequence[int]]
"""A slice: its shape, starts and strides."""


def refuses(equation: Equation) -> bool:
    """Whether an operand or result is empty, or of PRNG keys."""
    return any(map(is_key, equation.dtypes)) or any(0 in shape for shape in (*equation.shapes, *equation.result_shapes))


@dataclass(frozen=True, slots=True)
class Steps:
    """Exchange that brings devices their blocks of a strided slice: `count` elements each, from `offsets` in their blocks."""

    offsets: tuple[int, ...]
    stride: int
    count: int
    exchange: halo.Exchange


@functools.lru_cache(maxsize=4096)
def steps(size: int, start: int, stride: int, count: int, num_shards: int) -> Steps:
    """The steps from blocks of a dimension to blocks of a slice of it."""
    block, out = -(-size // num_shards), -(-count // num_shards)
    starts = tuple(t * out for t in range(num_shards))
    if stride == 1:
        plan = halo.block_exchange(size, num_shards, [start + s for s in starts], out)
        return Steps((0,) * num_shards, 1, block, plan)
    have, offsets = [], []
    for has in halo.blocks(size, num_shards):
        first = min(max(0, -(-(has.start - start) // stride)), count)
        last = min(max(first, -(-(has.stop - start) // stride)), count)
        have.append(halo.Have(first, first, last, has.device))
        offsets.append(start + first * stride - has.base if last > first else 0)
    most = max(h.stop - h.start for h in have)
    return Steps(tuple(offsets), stride, most, halo.exchange(tuple(have), starts, out, most))


def stepped(x: Array, dim: int, local: LocalContext, factor: int, at: Steps) -> Array:
    """A block of a slice of a dimension."""
    names, index = local.names(factor), local.index(factor)
    if at.stride != 1:
        length = (at.count - 1) * at.stride + 1
        x = halo.padded(x, dim, 0, max(0, max(at.offsets) + length - x.shape[dim]))
        x = halo.sliced(x, dim, halo.of_device(at.offsets, index), length)
        x = lax.slice_in_dim(x, 0, length, at.stride, axis=dim)
    return halo.run(x, dim, names, local, at.exchange)


def slice_(equation: Equation) -> LocalRule | None:
    """Unsliced dimensions pass through; blocks of sliced ones fetch the elements they lack."""
    if refuses(equation):
        return None
    (shape,), (out,) = equation.shapes, equation.result_shapes
    params = equation.params
    starts, strides = params["start_indices"], params["strides"] or (1,) * len(shape)
    return _sliced(equation, shape, [(out, starts, strides)])


def split(equation: Equation) -> LocalRule | None:
    """Consecutive slices of one dimension."""
    (shape,) = equation.shapes
    if 0 in shape or any(map(is_key, equation.dtypes)):
        return None
    axis = equation.params["axis"]
    results = []
    at = 0
    for out in equation.result_shapes:
        results.append((out, [at if d == axis else 0 for d in range(len(shape))], (1,) * len(shape)))
        at += out[axis]
    return _sliced(equation, shape, results)


def _sliced(equation: Equation, shape: tuple[int, ...], results: Sequence[Part], partial: bool = True) -> LocalRule:
    """The local rule of slices of one operand.

    Args:
        partial: Whether a slice of one element of a dimension is a partial sum of the device that has the element and zeros of the
            others. The alternative shards the result along that dimension.
    """
    rank = range(len(shape))
    cuts = [d for d in rank if any(out[d] != shape[d] for out, _, _ in results)]
    dtype = jnp.dtype(equation.dtypes[0])
    needed = [used and 0 not in out for used, (out, _, _) in zip(equation.used, results, strict=True)]
    single = [d for d in cuts if partial and len(results) == 1 and results[0][0][d] == 1]
    moving = [d for d in cuts if d not in single]
    sizes, dims = list(shape), list(rank)
    for d in single:
        sizes.append(1)
        dims[d] = len(sizes) - 1

    def bytes_inside(num_shards: Sequence[int]) -> int:
        total = 0
        for out, starts, strides in itertools.compress(results, needed):
            local = [
                -(-n // num_shards[d]) if d not in cuts or (num_shards[d] > 1 and d in moving) else out[d] for d, n in enumerate(shape)
            ]
            for d in moving:
                if num_shards[d] > 1:
                    at = steps(shape[d], starts[d], strides[d], out[d], num_shards[d])
                    total += at.exchange.cost(math.prod(n for i, n in enumerate(local) if i != d) * dtype.itemsize)
                    local[d] = -(-out[d] // num_shards[d])
        return total

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        slices = []
        for i, (out, starts, strides) in enumerate(results):
            (x,) = arrays
            if not needed[i]:
                slices.append(lax.full(local.result_shape(i), 0, dtype))
                continue
            begins, ends, every = [0] * len(shape), list(x.shape), [1] * len(shape)
            givers = []
            for d in cuts:
                if not local.names(d):
                    begins[d], ends[d], every[d] = starts[d], starts[d] + (out[d] - 1) * strides[d] + 1, strides[d]
                elif d in single:
                    giver, begins[d] = divmod(starts[d], x.shape[d])
                    ends[d] = begins[d] + 1
                    givers.append(lax.eq(local.index(d), np.int32(giver)))
            x = lax.slice(x, begins, ends, every)
            for d in moving:
                if local.names(d):
                    x = stepped(x, d, local, d, steps(shape[d], starts[d], strides[d], out[d], local.num_shards(d)))
            if givers:
                gives = lax.broadcast(functools.reduce(lax.bitwise_and, givers), x.shape)
                x = lax.select(gives, x, lax.full_like(x, identity_fill("add", dtype)))
            slices.append(x)
        return slices

    rule = make_rule(sizes, [rank], [dims] * len(results), reduction=single, whole=[dims[d] for d in single], permutation=moving)
    combine = "or" if dtype == jnp.bool_ else "add"
    others = (_sliced(equation, shape, results, partial=False),) if single else ()
    return LocalRule(
        rule, run, combine, uneven=frozenset(rank), linear=((0,),), bytes_inside=bytes_inside if moving else None, alternatives=others
    )


def pad(equation: Equation) -> LocalRule | None:
    """Dimensions without padding pass through; blocks of padded ones fetch the elements that are shifted into them."""
    if refuses(equation):
        return None
    shape, (out,) = equation.shapes[0], equation.result_shapes
    config = equation.params["padding_config"]
    rank = range(len(shape))
    windows = tuple(
        (d, LocalWindow(shape[d], out[d], 1, low, 1, inner + 1))
        for d, (low, high, inner) in enumerate(config)
        if (low, high, inner) != (0, 0, 0)
    )
    operand = Windowed(tuple((d,) for d in rank), shape, jnp.dtype(equation.dtypes[0]).itemsize, windows)

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        x, fill = arrays
        at = operand.opened(local, x, fill, [(low, high) for low, high, _ in config], [inner + 1 for _, _, inner in config])
        return local.bind(at.array, fill, padding_config=tuple((*p, s - 1) for p, s in zip(at.padding, at.dilation)))

    fill = equation.eqn.invars[1]
    is_zero = isinstance(fill, Literal) and not fill.val
    rule = make_rule(shape, [rank, ()], [rank], permutation=[d for d, _ in windows])
    linear = ((0, 1), (0,)) if is_zero else ((0, 1),)
    return LocalRule(rule, run, uneven=frozenset(rank), linear=linear, bytes_inside=operand.bytes_inside if windows else None)


def concatenate(equation: Equation) -> LocalRule | None:
    """Other dimensions pass through; a block of the result is assembled from the blocks of operands that it overlaps."""
    (out,) = equation.result_shapes
    if 0 in out or any(map(is_key, equation.dtypes)):
        return None
    dim = equation.params["dimension"]
    rank = range(len(out))
    some = [i for i, shape in enumerate(equation.shapes) if shape[dim]]
    sizes = [equation.shapes[i][dim] for i in some]
    row = jnp.dtype(equation.dtypes[0]).itemsize
    operands = tuple(range(len(equation.shapes)))
    if len(sizes) == 1:
        rule = make_rule(out, [rank for _ in operands], [rank])
        return LocalRule(rule, lambda local, arrays: [arrays[some[0]]], uneven=frozenset(rank), linear=(operands,))

    def bytes_inside(num_shards: Sequence[int]) -> int:
        if num_shards[dim] == 1:
            return 0
        others = math.prod(-(-n // k) for d, (n, k) in enumerate(zip(out, num_shards, strict=True)) if d != dim)
        return joined(tuple(sizes), num_shards[dim]).cost(others * row)

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        names = local.names(dim)
        if not names:
            return local.bind(*arrays)
        return [halo.run(lax.concatenate([arrays[i] for i in some], dim), dim, names, local, joined(tuple(sizes), local.num_shards(dim)))]

    rule = make_rule(out, [rank for _ in operands], [rank], permutation=[dim])
    return LocalRule(rule, run, uneven=frozenset(rank), linear=(operands,), bytes_inside=bytes_inside)


@functools.lru_cache(maxsize=4096)
def joined(sizes: tuple[int, ...], num_shards: int) -> halo.Exchange:
    """The exchange from concatenated blocks of several runs to blocks of the concatenation."""
    have = []
    at = offset = 0
    for run, size in enumerate(sizes):
        have += [halo.Have(at + h.base - offset, at + h.start, at + h.stop, h.device, run) for h in halo.blocks(size, num_shards)]
        at, offset = at + size, offset + -(-size // num_shards)
    length = -(-at // num_shards)
    return halo.exchange(tuple(have), tuple(t * length for t in range(num_shards)), length, offset)


def rev(equation: Equation) -> LocalRule | None:
    """Each block is reversed, and swapped with the one at its mirror position."""
    if refuses(equation):
        return None
    (shape,) = equation.shapes
    dims = equation.params["dimensions"]
    rank = range(len(shape))
    row = jnp.dtype(equation.dtypes[0]).itemsize

    def bytes_inside(num_shards: Sequence[int]) -> int:
        total = math.prod(-(-n // k) for n, k in zip(shape, num_shards, strict=True)) * row
        return sum(mirror(shape[d], num_shards[d]).cost(total // -(-shape[d] // num_shards[d])) for d in dims if num_shards[d] > 1)

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        (x,) = local.bind(*arrays)
        for d in dims:
            if local.names(d):
                x = halo.run(x, d, local.names(d), local, mirror(shape[d], local.num_shards(d)))
        return [x]

    return LocalRule(
        make_rule(shape, [rank], [rank], permutation=dims), run, uneven=frozenset(rank), linear=((0,),), bytes_inside=bytes_inside
    )


@functools.lru_cache(maxsize=4096)
def mirror(size: int, num_shards: int) -> halo.Exchange:
    """The exchange from reversed blocks to blocks of the reversed dimension."""
    block = -(-size // num_shards)
    have = tuple(halo.Have(size - h.base - block, size - h.stop, size - h.start, h.device) for h in halo.blocks(size, num_shards))
    return halo.exchange(have, tuple(t * block for t in range(num_shards)), block, block)


def stack(equation: Equation) -> LocalRule | None:
    """Dimensions of the operands pass through."""
    if refuses(equation):
        return None
    (out,) = equation.result_shapes
    axis = equation.params["axis"] % len(out)
    dims = [d for d in range(len(out)) if d != axis]
    count = len(equation.shapes)
    rule = make_rule(out, [dims] * count, [range(len(out))], whole=[axis])
    return LocalRule(rule, as_is, uneven=frozenset(dims), linear=(tuple(range(count)),))


def unstack(equation: Equation) -> LocalRule | None:
    """Dimensions of the results pass through; the other one is whole, or each result is a partial sum of the device that has it."""
    if refuses(equation):
        return None
    (shape,) = equation.shapes
    axis = equation.params["axis"] % len(shape)
    dims = [d for d in range(len(shape)) if d != axis]
    tables = [range(len(shape))], [dims] * len(equation.result_shapes)

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        if not local.names(axis):
            return local.bind(*arrays)
        (x,) = arrays
        parts = []
        for i, used in enumerate(equation.used):
            giver, at = divmod(i, x.shape[axis])
            part = lax.index_in_dim(x, at, axis, keepdims=False)
            here = lax.broadcast(lax.eq(local.index(axis), np.int32(giver)), part.shape)
            parts.append(lax.select(here, part, lax.full_like(part, identity_fill("add", part.dtype))) if used else lax.full_like(part, 0))
        return parts

    combine = "or" if equation.dtypes[0] == jnp.bool_ else "add"
    partial_rule = LocalRule(make_rule(shape, *tables, reduction=[axis]), run, combine, uneven=frozenset(range(len(shape))), linear=((0,),))
    return LocalRule(make_rule(shape, *tables, whole=[axis]), run, uneven=frozenset(dims), linear=((0,),), alternatives=(partial_rule,))


def tile(equation: Equation) -> LocalRule | None:
    """Dimensions that are not repeated pass through; a repeated one is sharded into blocks of whole repetitions."""
    if refuses(equation):
        return None
    (shape,) = equation.shapes
    reps = tuple(equation.params["reps"])
    if len(reps) != len(shape):
        return None
    sizes: list[int] = []
    operand: list[tuple[int, ...]] = []
    result: list[tuple[int, ...]] = []
    repeated: dict[int, int] = {}
    whole: list[int] = []
    for d, (n, r) in enumerate(zip(shape, reps, strict=True)):
        sizes.append(n)
        operand.append((len(sizes) - 1,))
        result.append(operand[d])
        if r > 1:
            sizes.append(r)
            repeated[d] = len(sizes) - 1
            whole.append(operand[d][0])
            result[d] = (repeated[d], operand[d][0]) if n > 1 else (repeated[d],)

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        return local.bind(*arrays, reps=tuple(r // local.num_shards(repeated[d]) if d in repeated else r for d, r in enumerate(reps)))

    uneven = frozenset(operand[d][0] for d in range(len(shape)) if d not in repeated)
    return LocalRule(make_rule(sizes, [operand], [result], whole=whole), run, uneven=uneven, linear=((0,),))


LOCAL_RULES: dict[str, Builder] = {
    "concatenate": concatenate,
    "pad": pad,
    "rev": rev,
    "slice": slice_,
    "split": split,
    "stack": stack,
    "tile": tile,
    "unstack": unstack,
}
"""Primitive -> builder of its local rule."""
