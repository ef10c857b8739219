"""Ops that XLA's partitioner computes wrongly, and what stands in their place.

Most are not left to it but partitioned here, one equation at a time (`partitioned_equation`): `partition/mispartitioned` has which
they are, and why. The others run in another form:

* Slices and updates at places that are known at run time only, and gathered windows, move a place that is out of range back. XLA makes one
  slice of a slice of a slice, and moves only the sum back (openxla/xla#49122); and where one position is written, it asks which device has
  it before it moves it (openxla/xla#49118). Here: places are brought into range first.
* Gathers at indices of fewer than 32 bits end the process where the indexed dimension is cut. Here: the indices are int32.
* A device counts a part of an iota from its offset in the type of the iota, so that floats which cannot hold every position are rounded
  twice. Here: int32 is counted, and converted.
* A slice from the first element on that leaves the parts of devices as they are shares with its operand what the partitioner brought either
  of them to in another layout, so that ops get operands of the wrong size (jax-ml/jax#39301 is of this kind). Here: a copy is sliced; not
  of an array that is rotated, whose slices XLA has to see side by side, and never reads one by one.
* `reduce_max`, `reduce_min`, `scatter-max` and `scatter-min` of floats that are combined over devices, on CPU: NaN is passed over. Here:
  integers in the same order are combined, which sends no more.
* `fft` on CPU where a later dimension is gathered beside it: the array is put in an order that the transform refuses when it runs. Here:
  row-major order is asked for.

Programs are rewritten when they are lowered: derivatives, batched forms and checks have been made before, of what the user wrote.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.core import JaxprEqn, Literal
from jax.sharding import NamedSharding, PartitionSpec

from shardy_py.backends.local.in_bounds import clamped_start
from shardy_py.backends.local.linear_algebra import row_major
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.backends.ordered import as_ordered, from_ordered
from shardy_py.backends.partitioned_call import Partitioner
from shardy_py.backends.partitioned_equation import in_region
from shardy_py.backends.rewriting import Replacement, constraint_params, op_of
from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.dialect.axis import Axes
from shardy_py.frontends.jaxpr import Scope
from shardy_py.ir import Function, Op, Value
from shardy_py.partition.layouts import Layout, all_axes, layout_of, local_shape, mesh_of, parts
from shardy_py.partition.mispartitioned import OPS, as_sharded, is_mispartitioned, is_mispartitioned_product
from shardy_py.passes.dataflow import NAMED_COMPUTATION
from shardy_py.rules.traits import CONSTANTS


@dataclass(frozen=True)
class Target:
    """The platform and mesh for which equations are rewritten."""

    named: NamedShardings
    meshes: Mapping[str, Mesh]
    platform: str
    partition: Partitioner


def workaround(eqn: JaxprEqn, scope: Scope | None, target: Target) -> Replacement | None:
    """The replacement of an equation, or None if XLA handles it correctly."""
    name = eqn.primitive.name

    op = op_of(eqn, scope, OPS[name]) if scope is not None and name in OPS else None
    read = {} if op is None else {variable_of(operand): operand for operand in op.operands}  # constants have a copy for every reader

    def sharding_of(v: Any) -> TensorSharding | None:
        value = None if scope is None or isinstance(v, Literal) else scope.env.get(v)
        return None if value is None else read.get(value, value).sharding

    product = op_of(eqn, scope, _PRODUCT) if scope is not None and name in _PRODUCTS else None
    is_product_at_risk = product is not None and (is_mispartitioned_product(product) or is_misaligned_product(product, target.meshes))
    if is_product_at_risk or (op is not None and is_mispartitioned(op, as_sharded(target.meshes))):
        region = in_region(eqn, sharding_of, target.named, target.partition)
        if region is not None:
            return region
    if name in WORKAROUNDS_ON_CPU and target.platform == "cpu":
        return WORKAROUNDS_ON_CPU[name](eqn)
    if op is not None and op.name == "stablehlo.slice" and _is_of_rotation(op):
        return None
    return WORKAROUNDS[name](eqn, target.named) if name in WORKAROUNDS else None


_PRODUCT = "stablehlo.dot_general"
_PRODUCTS = frozenset(("dot_general", "ragged_dot_general"))
"""Primitives that are lowered to products."""


def _is_float(v: Any) -> bool:
    return jnp.issubdtype(v.aval.dtype, jnp.floating)


def _dynamic_slice(eqn: JaxprEqn, named: NamedShardings) -> Replacement | None:
    operand: Any = eqn.invars[0]
    return _with_starts(eqn, 1, [n - m for n, m in zip(operand.aval.shape, eqn.params["slice_sizes"], strict=True)])


def _dynamic_update_slice(eqn: JaxprEqn, named: NamedShardings) -> Replacement | None:
    operand, update = (cast(Any, v.aval).shape for v in eqn.invars[:2])
    return _with_starts(eqn, 2, [n - m for n, m in zip(operand, update, strict=True)])


def _with_starts(eqn: JaxprEqn, first: int, most: list[int]) -> Replacement | None:
    """The op with its starts, which are its operands from the first on, between zero and the last ones with which the slice fits."""
    if all(isinstance(v, Literal) and 0 <= v.val <= bound for v, bound in zip(eqn.invars[first:], most, strict=True)):
        return None

    def call(*operands: Any) -> list[Any]:
        starts = [clamped_start(start, bound) for start, bound in zip(operands[first:], most, strict=True)]
        return [eqn.primitive.bind(*operands[:first], *starts, **eqn.params)]

    return call


def _gather(eqn: JaxprEqn, named: NamedShardings) -> Replacement | None:
    """The gather at indices of at least 32 bits, in range where the mode is to clip."""
    params: Any = eqn.params
    operand, indices = (v.aval for v in cast(Any, eqn.invars))
    is_clipped = params["mode"] == lax.GatherScatterMode.CLIP and indices.size > 0
    wide = jnp.dtype(np.int32 if indices.dtype.itemsize < 4 else indices.dtype)
    if not is_clipped and wide == indices.dtype:
        return None
    bounds = [min(operand.shape[d] - params["slice_sizes"][d], jnp.iinfo(wide).max) for d in params["dimension_numbers"].start_index_map]

    def call(x: Any, indices: Any) -> list[Any]:
        places = lax.convert_element_type(indices, wide)
        return [eqn.primitive.bind(x, _clipped(places, bounds) if is_clipped else places, **params)]

    return call


def _clipped(indices: Any, bounds: list[int]) -> Any:
    """Index vectors, whose last dimension has a bound for each of their elements, between zero and these."""
    place = lax.broadcasted_iota(jnp.int32, indices.shape, indices.ndim - 1)
    limits = lax.full_like(indices, bounds[0])
    for i, bound in enumerate(bounds[1:], 1):
        limits = limits if bound == bounds[0] else lax.select(lax.eq(place, np.int32(i)), lax.full_like(indices, bound), limits)
    return lax.clamp(lax.full_like(indices, 0), indices, limits)


def _is_of_rotation(op: Op) -> bool:
    """Whether a slice is read by rotations alone that lie as its operand, which nothing brings to another layout."""
    (operand,), (result,) = op.operands, op.results
    is_rotated = result.sharding == operand.sharding and all(_rotates(user) for user, _ in result.uses)
    return is_rotated and not _is_moved([operand, *(user.result for user, _ in result.uses)])


def _rotates(op: Op) -> bool:
    """Whether a concatenation is of the end of an array and its beginning."""
    makers = [v.defining_op for v in op.operands] if op.name == "stablehlo.concatenate" else []
    tail, head = makers if len(makers) == 2 else (None, None)
    if tail is None or head is None or tail.name != "stablehlo.slice" or head.name != tail.name or tail.operands[0] is not head.operands[0]:
        return False
    dim = op.attributes["dimension"]
    starts, ends = tail.attributes["start_indices"], head.attributes["limit_indices"]
    return starts[dim] == ends[dim] and not head.attributes["start_indices"][dim] and op.result.type == tail.operands[0].type


def _is_moved(values: list[Value]) -> bool:
    """Whether one of some values of one layout, or a value of its shape that is made of it, also out of calls, has another layout.

    XLA brings all of them there.
    """
    value, waiting, seen = values[0], list(values), set(values)
    while waiting:
        for user, number in waiting.pop().uses:
            caller = None if user.block is None else user.block.parent
            if user.name == NAMED_COMPUTATION:
                successors = [user.regions[0].arguments[number]]
            elif user.results:
                successors = [each for each in user.results if each.type == value.type]
            elif isinstance(caller, Op) and caller.name == NAMED_COMPUTATION:
                successors = [caller.results[number]]
            elif not isinstance(caller, Function) or caller.result_shardings[number] != value.sharding:
                return True
            else:
                successors = []
            if any(each.sharding != value.sharding for each in successors):
                return True
            waiting += (each for each in successors if each not in seen)
            seen.update(successors)
    return False


def _slice(eqn: JaxprEqn, named: NamedShardings) -> Replacement | None:
    """The slice of a copy: of a constraint that leaves all to propagation, which is gone when parts have been made."""
    params, operand = eqn.params, cast(Any, eqn.invars[0])
    shape, limits = operand.aval.shape, params["limit_indices"]
    if any(params["start_indices"]) or any(stride != 1 for stride in params["strides"] or ()) or limits == shape:
        return None
    if not any(
        all(-(-n // num_shards) == -(-m // num_shards) for n, m in zip(shape, limits) if n != m)
        for num_shards in range(2, named.mesh.size + 1)
    ):
        return None

    def call(x: Any) -> list[Any]:
        free = NamedSharding(named.mesh, PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * x.ndim))
        return [eqn.primitive.bind(lax.sharding_constraint_p.bind(x, **constraint_params(free)), **params)]

    return call


def _iota(eqn: JaxprEqn, named: NamedShardings) -> Replacement | None:
    params: Any = eqn.params
    dtype, length = params["dtype"], params["shape"][params["dimension"]]
    if eqn.invars or not jnp.issubdtype(dtype, jnp.inexact) or length <= 2 ** (jnp.finfo(dtype).nmant + 1):
        return None
    counter = jnp.dtype(jnp.int32)
    return lambda: [lax.convert_element_type(eqn.primitive.bind(**{**params, "dtype": counter}), dtype)]


WORKAROUNDS: Mapping[str, Callable[[JaxprEqn, NamedShardings], Replacement | None]] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "iota": _iota,
    "slice": _slice,
}
"""Primitive -> what to emit instead in any case, if anything."""


def _extreme(eqn: JaxprEqn) -> Replacement | None:
    operand: Any = eqn.invars[0]
    if not _is_float(operand) or not operand.aval.size:  # the largest of no integers is NaN
        return None
    largest, dtype = eqn.primitive.name == "reduce_max", operand.aval.dtype

    def extreme(x: Any) -> list[Any]:
        return [from_ordered(eqn.primitive.bind(as_ordered(x, largest), **eqn.params), dtype)]

    return extreme


def _scattered_extreme(eqn: JaxprEqn) -> Replacement | None:
    if not _is_float(eqn.invars[0]):
        return None
    largest, params, dtype = eqn.primitive.name == "scatter-max", eqn.params, cast(Any, eqn.invars[0].aval).dtype
    scatter: Any = lax.scatter_max if largest else lax.scatter_min
    flags = {name: params[name] for name in ("indices_are_sorted", "unique_indices", "mode")}

    def extreme(x: Any, at: Any, new: Any) -> list[Any]:
        ordered = scatter(as_ordered(x, largest), at, as_ordered(new, largest), params["dimension_numbers"], **flags)
        return [from_ordered(ordered, dtype)]

    return extreme


def _fft(eqn: JaxprEqn) -> Replacement | None:
    """The transform of an array in row-major order, on which nothing around it may insist otherwise."""
    return lambda x: [row_major(eqn.primitive.bind(row_major(x), **eqn.params))]


WORKAROUNDS_ON_CPU: Mapping[str, Callable[[JaxprEqn], Replacement | None]] = {
    "fft": _fft,
    "reduce_max": _extreme,
    "reduce_min": _extreme,
    "scatter-max": _scattered_extreme,
    "scatter-min": _scattered_extreme,
}
"""Primitive -> what to emit instead on CPU, if anything."""


def variable_of(value: Value) -> Value:
    """The value that stands for the variable of a value.

    A constant is one op per use, the last of which is the variable's.
    """
    op = value.defining_op
    if op is None or op.name not in CONSTANTS or op.block is None:
        return value
    ops = op.block.ops
    last = op
    for other in ops[ops.index(op) + 1 :]:
        if other.name != op.name or other.location is not op.location or other.result.type != value.type:
            break
        last = other
    return last.result


NESTED_GROUPS = 4
"""Axes from which on XLA groups devices inside of groups."""


def is_misaligned_product(op: Op, meshes: Mapping[str, Mesh]) -> bool:
    """Whether XLA may scatter the partial sums of a product, and line up the devices that have one part of the sum in the wrong order.

    XLA groups devices by the parts of summed dimensions. Where dimensions of the result, or its copies, are cut into the same groups, it
    partitions the rest of the product inside of each group, and takes the place of a device in its group from the larger operand, but the
    layout of the result from the groups of the result (`GetDotGroupPartitionContractingOutputShardings`). If these list their devices in
    different orders, and a dimension has to be moved besides, parts of the result are exchanged. It takes three axes, or parts of them.
    On four axes XLA groups them several times over: there every product counts of which a dimension is moved to other axes.
    """
    values = (*op.operands, op.result)
    mesh = mesh_of((v.sharding for v in values), meshes)
    if mesh is None:
        return False
    layouts = [layout_of(v.sharding, v.type.rank, mesh) for v in values]
    result, dims = layouts[2], list(_result_dims(op, layouts))
    every_axis = tuple(part for axis in mesh.axes for part in parts(AxisRef(axis.name), mesh))
    copies = _rest(every_axis, all_axes(result))
    # Groups of copies come last, when devices are grouped by all dimensions that stay where they are.
    in_place = {axis for sources, after in dims if all(before == after for before in sources) for axis in after}
    *orders, wanted = ((*all_axes(layout), *_rest(every_axis, all_axes(layout))) for layout in layouts)
    sizes = [math.prod(local_shape(v.type.shape, layout, mesh)) for v, layout in zip(op.operands, layouts)]
    orders = [order for order, size in zip(orders, sizes) if size == max(sizes)]
    sums: list[Sequence[int]] = [op.attributes["lhs_contracting_dimensions"], op.attributes["rhs_contracting_dimensions"]]
    is_nested = sum(axis.size > 1 for axis in mesh.axes) >= NESTED_GROUPS
    for operand, contracting in zip(layouts, sums):
        for summed in _unions([operand[d] for d in contracting]):
            moved = [after for sources, after in dims if any(before not in (after, _rest(after, summed)) for before in sources)]
            if is_nested and any(moved):
                return True
            if summed in _unions(result):
                grouped = summed
            elif summed in _unions([*(_rest(axes, in_place) for axes in result), copies]):
                grouped = summed | in_place
            else:
                continue
            if moved and any(_rest(order, grouped) != _rest(wanted, grouped) for order in orders):
                return True
    return False


def _unions(dims: Sequence[Axes]) -> list[frozenset[AxisRef]]:
    """The axes that cut one or several of some dimensions."""
    cut = [axes for axes in dims if axes]
    chosen = (dims for count in range(1, len(cut) + 1) for dims in itertools.combinations(cut, count))
    return [frozenset(itertools.chain.from_iterable(dims)) for dims in chosen]


def _rest(axes: Axes, removed: Collection[AxisRef]) -> Axes:
    return tuple(axis for axis in axes if axis not in removed)


def _result_dims(op: Op, layouts: Sequence[Layout]) -> Iterator[tuple[Sequence[Axes], Axes]]:
    """The axes of each dimension of the result: in the operands that have it, and in the result."""
    a, (lhs, rhs, result) = op.attributes, layouts
    of_lhs: Sequence[int] = a["lhs_batching_dimensions"]
    of_rhs: Sequence[int] = a["rhs_batching_dimensions"]
    free = [(lhs[d],) for d in range(len(lhs)) if d not in of_lhs and d not in a["lhs_contracting_dimensions"]]
    free += [(rhs[d],) for d in range(len(rhs)) if d not in of_rhs and d not in a["rhs_contracting_dimensions"]]
    return zip([*((lhs[i], rhs[j]) for i, j in zip(of_lhs, of_rhs)), *free], result, strict=True)
