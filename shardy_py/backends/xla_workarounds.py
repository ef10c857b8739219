"""Ops that XLA's partitioner computes wrongly, and what stands in their place.

Seen with jaxlib 0.10.2 and 0.12.0, on CPU, with Shardy and with GSPMD:

* A convolution that is sharded along what it sums over, or whose result is cut in other places than its image: partial sums are
  added over devices that hold the same part, so the result is a multiple of the right one. Weight gradients of grouped (depthwise)
  convolutions under data parallelism on a mesh with a further axis are of this kind. Here: a `jax.shard_map` region with its own
  `psum`; spatial dimensions are whole. An image that stays cut as it is (halo exchange) is left to XLA; grouped convolutions are
  regions forward too, so that gradients taken outside of the sharded function are those of regions.
* Two cumulative ops of one array along a sharded dimension: the second one reads the first one's padding. Here: that dimension is
  not sharded where the op runs (the op needs all of it on every device anyway).
* `pad` with interior padding, sharded along that dimension. Here: the same.
* `select_and_scatter_add`, the gradient of max pooling, where windows overlap along a sharded dimension: what goes to a neighbour is
  lost, or comes twice. Here: that dimension is not sharded where the op runs; nor is it in derivatives that are taken outside.
* `reduce` with a computation of the user's, `reduce_xor`, and `reduce_and` and `reduce_or` of integers, along a sharded dimension: not
  wrong, but no program on CPU ("Unsupported reduction computation"). Here: the same.
* `reduce_max`, `reduce_min`, `scatter-max` and `scatter-min` of floats that are combined over devices, on CPU: NaN is passed over. Here:
  integers in the same order are combined, which sends no more; derivatives taken outside of the sharded function are those of floats.
* `fft` on CPU where a later dimension is gathered beside it: the array is put in an order that the transform refuses when it runs. Here:
  row-major order is asked for. (Not of the transforms in a gradient that is taken outside of the sharded function.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.extend.core import JaxprEqn
from jax.sharding import AbstractMesh, PartitionSpec

from shardy_py.backends.local.fft import row_major
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.backends.ordered import as_ordered, from_ordered
from shardy_py.backends.rewriting import Replacement, constraint_params
from shardy_py.dialect import TensorSharding
from shardy_py.plan.prediction.stand_ins import is_cut, whole_axes

ShardingOf = Callable[[Any], TensorSharding | None]
Axes = tuple[str, ...]


def workaround(eqn: JaxprEqn, sharding_of: ShardingOf, twin: AbstractMesh, platform: str) -> Replacement | None:
    """What to emit instead of an equation, or None where XLA is right.

    Args:
        eqn: The equation.
        sharding_of: Gives the planned sharding of a variable.
        twin: The mesh, all axes Auto.
        platform: What is compiled for.
    """
    rule = WORKAROUNDS.get(eqn.primitive.name) or (WORKAROUNDS_ON_CPU.get(eqn.primitive.name) if platform == "cpu" else None)
    return None if rule is None else rule(eqn, sharding_of, twin)


def unplanned(eqn: JaxprEqn, platform: str) -> Replacement | None:
    """What to emit instead of an equation that may be cut in any way, or None; for those that `is_mispartitioned` leaves out.

    Args:
        eqn: The equation.
        platform: What is compiled for.
    """
    extreme = _EXTREMES_ON_CPU.get(eqn.primitive.name) if platform == "cpu" else None
    operand: Any = eqn.invars[0] if eqn.invars else None
    if extreme is None or not jnp.issubdtype(operand.aval.dtype, jnp.floating):
        return None
    function = extreme(eqn)
    return lambda *xs: [function(*xs)]


def _without(sharding: TensorSharding | None, dims: Iterable[int], rank: int) -> TensorSharding:
    chosen = set(dims)
    if sharding is None:
        return TensorSharding.closed("mesh", rank)
    return sharding.with_dims(dim.with_axes(()) if d in chosen else dim for d, dim in enumerate(sharding.dims))


def _constrained(x: Any, sharding: TensorSharding | None, twin: AbstractMesh) -> Any:
    return lax.sharding_constraint_p.bind(x, **constraint_params(NamedShardings(twin)(sharding, x.ndim)))


def _unsharded_along(eqn: JaxprEqn, dims: Iterable[int], sharding_of: ShardingOf, twin: AbstractMesh) -> Replacement | None:
    """The same op, with some dimensions of its operand and its result whole on every device."""
    dims = tuple(dims)
    (out,) = eqn.outvars
    operand = eqn.invars[0]
    before, after = sharding_of(operand), sharding_of(out)
    if not (is_cut(before, dims) or is_cut(after, dims)):
        return None

    def call(x: Any, *rest: Any) -> list[Any]:
        x = _constrained(x, _without(before, dims, x.ndim), twin)
        y = eqn.primitive.bind(x, *rest, **eqn.params)
        y = _constrained(y, _without(after, dims, y.ndim), twin)
        return [_constrained(y, after, twin)]

    return call


def _cumulative(eqn: JaxprEqn, sharding_of: ShardingOf, twin: AbstractMesh) -> Replacement | None:
    return _unsharded_along(eqn, (eqn.params["axis"],), sharding_of, twin)


def _pad(eqn: JaxprEqn, sharding_of: ShardingOf, twin: AbstractMesh) -> Replacement | None:
    dims = [d for d, (_, _, interior) in enumerate(eqn.params["padding_config"]) if interior]
    return _unsharded_along(eqn, dims, sharding_of, twin) if dims else None


def _reduction(eqn: JaxprEqn, sharding_of: ShardingOf, twin: AbstractMesh) -> Replacement | None:
    """The reduced dimensions whole: some back ends reduce across devices by sums, products, extrema, and, or only."""
    dims = eqn.params.get("dimensions", eqn.params.get("axes", ()))
    shardings = [sharding_of(v) for v in eqn.invars]
    if not any(is_cut(s, dims) for s in shardings):
        return None

    def call(*xs: Any) -> list[Any]:
        whole = [_constrained(x, _without(s, dims, x.ndim), twin) if x.ndim else x for x, s in zip(xs, shardings)]
        made = eqn.primitive.bind(*whole, **eqn.params)
        return list(made) if eqn.primitive.multiple_results else [made]

    return call


def _bitwise(eqn: JaxprEqn, sharding_of: ShardingOf, twin: AbstractMesh) -> Replacement | None:
    """Truth values are reduced across devices; bits are not."""
    operand: Any = eqn.invars[0]
    return None if operand.aval.dtype == jnp.bool_ else _reduction(eqn, sharding_of, twin)


def _select_and_scatter(eqn: JaxprEqn, sharding_of: ShardingOf, twin: AbstractMesh) -> Replacement | None:
    dims = _overlapping(eqn)
    before = [sharding_of(v) for v in eqn.invars]
    after = sharding_of(eqn.outvars[0])
    if not any(is_cut(s, dims) for s in (*before, after)):
        return None

    def call(*xs: Any) -> list[Any]:
        whole = [_constrained(x, _without(s, dims, x.ndim), twin) for x, s in zip(xs, before)]
        y = eqn.primitive.bind(*whole, **eqn.params)
        return [_constrained(_constrained(y, _without(after, dims, y.ndim), twin), after, twin)]

    return call


def _pooling(eqn: JaxprEqn, sharding_of: ShardingOf, twin: AbstractMesh) -> Replacement | None:
    """The op as it is; its derivatives, where someone differentiates the sharded function, with whole dimensions."""
    whole = _unsharded_along(eqn, _overlapping(eqn), sharding_of, twin)
    if whole is None:
        return None

    @jax.custom_jvp
    def pooling(x: Any) -> Any:
        return eqn.primitive.bind(x, **eqn.params)

    @pooling.defjvp
    def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        return pooling(*primals), jax.jvp(lambda x: whole(x)[0], primals, tangents)[1]

    return lambda x: [pooling(x)]


def _overlapping(eqn: JaxprEqn) -> list[int]:
    """The dimensions along which windows overlap."""
    windows = zip(eqn.params["window_dimensions"], eqn.params["window_strides"])
    return [d for d, (size, stride) in enumerate(windows) if size > stride]


def _convolution(eqn: JaxprEqn, sharding_of: ShardingOf, twin: AbstractMesh) -> Replacement | None:
    params = eqn.params
    numbers = params["dimension_numbers"]
    lhs, rhs, out = sharding_of(eqn.invars[0]), sharding_of(eqn.invars[1]), sharding_of(eqn.outvars[0])
    spatial_cut = any(is_cut(s, dims[2:]) for s, dims in ((lhs, numbers.lhs_spec), (rhs, numbers.rhs_spec), (out, numbers.out_spec)))
    grouped = params["batch_group_count"] > 1 or params["feature_group_count"] > 1
    grouped_cut = grouped and any(is_cut(s, range(s.rank)) for s in (lhs, rhs, out) if s is not None)
    if not (spatial_cut or grouped_cut):
        return None
    region = _region(eqn, lhs, rhs, out, twin)
    return _with_tangents(eqn, region) if spatial_cut and _is_halo_exchange(params, lhs, rhs, out) else region


def _with_tangents(eqn: JaxprEqn, region: Replacement) -> Replacement:
    """The op as it is; its derivatives, where someone differentiates the sharded function, by regions."""

    @jax.custom_jvp
    def convolution(x: Any, k: Any) -> Any:
        return eqn.primitive.bind(x, k, **eqn.params)

    @convolution.defjvp
    def _(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
        (x, k), (dx, dk) = primals, tangents
        return convolution(x, k), region(dx, k)[0] + region(x, dk)[0]

    return lambda x, k: [convolution(x, k)]


def _is_halo_exchange(params: Any, lhs: TensorSharding | None, rhs: TensorSharding | None, out: TensorSharding | None) -> bool:
    """Whether image and result are cut alike and the kernel is whole: XLA is right about that."""
    numbers = params["dimension_numbers"]
    if (
        params["batch_group_count"] > 1
        or is_cut(rhs, numbers.rhs_spec)
        or is_cut(lhs, (numbers.lhs_spec[1],))
        or is_cut(out, (numbers.out_spec[1],))
    ):
        return False
    pairs = zip((numbers.lhs_spec[0], *numbers.lhs_spec[2:]), (numbers.out_spec[0], *numbers.out_spec[2:]))
    return all(whole_axes(lhs, a) == whole_axes(out, o) for a, o in pairs)


def _region(
    eqn: JaxprEqn, lhs: TensorSharding | None, rhs: TensorSharding | None, out: TensorSharding | None, twin: AbstractMesh
) -> Replacement:
    """The convolution on shards: batch, output features or groups stay sharded, contracted features are summed over."""
    params = dict(eqn.params)
    numbers = params["dimension_numbers"]
    operands: list[Any] = eqn.invars
    left, right = (v.aval.shape for v in operands)
    taken: set[str] = set()

    def fresh(axes: Axes, *sizes: int) -> Axes:
        """The axes, where they are free and cut all the sizes evenly."""
        ways = math.prod(twin.shape[name] for name in axes)
        if taken & set(axes) or any(size % ways for size in sizes):
            return ()
        taken.update(axes)
        return axes

    batch: Axes = ()
    features: Axes = ()
    summed: Axes = ()
    in_features: Axes = ()
    if params["batch_group_count"] > 1:
        groups = params["batch_group_count"]
        axes = fresh(whole_axes(lhs, numbers.lhs_spec[0]) or whole_axes(rhs, numbers.rhs_spec[0]), groups)
        batch = features = axes
        params["batch_group_count"] = groups // math.prod(twin.shape[name] for name in axes)
        summed = fresh(whole_axes(lhs, numbers.lhs_spec[1]) or whole_axes(rhs, numbers.rhs_spec[1]), left[numbers.lhs_spec[1]])
        in_features = summed
        out_batch: Axes = ()
    elif params["feature_group_count"] > 1:
        groups = params["feature_group_count"]
        batch = out_batch = fresh(whole_axes(lhs, numbers.lhs_spec[0]), left[numbers.lhs_spec[0]])
        in_features = features = fresh(whole_axes(lhs, numbers.lhs_spec[1]) or whole_axes(rhs, numbers.rhs_spec[0]), groups)
        params["feature_group_count"] = groups // math.prod(twin.shape[name] for name in features)
    else:
        batch = out_batch = fresh(whole_axes(lhs, numbers.lhs_spec[0]), left[numbers.lhs_spec[0]])
        features = fresh(whole_axes(rhs, numbers.rhs_spec[0]), right[numbers.rhs_spec[0]])
        summed = in_features = fresh(
            whole_axes(lhs, numbers.lhs_spec[1]) or whole_axes(rhs, numbers.rhs_spec[1]), left[numbers.lhs_spec[1]]
        )

    def spec(rank: int, *placed: tuple[int, Axes]) -> PartitionSpec:
        entries: list[Axes | None] = [None] * rank
        for dim, axes in placed:
            entries[dim] = axes or None
        return PartitionSpec(*entries)

    rank = len(left)
    in_specs = (
        spec(rank, (numbers.lhs_spec[0], batch), (numbers.lhs_spec[1], in_features)),
        spec(rank, (numbers.rhs_spec[0], features), (numbers.rhs_spec[1], summed)),
    )
    out_spec = spec(rank, (numbers.out_spec[0], out_batch), (numbers.out_spec[1], features))

    def local(x: Any, k: Any) -> Any:
        y = eqn.primitive.bind(x, k, **params)
        return lax.psum(y, summed) if summed else y

    region = jax.shard_map(local, mesh=twin, in_specs=in_specs, out_specs=out_spec, check_vma=False)

    def call(x: Any, k: Any) -> list[Any]:
        return [_constrained(region(x, k), out, twin)]

    return call


def _extreme(eqn: JaxprEqn, sharding_of: ShardingOf, twin: AbstractMesh) -> Replacement | None:
    operand: Any = eqn.invars[0]
    dims = eqn.params["axes"]
    if not (jnp.issubdtype(operand.aval.dtype, jnp.floating) and is_cut(sharding_of(operand), dims)):
        return None
    after, extreme = sharding_of(eqn.outvars[0]), _ordered_extreme(eqn)
    return lambda x: [_constrained(extreme(x), after, twin)]


def _ordered_extreme(eqn: JaxprEqn) -> Callable[[Any], Any]:
    """The extreme of integers in the order of the floats."""
    largest, dims = eqn.primitive.name == "reduce_max", eqn.params["axes"]

    @jax.custom_jvp
    def extreme(x: Any) -> Any:
        return from_ordered(eqn.primitive.bind(as_ordered(x, largest), **eqn.params), x.dtype)

    @extreme.defjvp
    def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        (x,), (dx,) = primals, tangents
        best = extreme(x)
        at = (x == jnp.expand_dims(best, dims)).astype(x.dtype)
        return best, jnp.sum(dx * at, dims) / jnp.sum(at, dims)

    return extreme


def _scattered_extreme(eqn: JaxprEqn, sharding_of: ShardingOf, twin: AbstractMesh) -> Replacement | None:
    indices, updates = map(sharding_of, eqn.invars[1:])
    params: Any = eqn.params
    numbers = params["dimension_numbers"]
    avals: list[Any] = [v.aval for v in eqn.invars]
    among = [d for d in range(avals[2].ndim) if d not in numbers.update_window_dims]
    if not (jnp.issubdtype(avals[0].dtype, jnp.floating) and (is_cut(updates, among) or is_cut(indices, range(avals[1].ndim)))):
        return None
    after, extreme = sharding_of(eqn.outvars[0]), _ordered_scattered_extreme(eqn)
    return lambda x, at, new: [_constrained(extreme(x, at, new), after, twin)]


def _ordered_scattered_extreme(eqn: JaxprEqn) -> Callable[[Any, Any, Any], Any]:
    """The same of what is scattered."""
    largest, params = eqn.primitive.name == "scatter-max", eqn.params
    numbers: Any = params["dimension_numbers"]
    scatter = lax.scatter_max if largest else lax.scatter_min
    flags = {name: params[name] for name in ("indices_are_sorted", "unique_indices", "mode")}

    @jax.custom_jvp
    def extreme(x: Any, at: Any, new: Any) -> Any:
        made = scatter(as_ordered(x, largest), at, as_ordered(new, largest), numbers, **flags)
        return from_ordered(made, x.dtype)

    @extreme.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        (x, at, new), (dx, _, dnew) = primals, tangents
        return extreme(x, at, new), jax.jvp(lambda x, new: eqn.primitive.bind(x, at, new, **params), (x, new), (dx, dnew))[1]

    return extreme


def _fft(eqn: JaxprEqn, sharding_of: ShardingOf, twin: AbstractMesh) -> Replacement | None:
    """The transform of an array in row-major order, on which nothing around it may insist otherwise."""
    shardings = [sharding_of(v) for v in (*eqn.invars, *eqn.outvars)]
    if not any(is_cut(s, range(s.rank)) for s in shardings if s is not None):
        return None
    return lambda x: [row_major(eqn.primitive.bind(row_major(x), **eqn.params))]


WORKAROUNDS: dict[str, Callable[[JaxprEqn, ShardingOf, AbstractMesh], Replacement | None]] = {
    "conv_general_dilated": _convolution,
    "cumlogsumexp": _cumulative,
    "cummax": _cumulative,
    "cummin": _cumulative,
    "cumprod": _cumulative,
    "cumsum": _cumulative,
    "pad": _pad,
    "reduce": _reduction,
    "reduce_window_max": _pooling,
    "reduce_window_min": _pooling,
    "reduce_xor": _reduction,
    "select_and_scatter_add": _select_and_scatter,
}
"""Primitive -> what to emit instead, if anything."""

WORKAROUNDS_ON_CPU: dict[str, Callable[[JaxprEqn, ShardingOf, AbstractMesh], Replacement | None]] = {
    "fft": _fft,
    "reduce_and": _bitwise,
    "reduce_max": _extreme,
    "reduce_min": _extreme,
    "reduce_or": _bitwise,
    "scatter-max": _scattered_extreme,
    "scatter-min": _scattered_extreme,
}
"""The same, for programs on CPU."""

_EXTREMES_ON_CPU: dict[str, Callable[[JaxprEqn], Callable[..., Any]]] = {
    **dict.fromkeys(("reduce_max", "reduce_min"), _ordered_extreme),
    **dict.fromkeys(("scatter-max", "scatter-min"), _ordered_scattered_extreme),
}
