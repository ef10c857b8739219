"""Constants and iotas, of which each device makes its own part, and named computations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardy_py.ir import Op, TensorType, Value
from shardy_py.ir.attribute_text import AttributeText
from shardy_py.ir.type_text import type_text
from shardy_py.opt.partitioner.convert_global_to_local.devices import emit_offset, emit_part
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Conversion, Emitter
from shardy_py.passes.dataflow import MANUAL_COMPUTATION

_SPLAT = re.compile(r"dense<(?![\[\"]|>)")


def constant(op: Op, out: Emitter) -> Sequence[Value]:
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


def iota(op: Op, out: Emitter) -> Sequence[Value]:
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


def manual_computation(op: Op, out: Emitter) -> Sequence[Value]:
    """The ops of the body, over the operands themselves: their parts are what the body has as arguments."""
    (body,) = op.regions
    for argument, operand in zip(body.arguments, op.operands, strict=True):
        argument.replace_uses(operand)
    returned = list(body.terminator.operands)
    body.terminator.drop_uses()
    out.ops += body.ops[:-1]
    body.ops = []
    return returned


def call(op: Op, out: Emitter) -> Sequence[Value]:
    """A call of the function over parts, without other attributes."""
    types = [tensor.local for tensor in out.facts.results]
    return out.make(op.name, op.operands, types, {"callee": op.attributes["callee"]}).results


CONVERSIONS: dict[str, Conversion] = {
    "stablehlo.constant": constant,
    "stablehlo.iota": iota,
}

ALWAYS: dict[str, Conversion] = {
    "sdy.constant": constant,
    MANUAL_COMPUTATION: manual_computation,
    "func.call": call,
}
