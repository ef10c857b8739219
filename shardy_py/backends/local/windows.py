"""Sliding windows over sharded dimensions: the halo that a block of results needs, and ops that reduce windows."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax import numpy as jnp

from shardy_py.backends.local import halo
from shardy_py.backends.local.local_rule import Builder, Equation, LocalContext, LocalRule, block_index, identity_fill, is_key, make_rule

Array = Any


@dataclass(frozen=True, slots=True)
class LocalWindow:
    """A window that slides over a dimension, in the notation of XLA; `footprint` is the number of elements that it spans."""

    size: int
    count: int
    stride: int
    low: int
    footprint: int
    dilation: int = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """The exchange and padding by which devices get the operand of their blocks of window positions.

    Attributes:
        shifts: Start of the first window in the elements that are dilated in front of the op; None where the op dilates them.
        spread: Dilation in front of the op.
    """

    exchange: halo.Exchange
    padding: tuple[int, int]
    dilation: int
    shifts: tuple[int, ...] | None
    spread: int
    span: int


@functools.lru_cache(maxsize=4096)
def cut(window: LocalWindow, num_shards: int) -> Cut:
    """Shards the dimension and the positions of a window."""
    block, d = -(-window.count // num_shards), window.dilation
    span = (block - 1) * window.stride + window.footprint
    first = [t * block * window.stride - window.low for t in range(num_shards)]
    leads = {-f % d for f in first}
    if len(leads) == 1:
        (lead,) = leads
        length = max(1, -(-(span - lead) // d))
        plan = halo.block_exchange(window.size, num_shards, [(f + lead) // d for f in first], length)
        return Cut(plan, (lead, span - lead - (length - 1) * d - 1), d, None, 1, span)
    shifts = tuple(f % d for f in first)
    length = (max(shifts) + span - 1) // d + 1
    plan = halo.block_exchange(window.size, num_shards, [f // d for f in first], length)
    return Cut(plan, (0, 0), 1, shifts, d, span)


def spread_out(x: Array, dim: int, names: tuple[str, ...], at: Cut, fill: Any) -> Array:
    """Dilates exchanged elements, and slices them from the start of this device's first window."""
    if at.shifts is None:
        return x
    high = max(0, max(at.shifts) + at.span - ((x.shape[dim] - 1) * at.spread + 1))
    value = jnp.asarray(fill, x.dtype)
    x = lax.pad(x, value, [(0, high, at.spread - 1) if i == dim else (0, 0, 0) for i in range(x.ndim)])
    return halo.sliced(x, dim, halo.of_device(at.shifts, block_index(names)), at.span)


