"""The explicit program that XLA's partitioner is predicted to make of a program with final shardings, under `lowering="jit"`.

It follows xla/service/spmd: every op runs under axes that its result or its operands have, and values are resharded before and after.
Dead ops are dropped. A value that two readers need in one layout moves once; so does a loop invariant, in front of the loop. Not followed
are the combiner and the reassociation of collectives, groupings of `dot_handler.cc` beyond `partition/factor_axes`, and windowed products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from shardy_py.dialect import (
    AllToAllParam,
    AllToAllParamList,
    AxisRef,
    AxisRefList,
    DimensionSharding,
    ListOfAxisRefLists,
    Mesh,
    TensorSharding,
)
from shardy_py.dialect.axis import Axes, merged, num_shards, sort_and_merge
from shardy_py.dialect.format import format_axis
from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.ir.pieces import local_bytes
from shardy_py.ir.types import element_bits
from shardy_py.partition.layouts import Layout, layout_of, local_shape, mesh_of
from shardy_py.partition.op import CHEAP
from shardy_py.partition.policies import FORWARDING, StrategyCache, xla_of
from shardy_py.partition.routes import Move, route, settled
from shardy_py.passes.clone import block_like, clone_op, function_like, label_like, op_like, program_like
from shardy_py.passes.collection import no_collection
from shardy_py.passes.dataflow import CASE, COMPUTATIONS, MANUAL_COMPUTATION, WHILE
from shardy_py.plan.collectives import Collective
from shardy_py.plan.explicit import RESULTS, Explicit, Lineage, Origin, Transfer
from shardy_py.plan.prediction.dead_ops import dead_ops
from shardy_py.plan.trips import Trips, trip_count
from shardy_py.plan.values import in_backward_pass, location_of, module_of
from shardy_py.rules.traits import CONSTRAINTS

KINDS = {
    "stablehlo.all_gather": "all_gather",
    "stablehlo.all_reduce": "all_reduce",
    "stablehlo.all_to_all": "all_to_all",
    "stablehlo.collective_broadcast": "collective_permute",
    "stablehlo.collective_permute": "collective_permute",
    "stablehlo.reduce_scatter": "reduce_scatter",
}
"""Op -> kind of collective."""


def user_collective_axes(op: Op, manual: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes that a collective is over.

    A gather and a scatter tell the size of their groups; the fewest axes of this size, the last ones, are taken. Others are taken to be
    over all manual axes.
    """
    axes = [axis for axis in manual if sizes.get(axis, 1) > 1]
    before, after = op.operands[0].type.size, op.results[0].type.size
    group = max(before, after) // max(1, min(before, after))
    if KINDS[op.name] in ("all_gather", "reduce_scatter"):
        for count in range(1, len(axes) + 1):
            for subset in itertools.combinations(reversed(axes), count):
                if math.prod(sizes[axis] for axis in subset) == group:
                    return tuple(reversed(subset))
    return tuple(axes)


@no_collection()
def partition(program: Program, name: Callable[[Value], str], lineage: Lineage | None = None) -> Explicit:
    """The explicit program of XLA's partitioner.

    Collectives that the user wrote in a `shard_map` are listed too; see `prediction/user_collectives.py` for their axes.
    """
    return _Partitioner(program, name, lineage or Lineage(program)).explicit()


class _Scope(Trips):
    """A block of the explicit program that is being written."""

    def __init__(self, block: Block, trips: int | None, changing: set[Value] | None, around: Self | None = None) -> None:
        super().__init__(trips, changing, around)
        self.block = block
        self.depth: int = 0 if around is None else around.depth + 1
        self.copies: dict[tuple[Value, Layout], Value] = {}

    def place_of(self, value: Value) -> Self:
        """The outermost scope in which ops on a value can stand."""
        owner = value.owner
        block = owner.block if isinstance(owner, Op) else owner
        return self.place(lambda scope: scope.block is block)

    def append(self, op: Op) -> Op:
        """Adds an op, whose results vary where its operands do."""
        self.spread(op, {})
        return self.block.append(op)


