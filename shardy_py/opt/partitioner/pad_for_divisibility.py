"""Pads tensors until their shardings cut them into equal parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Function, Op, Program, TensorType
from shardy_py.ir.tables import merge_tables
from shardy_py.opt.partitioner.local_ops import is_dynamic
from shardy_py.opt.partitioner.padding import collectives, ops
from shardy_py.opt.partitioner.padding.ops import generic
from shardy_py.opt.partitioner.padding.padder import Conversion, Padder
from shardy_py.passes.base import FUNCTION, Pass
from shardy_py.passes.propagation.log import Log


@dataclass(frozen=True, kw_only=True)
class PadForDivisibility(Pass):
    """Pads tensors until their shardings divide them."""

    name = "sdy-pad-for-divisibility"
    anchor = FUNCTION

    def run(self, program: Program, log: Log | None = None) -> None:
        """Enlarges every dimension, at its high end, to the next multiple of the number of its shards.

        All-slices and other collectives that shard a dimension pad with zeros, those that gather it slice the padding off again, and
        other ops take and make larger tensors. The contents of the padding are then unknown, so a dot sets that of its contracting
        dimensions to zero first. As in Shardy, no other op does: a reduction over padding gives what was computed there.

        The program must hold collectives, not reshards. Raises ShardyError if an argument or result of a function is not a multiple of its
        shards, or an op cannot work on padded tensors without communication.

        Source: Shardy's pad_for_divisibility.cc, as of jaxlib 0.10.2; all-to-alls, reduce-scatters and pads as in later versions.
        """
        padder = Padder(program)
        for function in program.functions:
            _check(padder, function)
            for op in function.body.walk():
                for value in (*op.results, *(argument for region in op.regions for argument in region.arguments)):
                    padder.resize_by_sharding(value)
            _convert(padder, function.body)


def _convert(padder: Padder, block: Block) -> None:
    outer, padder.ops = padder.ops, []
    for op in list(block.ops):
        for region in op.regions:
            _convert(padder, region)
        conversion = _as_it_is if any(map(is_dynamic, (*op.operands, *op.results))) else CONVERSIONS.get(op.name, generic)
        conversion(padder, op)
    block.set_ops(padder.ops)
    padder.ops = outer


def _as_it_is(padder: Padder, op: Op) -> None:
    """An op with a dimension that is not known, of which a padded operand would make another one."""
    if any(isinstance(operand.type, TensorType) and padder.padded_dims(operand) for operand in op.operands):
        raise padder.error(
            f"'{op.name}' cannot be padded",
            op,
            "an operand or result has no static shape",
            "give every dimension a size, or take the shardings of its operands away",
        )
    padder.ops.append(op)


def _check(padder: Padder, function: Function) -> None:
    """Raises where an argument or result of a function would have to be padded."""
    boundary: list[tuple[str, int, TensorSharding | None, object]] = []
    boundary += [("argument", i, argument.sharding, argument.type) for i, argument in enumerate(function.arguments)]
    results = zip(function.result_shardings, function.result_types, strict=True)
    boundary += [("result", i, sharding, type_) for i, (sharding, type_) in enumerate(results)]
    for kind, i, sharding, type_ in boundary:
        if isinstance(type_, TensorType) and padder.shape(type_.shape, sharding) != type_.shape:
            raise ShardyError(
                f"{kind} #{i} has a non-divisible sharding",
                where=f"function '{function.name}', {type_} under {sharding}",
                why="failed to legalize operation 'func.func': the types of a function stay, so its arguments and results cannot be padded",
                fix="run sdy-update-non-divisible-input-output-shardings first, or use sizes that the mesh divides",
            )


CONVERSIONS: Mapping[str, Conversion] = merge_tables((collectives.CONVERSIONS, ops.CONVERSIONS))
"""Ops that are converted in a way of their own; others as `ops.generic` does."""
