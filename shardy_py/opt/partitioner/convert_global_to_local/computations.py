"""Manual computations, which are inlined, and calls."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.ir import Op, Value
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Conversion, Emitter
from shardy_py.passes.dataflow import MANUAL_COMPUTATION


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


ALWAYS: dict[str, Conversion] = {MANUAL_COMPUTATION: manual_computation, "func.call": call}