@dataclass(frozen=True)
class Windowed:
    """An operand of sliding windows."""

    dims: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    bytes: int
    windows: tuple[tuple[int, LocalWindow], ...]

    def bytes_inside(self, num_shards: Sequence[int]) -> int:
        """Bytes that a device receives, and `COLLECTIVE_LAUNCH_BYTES` for each collective, given the number of shards of each factor."""
        local = [-(-n // math.prod(num_shards[f] for f in dim)) for n, dim in zip(self.shape, self.dims, strict=True)]
        total = 0
        for d, window in self.windows:
            count = math.prod(num_shards[f] for f in self.dims[d])
            if count == 1:
                continue
            plan = cut(window, count).exchange
            total += plan.cost(math.prod(n for i, n in enumerate(local) if i != d) * self.bytes)
            local[d] = plan.length
        return total

    def opened(self, local: LocalContext, x: Array, fill: Any, padding: Sequence[tuple[int, int]], dilation: Sequence[int]) -> Opened:
        """Exchanges the elements that a device needs, with the padding and dilation that remain for the op."""
        pads, spread = list(padding), list(dilation)
        cuts: list[tuple[int, tuple[str, ...], Cut]] = []
        for d, window in self.windows:
            names = tuple(name for f in self.dims[d] for name in local.names(f))
            if names:
                cuts.append((d, names, cut(window, math.prod(local.sizes[name] for name in names))))
        for d, names, at in cuts:
            x = halo.run(x, d, names, local, at.exchange, fill)
        for d, names, at in cuts:  # only now, so that what lies between elements is not sent
            x = spread_out(x, d, names, at, fill)
            pads[d], spread[d] = at.padding, at.dilation
        return Opened(x, tuple(pads), tuple(spread))


@dataclass(frozen=True, slots=True)
class Opened:
    """The local operand of a windowed op."""

    array: Array
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]


def reduce_window(equation: Equation) -> LocalRule | None:
    """Dimensions without windows pass through; the others fetch the elements at the borders of blocks.

    A reducer of the user's own stays whole along padded dimensions: XLA leaves padding out there, and its initial value is part of each
    window once, whether or not that changes it.
    """
    params, name = equation.params, equation.name
    count = len(equation.result_shapes)
    (shape, *_), (out, *_) = equation.shapes, equation.result_shapes
    if any(is_key(d) for d in equation.dtypes) or 0 in (*shape, *out):
        return None
    rank = range(len(shape))
    kernel, strides, pads = params["window_dimensions"], params["window_strides"], tuple(map(tuple, params["padding"]))
    base, spread = params["base_dilation"], params["window_dilation"]
    windows = tuple(
        (d, LocalWindow(shape[d], out[d], strides[d], pads[d][0], (kernel[d] - 1) * spread[d] + 1, base[d]))
        for d in rank
        if (kernel[d], strides[d], base[d], *pads[d]) != (1, 1, 1, 0, 0)
    )
    whole = [d for d, _ in windows if name == "reduce_window" and (*pads[d], base[d]) != (0, 0, 1)]
    slid = [d for d, _ in windows if d not in whole]
    tensors = [tuple(rank) if s else () for s in equation.shapes]
    operands = [Windowed(tuple((d,) for d in rank), shape, jnp.dtype(d).itemsize, windows) for d in equation.dtypes[:count]]
    if name == "select_and_gather_add":
        operands = [Windowed(tuple((d,) for d in rank), shape, jnp.dtype(d).itemsize, windows) for d in equation.dtypes]
        largest = equation.params["select_prim"].name == "ge"
        fills: list[Any] = [0, identity_fill("max" if largest else "min", equation.dtypes[1])]
    elif name in _REDUCERS:
        fills = [identity_fill(_REDUCERS[name], equation.dtypes[0])]
    else:
        fills = []

    def bytes_inside(num_shards: Sequence[int]) -> int:
        return sum(operand.bytes_inside(num_shards) for operand in operands)

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        at = [operand.opened(local, x, fill, pads, base) for operand, x, fill in zip(operands, arrays, fills or arrays[count:])]
        return local.bind(*(o.array for o in at), *arrays[len(at) :], padding=at[0].padding, base_dilation=at[0].dilation)

    linear = ((0,),) if name in ("reduce_window_sum", "select_and_gather_add") else ()
    work = 0.005 * math.prod(kernel)
    rule = make_rule(shape, tensors, [rank] * count, permutation=slid, whole=whole)
    return LocalRule(rule, run, uneven=frozenset(rank), linear=linear, bytes_inside=bytes_inside, weight=work)


_REDUCERS = {"reduce_window_sum": "add", "reduce_window_max": "max", "reduce_window_min": "min"}


def select_and_scatter_add(equation: Equation) -> LocalRule | None:
    """Each device fetches the windows that overlap its block, and the elements they cover."""
    params = equation.params
    source, shape = equation.shapes
    if 0 in (*source, *shape):
        return None
    rank = range(len(shape))
    kernel, strides, pads = params["window_dimensions"], params["window_strides"], tuple(map(tuple, params["padding"]))
    slid = [d for d in rank if (kernel[d], strides[d], *pads[d]) != (1, 1, 0, 0)]
    fill = identity_fill("max" if params["select_prim"].name == "ge" else "min", equation.dtypes[1])
    bytes_ = [jnp.dtype(d).itemsize for d in equation.dtypes]

    def bytes_inside(num_shards: Sequence[int]) -> int:
        total = 0
        for which, whole in enumerate((source, shape)):
            local = [-(-n // k) for n, k in zip(whole, num_shards, strict=True)]
            for d in slid:
                if num_shards[d] > 1:
                    plan = touching(shape[d], source[d], kernel[d], strides[d], pads[d][0], num_shards[d])
                    part = (plan.source, plan.operand)[which]
                    total += part.cost(math.prod(n for i, n in enumerate(local) if i != d) * bytes_[which])
                    local[d] = part.length
        return total

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        updates, x = arrays
        paddings = list(pads)
        plans = {d: touching(shape[d], source[d], kernel[d], strides[d], pads[d][0], local.num_shards(d)) for d in slid if local.names(d)}
        for d, plan in plans.items():
            updates = halo.run(updates, d, local.names(d), local, plan.source, 0)
            x = halo.run(x, d, local.names(d), local, plan.operand, fill)
            paddings[d] = (0, 0)
        (out,) = local.bind(updates, x, padding=tuple(paddings))
        for d, plan in plans.items():
            out = halo.sliced(out, d, halo.of_device(plan.offsets, local.index(d)), local.block(d))
        return [out]

    rule = make_rule(shape, [rank, rank], [rank], permutation=slid)
    work = 0.005 * math.prod(kernel)
    return LocalRule(rule, run, uneven=frozenset(rank), linear=((0,),), bytes_inside=bytes_inside, weight=work)


@dataclass(frozen=True, slots=True)
class Touching:
    """The exchanges of windows that touch blocks of a dimension."""

    source: halo.Exchange
    operand: halo.Exchange
    offsets: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def touching(size: int, count: int, kernel: int, stride: int, low: int, num_shards: int) -> Touching:
    """The exchanges after which every block has whole all windows that touch it."""
    block = -(-size // num_shards)
    first = [-(-(t * block + low - kernel + 1) // stride) for t in range(num_shards)]
    last = [((t + 1) * block - 1 + low) // stride for t in range(num_shards)]
    first = [min(f, (t * block + low) // stride) for t, f in enumerate(first)]
    places = max(b - a + 1 for a, b in zip(first, last))
    begins = [f * stride - low for f in first]
    ends = [max(b + (places - 1) * stride + kernel, (t + 1) * block) for t, b in enumerate(begins)]
    length = max(e - b for b, e in zip(begins, ends))
    return Touching(
        halo.block_exchange(count, num_shards, first, places),
        halo.block_exchange(size, num_shards, begins, length),
        tuple(t * block - b for t, b in enumerate(begins)),
    )


LOCAL_RULES: dict[str, Builder] = {
    "reduce_window": reduce_window,
    "reduce_window_max": reduce_window,
    "reduce_window_min": reduce_window,
    "reduce_window_sum": reduce_window,
    "select_and_gather_add": reduce_window,
    "select_and_scatter_add": select_and_scatter_add,
}
"""Primitive -> builder of its local rule."""
