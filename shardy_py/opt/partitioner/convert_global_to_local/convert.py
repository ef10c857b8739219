"""The pass: walks the program and converts each op by the table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Function, Op, Program, TensorType, Value
from shardy_py.ir.attribute_text import AttributeText
from shardy_py.ir.tables import merge_tables
from shardy_py.ir.type_text import type_text
from shardy_py.opt.partitioner.convert_global_to_local import (
    collectives,
    edges,
    gather,
    products,
)
from shardy_py.opt.partitioner.convert_global_to_local.emitter import (
    Conversion,
    ConversionOptions,
    Emitter,
    World,
    emit_offset,
    emit_part,
    illegal,
)
from shardy_py.opt.partitioner.convert_global_to_local.products import FULL_RESHARDS
from shardy_py.passes.dataflow import MANUAL_COMPUTATION
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import place
from shardy_py.rules.traits import is_elementwise


@dataclass(frozen=True, kw_only=True)
class ConvertGlobalToLocal(ConversionOptions):
    """Turns the program over whole tensors into the one that each device runs."""

    name = "sdy-convert-global-to-local"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Gives every value the type of one device's part and replaces SDY's collectives by StableHLO's.

        Shardings and meshes stay; manual computations become part of what is around them.

        Every sharding must cut evenly, and ops must run on parts alone or be followed by the collective that they need, as after
        `sdy-insert-explicit-reshards{enable-full-version=true}` and `sdy-reshard-to-collectives`. A reduce-scatter of several dimensions
        becomes an all-reduce and a slice, unless it is kept as one. Without `sub_axes_in_order`, as in Shardy, devices do not number parts
        of axes as replica groups do, from major to minor, so that collectives over parts of axes may compute something else. Pads are taken
        as if no element moved between parts; slices that move elements and masks without a sharding are refused. Raises ShardyError if a
        dimension is not cut evenly, or an op cannot run on parts.

        Source: Shardy's convert_global_to_local.cc.
        """
        world = World(program, self)
        for value, tensor in world.tensors.items():
            value.type = tensor.local
        for function in program.functions:
            types = zip(function.result_types, function.result_shardings, strict=True)
            function.result_types = [world.local_type(type_, sharding) for type_, sharding in types]
            _check_returned(function, world)
            _convert_block(function.body, world)


def _convert_block(block: Block, world: World) -> None:
    pending = block.ops[::-1]
    done: list[Op] = []
    while pending:
        op = pending.pop()
        if op not in world.facts:
            done.append(op)
            continue
        replacement = _convert(op, world)
        if replacement is None:
            done.append(op)
            for region in op.regions:
                _convert_block(region, world)
        else:
            pending += reversed(replacement)
    block.set_ops(done)


def _convert(op: Op, world: World) -> list[Op] | None:
    """The ops that replace an op, those from the body of a manual computation still to be converted; None where it stays."""
    conversion = ALWAYS.get(op.name) or (WHERE_CUT.get(op.name) if world.facts[op].is_cut else None)
    if conversion is None:
        if op.name.startswith("sdy.") and op.name not in KEPT_SDY:
            fix = "run the passes that replace it, such as sdy-reshard-to-collectives, before sdy-convert-global-to-local"
            raise illegal(world, op, "has no local form", fix=fix)
        if is_elementwise(op.name):
            _check_cut_alike(op, world)
        return None
    out = Emitter(world, op)
    values = conversion(op, out)
    if values is None:
        return None
    op.drop_uses()
    op.block = None
    for old, new in zip(op.results, values, strict=True):
        old.replace_uses(new)
    return out.ops


def _check_cut_alike(op: Op, world: World) -> None:
    """Checks that tensors of one shape have one local shape in an elementwise op."""
    facts = world.facts[op]
    local_shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    for tensor in (*facts.operands, *facts.results):
        local = local_shapes.setdefault(tensor.type.shape, tensor.local.shape)
        if local != tensor.local.shape:
            raise illegal(
                world,
                op,
                "has operands and results that are cut along other axes",
                why=f"their parts have the shapes {local} and {tensor.local.shape}",
                fix=FULL_RESHARDS,
            )


def _check_returned(function: Function, world: World) -> None:
    """Checks that returned values are sharded as the results of their function."""
    returned = function.body.ops[-1].operands if function.body.ops else ()
    for i, (value, type_) in enumerate(zip(returned, function.result_types, strict=False)):
        if value.type != type_:
            raise ShardyError(
                f"result {i} of function '{function.name}' is cut along other axes than the value that is returned",
                where=place(world.program, function.body.ops[-1]),
                why=f"their parts are {type_} and {value.type}",
                fix=FULL_RESHARDS,
            )


_SPLAT = re.compile(r"dense<(?![\[\"]|>)")


def _constant(op: Op, out: Emitter) -> Sequence[Value]:
    """A constant with one value is made small; of another the device slices its part."""
    (result,) = out.facts.results
    value = op.attributes["value"]
    if result.type == result.local:
        return (out.value("constant", (), result.type, {"value": value}),)
    assert result.sharding is not None
    if _SPLAT.match(value):
        text = f"{value[: value.rindex(' : ')]} : {type_text(result.local)}"
        return (out.value("constant", (), result.local, {"value": AttributeText(text)}),)
    whole = out.value("constant", (), result.type, {"value": value})
    axes = [dim.axes for dim in result.sharding.dims]
    return (emit_part(out, whole, axes, out.world.mesh(result.sharding), result.local.shape),)


def _iota(op: Op, out: Emitter) -> Sequence[Value]:
    """An iota over the part, to which the part's offset is added."""
    (result,) = out.facts.results
    assert result.sharding is not None
    dim: int = op.attributes["iota_dimension"]
    value = out.value("iota", (), result.local, {"iota_dimension": dim})
    if not result.axes(dim):
        return (value,)
    offset = emit_offset(out, result.axes(dim), out.world.mesh(result.sharding), result.local.shape[dim])
    offset = out.broadcast(out.convert(offset, result.type.dtype), result.local.shape)
    return (out.value("add", (value, offset), TensorType(result.local.shape, result.type.dtype)),)


def _manual_computation(op: Op, out: Emitter) -> Sequence[Value]:
    """The ops of the body, over the operands themselves: their parts are what the body has as arguments."""
    (body,) = op.regions
    for argument, operand in zip(body.arguments, op.operands, strict=True):
        argument.replace_uses(operand)
    returned = list(body.terminator.operands)
    body.terminator.drop_uses()
    out.ops += body.ops[:-1]
    body.ops = []
    return returned


def _call(op: Op, out: Emitter) -> Sequence[Value]:
    """A call of the function over parts, without other attributes."""
    types = [tensor.local for tensor in out.facts.results]
    return out.make(op.name, op.operands, types, {"callee": op.attributes["callee"]}).results


ALWAYS: Mapping[str, Conversion] = merge_tables(
    (
        collectives.CONVERSIONS,
        {"func.call": _call, MANUAL_COMPUTATION: _manual_computation, "sdy.constant": _constant},
    )
)
"""Ops that no local program has."""

WHERE_CUT: Mapping[str, Conversion] = merge_tables(
    (
        {"stablehlo.constant": _constant, "stablehlo.iota": _iota},
        edges.CONVERSIONS,
        gather.CONVERSIONS,
        products.CONVERSIONS,
    )
)
"""Ops that are converted where an operand or result is cut; any other op gets local types and stays as it is."""

KEPT_SDY = frozenset(("sdy.named_computation", "sdy.return"))
"""Ops of the SDY dialect that a local program may have."""

_both = merge_tables((ALWAYS, WHERE_CUT))  # raises where a name is in two tables