class _Partitioner:
    def __init__(self, program: Program, name: Callable[[Value], str], lineage: Lineage) -> None:
        self.program = program
        self.meshes = program.meshes
        self.name = name
        self.lineage = lineage
        self.transfers: list[Transfer] = []
        self.values: dict[Value, Value] = {}
        self.aliases: dict[Value, Value] = {}
        self.sources: dict[Value, Value] = {}
        self.strategies: StrategyCache = {}
        self.spellings: dict[tuple[Layout, Mesh], TensorSharding] = {}
        self.mesh_names: dict[Mesh, str | Mesh] = {}
        self.manual: tuple[str, ...] = ()
        self.dead = dead_ops(program)

    def explicit(self) -> Explicit:
        copy = program_like(self.program, [self.function(f) for f in self.program.functions])
        return Explicit(copy, tuple(self.transfers), self.sources)

    def function(self, source: Function) -> Function:
        body = self.body(source.body)
        scope = _Scope(body, 1, None)
        self.ops(source.body.ops[:-1], scope)
        end = source.body.terminator
        self.end(end, self.ends(end, source.result_shardings, scope), scope)
        return function_like(source, body)

    def body(self, source: Block) -> Block:
        """An empty block with the arguments of another."""
        body = block_like(source)
        for old, new in zip(source.arguments, body.arguments):
            self.set(old, new)
        return body

    def set(self, source: Value, value: Value) -> None:
        """Maps a value of the source program to one of the explicit program."""
        self.values[source] = value
        self.sources.setdefault(value, self.lineage.value(source))

    def origin(self, value: Value) -> Value:
        """The value of the source program that this one forwards, in the same sharding."""
        while (before := self.aliases.get(value)) is not None:
            value = before
        return value

    def ops(self, ops: Sequence[Op], scope: _Scope) -> None:
        for op in ops:
            if op not in self.dead:
                self.op(op, scope)

    def op(self, op: Op, scope: _Scope) -> None:
        name = op.name
        if name == WHILE:
            self.loop(op, scope)
        elif name == CASE:
            self.branches(op, scope)
        elif name == MANUAL_COMPUTATION:
            self.computation(op, scope)
        elif name in COMPUTATIONS:
            self.call(op, scope)
        elif name in FORWARDING:
            values = [self.in_sharding(op, i, v, r.sharding, scope) for i, (v, r) in enumerate(zip(op.operands, op.results))]
            if name not in CONSTRAINTS:
                values = self.clone(op, values, scope).results
            for result, value in zip(op.results, values):
                self.set(result, value)
        elif name == "sdy.data_flow_edge":
            self.set(op.result, self.values[op.operands[0]])
        elif name in KINDS:
            self.user_collective(op, scope)
        else:
            self.plain(op, scope)

    def clone(self, op: Op, operands: Sequence[Value], scope: _Scope) -> Op:
        """A copy of an op with other operands."""
        copy = clone_op(op, self.values)
        for i, (old, new) in enumerate(zip(copy.operands, operands)):
            if old is not new:
                copy.set_operand(i, new)
        for old, new in zip(op.results, copy.results):
            self.sources.setdefault(new, self.lineage.value(old))
        return scope.append(copy)

    def end(self, terminator: Op, operands: Sequence[Value], scope: _Scope) -> None:
        """Closes a block."""
        scope.append(Op(terminator.name, operands, (), terminator.attributes, location=terminator.location, primitive=terminator.primitive))

    def ends(self, terminator: Op, shardings: Sequence[TensorSharding | None], scope: _Scope) -> list[Value]:
        return [self.in_sharding(terminator, i, v, s, scope) for i, (v, s) in enumerate(zip(terminator.operands, shardings))]

    def loop(self, op: Op, scope: _Scope) -> None:
        """Reshards operands to the shardings of the loop once, results of the body on every trip."""
        shardings = [result.sharding for result in op.results]
        operands = [self.in_sharding(op, i, v, s, scope) for i, (v, s) in enumerate(zip(op.operands, shardings))]
        count = trip_count(op)
        end = op.regions[1].terminator
        varies = [end.operands[i] is not a for i, a in enumerate(op.regions[1].arguments)]
        regions: list[Block] = []
        for region, more in zip(op.regions, (1, 0)):  # the condition runs once more than the body
            block = self.body(region)
            changing = {a for a, changes in zip(block.arguments, varies) if changes}
            for a, outer, operand, changes in zip(region.arguments, op.operands, operands, varies):
                if not changes and a.sharding is operand.sharding:
                    self.values[a] = operand
                    if outer.sharding is a.sharding:
                        self.aliases[a] = outer
            trips = None if count is None or scope.trips is None else scope.trips * (count + more)
            inner = _Scope(block, trips, changing, scope)
            self.ops(region.ops[:-1], inner)
            if region is op.regions[1]:
                carried = [v if changes else a for v, a, changes in zip(self.ends(end, shardings, inner), block.arguments, varies)]
            else:
                carried = [self.values[v] for v in region.terminator.operands]
            self.end(region.terminator, carried, inner)
            regions.append(block)
        self.with_regions(op, operands, regions, scope)

    def branches(self, op: Op, scope: _Scope) -> None:
        regions: list[Block] = []
        for region in op.regions:
            block = self.body(region)
            inner = _Scope(block, scope.trips, None if scope.changing is None else set(), scope)
            self.ops(region.ops[:-1], inner)
            self.end(region.terminator, self.ends(region.terminator, [r.sharding for r in op.results], inner), inner)
            regions.append(block)
        self.with_regions(op, [self.values[v] for v in op.operands], regions, scope)

    def with_regions(self, op: Op, operands: Sequence[Value], regions: Sequence[Block], scope: _Scope) -> None:
        copy = op_like(op, operands, [r.type for r in op.results], regions)
        label_like(copy.results, op.results)
        for old, new in zip(op.results, copy.results):
            self.set(old, new)
        scope.append(copy)

    def call(self, op: Op, scope: _Scope) -> None:
        """The body of a named computation in place of it, as XLA inlines calls."""
        body = op.regions[0]
        for i, (argument, operand) in enumerate(zip(body.arguments, op.operands)):
            self.set(argument, self.in_sharding(op, i, operand, argument.sharding, scope))
            if argument.sharding is operand.sharding:
                self.aliases[argument] = operand
        self.ops(body.ops[:-1], scope)
        end = body.terminator
        for i, (result, value) in enumerate(zip(op.results, end.operands)):
            self.set(result, self.in_sharding(end, i, value, result.sharding, scope))
            if result.sharding is value.sharding:
                self.aliases[result] = value

    def computation(self, op: Op, scope: _Scope) -> None:
        """The body of a `shard_map` on the pieces of its specs."""
        (region,) = op.regions
        operands = [self.in_sharding(op, i, v, s, scope) for i, (v, s) in enumerate(zip(op.operands, op.attributes["in_shardings"]))]
        block = self.body(region)
        inner = _Scope(block, scope.trips, None if scope.changing is None else set(), scope)
        if inner.changing is not None:
            inner.changing.update(
                a for a, v in zip(block.arguments, operands) if scope.hoist_scope(v) is not scope or v in (scope.changing or ())
            )
        around, self.manual = self.manual, (*self.manual, *op.attributes["manual_axes"])
        self.ops(region.ops[:-1], inner)
        self.manual = around
        self.end(region.terminator, [self.values[v] for v in region.terminator.operands], inner)
        self.with_regions(op, operands, [block], scope)

    def mesh_of(self, *shardings: TensorSharding | None) -> Mesh | None:
        mesh = mesh_of(shardings, self.meshes)
        if mesh is not None and mesh not in self.mesh_names:
            stated = next(s for s in shardings if s is not None and s.mesh_in(self.meshes) == mesh)
            self.mesh_names[mesh] = stated.mesh
        return mesh

    def sharding(self, layout: Layout, mesh: Mesh) -> TensorSharding:
        """A layout as a sharding."""
        spelling = self.spellings.get((layout, mesh))
        if spelling is None:
            dims = [DimensionSharding(merged(axes, mesh)) for axes in layout]
            spelling = self.spellings[layout, mesh] = TensorSharding(self.mesh_names[mesh], dims)
        return spelling

    def in_sharding(self, op: Op, operand: int, value: Value, target: TensorSharding | None, scope: _Scope) -> Value:
        """An operand brought to a sharding."""
        new, source = self.values[value], value.sharding
        if source is target or (mesh := self.mesh_of(source, target)) is None or not value.type.rank:
            return new
        rank = value.type.rank
        return self.in_layout(op, operand, value, layout_of(source, rank, mesh), layout_of(target, rank, mesh), mesh, scope)

    def in_layout(self, op: Op, operand: int, value: Value, source: Layout, target: Layout, mesh: Mesh, scope: _Scope) -> Value:
        """A value in another layout: a copy that is at hand, or a new one."""
        new = self.values[value]
        if source == target:
            return new
        place = scope.place_of(new)
        for outer in scope.hoisted():
            if (copy := outer.copies.get((new, target))) is not None:
                return copy
            if outer is place:
                break
        maker = new.defining_op
        if maker is not None and maker.name in CHEAP:
            constant = Op(maker.name, (), [new.type], maker.attributes, location=maker.location, primitive=maker.primitive)
            constant.result.sharding = self.sharding(target, mesh)
            copy = place.append(constant).result
        else:
            origin = self.cause(op, operand, value, self.sharding(source, mesh), self.sharding(target, mesh), scope)
            copy = self.follow_route(new, source, target, origin, mesh, scope, place)
            place.copies[copy, source] = new
        place.copies[new, target] = copy
        return copy

    def cause(
        self, op: Op, operand: int, value: Value, source: TensorSharding | None, target: TensorSharding | None, scope: _Scope
    ) -> Origin:
        return Origin(self.lineage.op(op), operand, self.lineage.value(self.origin(value)), source, target, scope.depth)

    def follow_route(self, value: Value, source: Layout, target: Layout, origin: Origin, mesh: Mesh, scope: _Scope, place: _Scope) -> Value:
        """A value brought from one layout to another by collectives, each an op, and by slices."""
        shape, layout, hoist_scope, steps = value.type.shape, source, scope.hoist_scope(value), route(source, target, mesh)
        for i, step in enumerate(steps):
            if local_shape(shape, layout, mesh) != local_shape(shape, step.before, mesh):  # the part that is not needed is cut off first
                value, layout = self.sliced(value, layout, step.before, origin, mesh, place)
            attributes: dict[str, Any] = {}
            if step.kind == "all_gather":
                attributes["gathering_axes"] = _per_dim([[axis for axis in dim if axis in step.axes] for dim in layout], mesh)
                layout = tuple(tuple(axis for axis in dim if axis not in step.axes) for dim in layout)
            elif step.kind == "all_to_all":
                layout, attributes["params"] = _exchanged(layout, target, step.axes, mesh)
            else:
                layout = target if i + 1 == len(steps) else _permuted(layout, target, steps[i + 1].axes, mesh)
            value = self.step(f"sdy.{step.kind}", value, layout, attributes, origin, mesh, place)
            move = Move(step.kind, step.axes, local_shape(shape, step.before, mesh))
            self.transfer(move, value.owner, origin, mesh, hoist_scope, scope)
        if layout != target:
            if steps and local_shape(shape, layout, mesh) == local_shape(shape, target, mesh):
                value.sharding = self.sharding(target, mesh)
            else:
                value, _ = self.sliced(value, layout, target, origin, mesh, place)
        return value

    def sliced(self, value: Value, layout: Layout, target: Layout, origin: Origin, mesh: Mesh, place: _Scope) -> tuple[Value, Layout]:
        """The part of each piece that a layout with more axes keeps."""
        added = [[axis for axis in after if axis not in before] for before, after in zip(layout, target)]
        return self.step("sdy.all_slice", value, target, {"slicing_axes": _per_dim(added, mesh)}, origin, mesh, place), target

    def step(self, name: str, value: Value, layout: Layout, attributes: dict[str, Any], origin: Origin, mesh: Mesh, place: _Scope) -> Value:
        """The result of one op that brings a value to another layout."""
        op = Op(name, [value], [value.type], attributes, rule_decided=True, location=origin.op.location)
        op.result.sharding = self.sharding(layout, mesh)
        return place.append(op).result

    def transfer(self, step: Move, op: Op | Block, origin: Origin, mesh: Mesh, outer: _Scope, scope: _Scope) -> None:
        """Lists a collective that an op is, or runs inside."""
        axes = sort_and_merge(step.axes, mesh)
        group = num_shards(axes, mesh) if axes else mesh.size
        if group == 1 or not step.elements:
            return
        assert isinstance(op, Op)
        dtype = origin.value.type.dtype
        size = -(-step.elements * element_bits(dtype) // 8)
        collective = Collective(step.kind, tuple(map(format_axis, axes)), group, size, outer.trips, dtype, step.shape)
        self.add_transfer(op, origin, collective, hoisted=outer is not scope, scatters=step.scatters)

    def add_transfer(self, op: Op, origin: Origin, collective: Collective, *, hoisted: bool = False, scatters: bool = False) -> None:
        """Lists a collective, with the names of its origin in the user's program."""
        cause, program = origin.op, self.lineage.program
        named = replace(
            collective,
            value=self.name(origin.value),
            primitive="" if cause.name.endswith(".return") else cause.primitive or cause.name.rpartition(".")[2],
            location=location_of(program, cause),
            module=module_of(program, cause),
            backward=in_backward_pass(program, cause),
        )
        self.transfers.append(Transfer(named, op, origin, hoisted, scatters))

    def user_collective(self, op: Op, scope: _Scope) -> None:
        """A collective of the user's."""
        copy = self.clone(op, [self.values[v] for v in op.operands], scope)
        mesh = next(iter(self.meshes.values()))
        names = user_collective_axes(op, [axis for axis in mesh.shape if axis in self.manual], mesh.shape)
        group = num_shards((AxisRef(axis) for axis in names), mesh)
        value = op.operands[0]
        shape = local_shape(value.type.shape, layout_of(value.sharding, value.type.rank, mesh), mesh)
        size = local_bytes(value.type, value.sharding, self.meshes)
        if group > 1 and size:
            axes = tuple(format_axis(AxisRef(axis)) for axis in names)
            origin = self.cause(op, RESULTS, value, None, None, scope)
            self.add_transfer(copy, origin, Collective(KINDS[op.name], axes, group, size, scope.trips, value.type.dtype, shape))

    def on_one_device(self, op: Op, scope: _Scope) -> None:
        """Runs an op on one device: gathers its operands, and sends its results to all devices by adding them to zeros."""
        copy = self.clone(op, [self.in_sharding(op, i, v, op.results[0].sharding, scope) for i, v in enumerate(op.operands)], scope)
        mesh = next((mesh for mesh in self.meshes.values() if mesh.axes), None)
        if mesh is None or mesh.size == 1:
            return
        axes = [AxisRef(axis.name) for axis in mesh.axes if axis.size > 1]
        for result, value in zip(op.results, copy.results):
            size = local_bytes(result.type, result.sharding, self.meshes)
            if size and result.uses:
                origin = self.cause(op, RESULTS, result, None, result.sharding, scope)
                total = Op("sdy.all_reduce", [value], [value.type], {"reduction_axes": AxisRefList(axes)}, location=op.location)
                total.result.sharding = value.sharding
                self.set(result, scope.append(total).result)
                names, dtype = tuple(map(format_axis, axes)), result.type.dtype
                self.add_transfer(total, origin, Collective("all_reduce", names, mesh.size, size, scope.trips, dtype, result.type.shape))

    def plain(self, op: Op, scope: _Scope) -> None:
        """An op that runs under the axes of its strategy."""
        values = (*op.operands, *op.results)
        mesh = None if op.name in CHEAP or not op.results else self.mesh_of(*[v.sharding for v in values])
        if mesh is None:
            self.clone(op, [self.values[v] for v in op.operands], scope)
            return
        if any(r.sharding is not None and r.sharding.mesh_in(self.meshes).is_maximal for r in op.results):
            self.on_one_device(op, scope)
            return
        run = xla_of(op, mesh, self.meshes, self.strategies, manual=bool(self.manual))
        operands = [
            self.in_layout(op, i, v, layout_of(v.sharding, v.type.rank, mesh), read, mesh, scope)
            for i, (v, read) in enumerate(zip(op.operands, run.reads))
        ]
        copy = self.clone(op, operands, scope)
        for v, new, layout in zip(op.results, copy.results, run.makes):
            target = layout_of(v.sharding, v.type.rank, mesh)
            origin = self.cause(op, RESULTS, v, self.sharding(layout, mesh), v.sharding, scope)
            hoist_scope = scope.hoist_scope(new)
            for move in run.inside if v is op.results[0] else ():
                self.transfer(move, copy, origin, mesh, hoist_scope, scope)
            if layout != target:
                new.sharding = self.sharding(layout, mesh)
            total = new
            if run.summed:
                attributes = {"reduction_axes": AxisRefList(merged(run.summed, mesh))}
                total = self.step("sdy.all_reduce", new, layout, attributes, origin, mesh, scope)
                self.transfer(settled(v.type.shape, layout, target, run.summed, mesh)[0], total.owner, origin, mesh, hoist_scope, scope)
            resharded = self.follow_route(total, layout, target, origin, mesh, scope, scope)
            if resharded is not total:
                scope.copies[resharded, layout] = total
            self.set(v, resharded)


def _per_dim(axes: Sequence[Sequence[AxisRef]], mesh: Mesh) -> ListOfAxisRefLists:
    return ListOfAxisRefLists([AxisRefList(merged(dim, mesh)) for dim in axes])


def _permuted(layout: Layout, target: Layout, gathered: Axes, mesh: Mesh) -> Layout:
    """The layout that orders pieces for a gather; unchanged if axes come from other dimensions."""
    permuted = tuple((*after, *(axis for axis in dim if axis in gathered)) for dim, after in zip(layout, target))
    same_pieces = all(num_shards(dim, mesh) == num_shards(after, mesh) for dim, after in zip(layout, permuted))
    return permuted if same_pieces else layout


def _exchanged(layout: Layout, target: Layout, axes: Axes, mesh: Mesh) -> tuple[Layout, AllToAllParamList]:
    """A layout after axes have gone from one dimension to another."""
    source = next(d for d, dim in enumerate(layout) if axes[0] in dim)
    into = next(d for d, dim in enumerate(target) if axes[0] in dim)
    dims = [[axis for axis in dim if axis not in axes] for dim in layout]
    dims[into] += axes
    return tuple(map(tuple, dims)), AllToAllParamList([AllToAllParam(merged(axes, mesh), source, into)])
