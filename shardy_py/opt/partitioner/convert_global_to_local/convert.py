"""The pass: walks the program and converts each op by the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.dialect import AxisRef, DimensionSharding, ListOfAxisRefLists, TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Function, Op, Program, TensorType, Value
from shardy_py.ir.attribute_text import AttributeText
from shardy_py.ir.tables import merge_tables
from shardy_py.ir.type_text import type_text
from shardy_py.opt.explicit_reshards.edits import Edits
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
from shardy_py.passes.base import Pass, option
from shardy_py.passes.dataflow import MANUAL_COMPUTATION, get_sharding
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import place
from shardy_py.rules.traits import is_elementwise


@dataclass(frozen=True, kw_only=True)
class ConvertGlobalToLocal(Pass):
    """Turns the program over whole tensors into the one that each device runs."""

    name = "sdy-convert-global-to-local"

    per_dim_all_gather: bool = option(False, "gather dimension by dimension")
    combine_multi_dimension_reduce_scatter: bool = option(False, "keep a reduce-scatter of several dimensions as one")
    enable_rgv3: bool = option(False, "write replica groups as axes of a mesh")
    sub_axes_in_order: bool = option(False, "number parts of axes as replica groups do, for right results (not in Shardy)")
    complete_collectives: bool = option(False, "add what pads, slices and masks of parts need, for right results (not in Shardy)")

    def run(self, program: Program, log: Log | None = None) -> None:
        """Gives every value the type of one device's part and replaces SDY's collectives by StableHLO's.

        Shardings and meshes stay; manual computations become part of what is around them.

        Every sharding must cut evenly, and ops must run on parts alone or be followed by the collective that they need, as after
        `sdy-insert-explicit-reshards{enable-full-version=true}` and `sdy-reshard-to-collectives`. A reduce-scatter of several dimensions
        becomes an all-reduce and a slice, unless it is kept as one. Without the two options that Shardy does not have, a program is
        Shardy's: devices do not number parts of axes as replica groups do, from major to minor, so that collectives over parts of axes may
        compute something else; pads are taken as if no element moved between parts; slices that move elements and masks without a sharding
        are refused. Raises ShardyError if a dimension is not cut evenly, or an op cannot run on parts.

        Source: Shardy's convert_global_to_local.cc.
        """
        options = ConversionOptions(
            self.per_dim_all_gather, self.combine_multi_dimension_reduce_scatter, self.enable_rgv3, self.sub_axes_in_order
        )
        if self.complete_collectives:
            complete(program)
        world = World(program, options)
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


def complete(program: Program) -> None:
    """Inserts the collectives that earlier passes leave out.

    `sdy-pad-for-divisibility` pads and slices dimensions that are cut, where a part's elements may go to the part of another device,
    and computes masks, which have no sharding, over the whole of tensors that are cut. A pad or slice that moves elements between
    parts runs on whole dimensions; an elementwise op without a sharding is cut as its operands are, of which those that are whole
    are sliced.
    """
    edits = Edits()
    for function in program.functions:
        for op in function.body.walk():
            if op.name in _MOVES:
                _on_whole_dims(op, program, edits)
            elif is_elementwise(op.name):
                _cut_as_operands(op, edits)
    edits.apply()


def _on_whole_dims(op: Op, program: Program, edits: Edits) -> None:
    """Gathers the dimensions of the operand along which elements change devices, and slices the result."""
    operand, result = op.operands[0], op.result
    sharding = get_sharding(operand)
    if sharding is None or sharding.is_fully_replicated or sharding is not get_sharding(result):
        return
    shards = sharding.shards(sharding.mesh_in(program.meshes))
    moved = [dim for dim, count in enumerate(shards) if count > 1 and _MOVES[op.name](op, dim, count)]
    if not moved:
        return
    whole = sharding.with_dims(DimensionSharding() if i in moved else dim for i, dim in enumerate(sharding.dims))
    gathered = _collective("all_gather", "gathering_axes", operand, sharding, whole, moved, op)
    op.set_operand(0, gathered.result)
    edits.before(op, gathered)
    result.sharding = whole
    sliced = _collective("all_slice", "slicing_axes", result, sharding, sharding, moved, op)
    result.replace_uses(sliced.result, lambda user, _: user is sliced)
    edits.after(op, sliced)


def _cut_as_operands(op: Op, edits: Edits) -> None:
    """Shards an elementwise op without a sharding as its operands, and slices the operands that are whole."""
    result = op.results[0]
    if get_sharding(result) is not None:
        return
    sharding = next((s for s in map(get_sharding, op.operands) if s is not None and not s.is_fully_replicated), None)
    if sharding is None:
        return
    result.sharding = sharding
    for i, operand in enumerate(op.operands):
        present = get_sharding(operand)
        if operand.type.rank == sharding.rank and (present is None or present.is_fully_replicated):
            sliced = _collective("all_slice", "slicing_axes", operand, sharding, sharding, range(sharding.rank), op)
            op.set_operand(i, sliced.result)
            edits.before(op, sliced)


def _collective(name: str, attribute: str, value: Value, axes: TensorSharding, target: TensorSharding, dims: Collection[int], op: Op) -> Op:
    listed: list[tuple[AxisRef, ...]] = [dim.axes if i in dims else () for i, dim in enumerate(axes.dims)]
    return Op(f"sdy.{name}", (value,), (value.type,), {attribute: ListOfAxisRefLists(listed)}, location=op.location, sharding=target)


def _pad_moves(op: Op, dim: int, shards: int) -> bool:
    """Whether an element of a part comes to lie in another part of the padded dimension."""
    size, wanted = (value.type.shape[dim] // shards for value in (op.operands[0], op.result))
    step = op.attributes["interior_padding"][dim] + 1
    for part in range(shards):
        start = op.attributes["edge_padding_low"][dim] + part * size * step
        first, last = max(0, -(start // step)), min(size - 1, (wanted * shards - 1 - start) // step)
        if first <= last and not part * wanted <= start + first * step <= start + last * step < (part + 1) * wanted:
            return True
    return False


def _slice_moves(op: Op, dim: int, shards: int) -> bool:
    """Whether a slice is not a full one, or its steps do not begin anew with each part."""
    start, limit, stride = (op.attributes[name][dim] for name in ("start_indices", "limit_indices", "strides"))
    size = op.operands[0].type.shape[dim]
    return (start, limit) != (0, size) or size // shards % stride != 0


_MOVES: Mapping[str, Callable[[Op, int, int], bool]] = {"stablehlo.pad": _pad_moves, "stablehlo.slice": _slice_moves}
"""Name of an op -> whether elements change devices along a dimension that is cut into so many parts."""


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
