"""shard_map, and the index of a device along a manual axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax.extend.core import JaxprEqn
from jax.sharding import NamedSharding, PartitionSpec

from shardy_py.dialect.format import sizes_text
from shardy_py.errors import MeshError
from shardy_py.frontends import _jax
from shardy_py.frontends.importer import Importer, Scope
from shardy_py.frontends.primitives.avals import physical_shape, type_of_aval
from shardy_py.frontends.readers.common import ReaderTable, bind, bind_body, returning
from shardy_py.ir import Block, TensorType, Value


def shard_map(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_shard_map_lowering_shardy`: a manual computation over the axes that become manual."""
    params = eqn.params
    mesh, jaxpr = params["mesh"], params["jaxpr"]
    if importer.meshes.differs(mesh):
        _over_other_axes(importer, eqn, scope, block)
        return
    operands = importer.read(eqn, scope, block)
    names = tuple(a for a in mesh.axis_names if a in params["newly_manual_axes"])
    outer = importer.manual
    with importer.manual_over(mesh, frozenset((*names, *mesh.manual_axes))):
        if all(mesh.shape[a] == 1 for a in names):
            body = importer.body(jaxpr, operands, block)
        else:
            body = _manual_computation(importer, names, outer, operands, eqn, block)
    bind_body(index, eqn, scope, body)


def _manual_computation(
    importer: Importer, names: tuple[str, ...], outer: Any, operands: Sequence[Value], eqn: JaxprEqn, block: Block
) -> tuple[list[Value], Scope]:
    params = eqn.params
    mesh, jaxpr = params["mesh"], params["jaxpr"]
    partial = len(names) < len(mesh.axis_names)

    def shardings(variables: Sequence[Any], specs: Sequence[Any]) -> tuple[Any, ...]:
        result = []
        for v, spec in zip(variables, specs, strict=True):
            sharding = _jax.manual_sharding(mesh, spec, outer, v.aval)
            result.append(importer.meshes.sharding(sharding, len(physical_shape(v.aval)), open_dimensions=partial))
        return tuple(result)

    body = Block([type_of_aval(v.aval) for v in jaxpr.invars])
    attributes = {
        "in_shardings": shardings(eqn.invars, params["in_specs"]),
        "out_shardings": shardings(eqn.outvars, params["out_specs"]),
        "manual_axes": names,
    }
    types = [type_of_aval(v.aval) for v in eqn.outvars]
    op = importer.op("sdy.manual_computation", operands, types, eqn, block, attributes, (body,), rule_decided=True)
    results, inner = importer.body(jaxpr, body.arguments, body)
    returning(body, results)
    return op.results, inner


def _over_other_axes(importer: Importer, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """A shard_map over the same devices with other axes, as in `jax.pmap`: one opaque op with operands and results sharded by its specs."""
    params = eqn.params
    mesh = params["mesh"]
    if importer.manual is not None or len(params["newly_manual_axes"]) < len(mesh.axis_names):
        axes = sizes_text(mesh.shape)
        raise MeshError(
            f"a shard_map is over another mesh, {axes}",
            why="a shard_map over axes that the function's mesh lacks can be planned only where all of them are manual",
            fix="map over axes of the function's mesh, as sp.manual_computation does, or call it outside of the function",
        )

    def constrained(values: Sequence[Value], variables: Sequence[Any], specs: Sequence[Any]) -> list[Value]:
        shardings = [_jax.physical_sharding(v.aval, NamedSharding(mesh, spec)) for v, spec in zip(variables, specs, strict=True)]
        return [importer.constrained(value, v.aval, s, block, eqn) for value, v, s in zip(values, variables, shardings, strict=True)]

    operands = constrained(importer.read(eqn, scope, block), eqn.invars, params["in_specs"])
    types = [type_of_aval(v.aval) for v in eqn.outvars]
    attributes = {"call_target_name": "shard_map"}
    op = importer.op("stablehlo.custom_call", operands, types, eqn, block, attributes, rule_decided=True)
    bind(eqn, scope, constrained(op.results, eqn.outvars, params["out_specs"]))


def axis_index(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_build_axis_index_lowering_hlo`: computed from the partition's number, where all axes are manual."""
    names = eqn.params["axis_name"]
    name = names[0] if isinstance(names, tuple) else names
    manual = importer.manual
    if manual is None:
        raise ValueError(f"axis_index over {name!r} stands outside of a shard_map over that axis")
    if importer.all_manual:
        bind(eqn, scope, [_index_along(importer, manual, name, eqn, block)])
        return
    if manual.mesh.shape[name] == 1:
        bind(eqn, scope, [importer.scalar(0, "int32", block, eqn)])
        return
    rest = tuple(a for a in manual.mesh.axis_names if a not in manual.axes)
    mesh = manual.mesh.abstract_mesh
    sharding = importer.meshes.sharding(NamedSharding(mesh, PartitionSpec()), 0)
    body = Block()
    attributes = {"in_shardings": (), "out_shardings": (sharding,), "manual_axes": rest}
    op = importer.op("sdy.manual_computation", (), (TensorType((), "int32"),), eqn, block, attributes, (body,), rule_decided=True)
    returning(body, (_index_along(importer, manual, name, eqn, body),))
    bind(eqn, scope, op.results)


def _index_along(importer: Importer, manual: _jax.ManualContext, name: str, eqn: JaxprEqn, block: Block) -> Value:
    names = list(manual.mesh.axis_names)
    inner = math.prod(manual.mesh.shape[a] for a in names[names.index(name) + 1 :])
    divisor, modulus = importer.scalar(inner, "uint32", block, eqn), importer.scalar(manual.mesh.shape[name], "uint32", block, eqn)
    unsigned = TensorType((), "uint32")

    def op(op_name: str, operands: Sequence[Value], type: TensorType = unsigned) -> Value:
        return importer.op(op_name, operands, (type,), eqn, block).result

    here = op("stablehlo.partition_id", ())
    remainder = op("stablehlo.remainder", (op("stablehlo.divide", (here, divisor)), modulus))
    return op("stablehlo.convert", (remainder,), TensorType((), "int32"))


READERS: ReaderTable = {
    "axis_index": axis_index,
    "shard_map": shard_map,
}
