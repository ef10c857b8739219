"""The pass: walks the program and converts each op by the table."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.errors import ShardyError
from shardy_py.ir import Block, Function, Op, Program
from shardy_py.opt.partitioner.convert_global_to_local.completion import complete
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Emitter
from shardy_py.opt.partitioner.convert_global_to_local.facts import Options, World, illegal
from shardy_py.opt.partitioner.convert_global_to_local.sums import FULL_RESHARDS
from shardy_py.opt.partitioner.convert_global_to_local.table import ALWAYS, KEPT_SDY, WHERE_CUT
from shardy_py.passes.base import Pass, option
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
        options = Options(self.per_dim_all_gather, self.combine_multi_dimension_reduce_scatter, self.enable_rgv3, self.sub_axes_in_order)
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
