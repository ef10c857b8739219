"""Equations of a region that are one collective of StableHLO, or little more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.interpreters import mlir

from shardy_py.backends.single_ops import Rule, Value, Writer
from shardy_py.frontends.context import stablehlo


def _all_reduce(combine: Callable[..., Value]) -> Rule:
    def rule(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
        axes, dtype = eqn.params["axes"], eqn.outvars[0].aval.dtype
        if eqn.params["axis_index_groups"] is not None or len(operands) != 1 or not all(isinstance(axis, str) for axis in axes):
            return None
        if dtype.kind == "c" and combine is not stablehlo.add:
            return None
        op = stablehlo.AllReduceOp([operands[0].type], operands, _groups(writer, axes), **_among_devices(writer), loc=loc)
        writer.combining(op, combine, dtype, loc)
        return op.results[0]

    return rule


def _reduce_scatter(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    params, aval = eqn.params, eqn.outvars[0].aval
    if params["axis_index_groups"] is not None or not params["tiled"]:
        return None
    type_, groups = writer.type(aval.shape, aval.dtype), _groups(writer, params["axis_name"])
    dim = mlir.i64_attr(params["scatter_dimension"])
    op = stablehlo.ReduceScatterOp(type_, operands[0], dim, groups, **_among_devices(writer), loc=loc)
    writer.combining(op, stablehlo.add, aval.dtype, loc)
    return op.result


def _all_gather(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    params, now, new = eqn.params, eqn.invars[0].aval, eqn.outvars[0].aval
    if params["axis_index_groups"] is not None:
        return None
    dim, (x,) = params["all_gather_dimension"], operands
    if not params["tiled"]:
        dims = writer.integers([i for i in range(len(new.shape)) if i != dim])
        x = stablehlo.broadcast_in_dim(writer.type((*now.shape[:dim], 1, *now.shape[dim:]), now.dtype), x, dims, loc=loc)
    type_, groups = writer.type(new.shape, new.dtype), _groups(writer, params["axis_name"])
    return stablehlo.AllGatherOp([type_], [x], mlir.i64_attr(dim), groups, **_among_devices(writer), loc=loc).results[0]


def _all_to_all(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    params = eqn.params
    count = math.prod(_mesh(writer).shape[name] for name in _names(params["axis_name"]))
    if params["axis_index_groups"] is not None or count == 1:
        return None
    split, concat, count = (mlir.i64_attr(n) for n in (params["split_axis"], params["concat_axis"], count))
    groups, channel = _groups(writer, params["axis_name"]), _among_devices(writer)["channel_handle"]
    return stablehlo.AllToAllOp(operands, split, concat, count, groups, channel_handle=channel, loc=loc).results[0]


def _axis_index(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    name, mesh = eqn.params["axis_name"], _mesh(writer)
    if not isinstance(name, str):
        return None
    sizes = mesh.axis_sizes[mesh.axis_names.index(name) :]
    below, count = (writer.scalar(np.asarray(n, np.uint32)) for n in (math.prod(sizes[1:]), sizes[0]))
    index = stablehlo.remainder(stablehlo.divide(stablehlo.partition_id(loc=loc), below, loc=loc), count, loc=loc)
    return stablehlo.convert(writer.type((), np.dtype("int32")), index, loc=loc)


def _ppermute(writer: Writer, eqn: Any, operands: Sequence[Value], loc: Any) -> Value | None:
    perm, names = tuple(eqn.params["perm"]), _names(eqn.params["axis_name"])
    if list(names) != [name for name in _mesh(writer).axis_names if name in names]:
        return None  # versions of JAX differ in how they number the members of a group then
    pairs = writer.attribute(("pairs", names, perm), lambda _: _pairs(_mesh(writer), names, perm))
    channel = _among_devices(writer)["channel_handle"]
    return stablehlo.collective_permute(operands[0], pairs, channel_handle=channel, loc=loc)


def _pairs(mesh: Any, names: tuple[str, ...], perm: Sequence[tuple[int, int]]) -> Any:
    found = [(group[source], group[target]) for group in _members(mesh, names) for source, target in perm]
    return mlir.dense_int_elements(np.asarray(found, np.int64).reshape(-1, 2))


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _mesh(writer: Writer) -> Any:
    context: Any = writer.context.module_context.axis_context
    return context.mesh


def _members(mesh: Any, names: tuple[str, ...]) -> Any:
    """The numbers of the devices of each group that differ along axes only; the order in a group is that of the axes, major to minor."""
    order = [mesh.axis_names.index(name) for name in names]
    numbers = np.moveaxis(np.arange(mesh.size).reshape(mesh.axis_sizes), order, range(len(order)))
    return numbers.reshape(math.prod(mesh.axis_sizes[i] for i in order), -1).T


def _groups(writer: Writer, given: str | Sequence[str]) -> Any:
    def made(key: tuple[str, tuple[str, ...]]) -> Any:
        return mlir.dense_int_elements(np.ascontiguousarray(_members(_mesh(writer), key[1]), np.int64))

    return writer.attribute(("groups", _names(given)), made)


def _among_devices(writer: Writer) -> dict[str, Any]:
    """What makes groups those of devices, rather than of replicas of a program."""
    return writer.attribute("among devices", _channel)


def _channel(_: str) -> dict[str, Any]:
    return {"channel_handle": stablehlo.ChannelHandle.get(1, 1), "use_global_device_ids": mlir.ir.BoolAttr.get(True)}


COLLECTIVES: Mapping[str, Rule] = {
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "axis_index": _axis_index,
    "pmax": _all_reduce(stablehlo.maximum),
    "pmin": _all_reduce(stablehlo.minimum),
    "ppermute": _ppermute,
    "psum": _all_reduce(stablehlo.add),
    "reduce_scatter": _reduce_scatter,
}
"""Primitive -> the collective that its equations are, in regions that are manual in all axes. Their effects name axes and do nothing."""
