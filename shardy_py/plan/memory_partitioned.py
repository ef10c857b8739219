"""What XLA's partitioner makes of a program: ops under the axes that it runs them with, and reshards to and from these."""

from __future__ import annotations

from shardy_py.dialect import AxisRef, AxisRefList, DimensionSharding, Mesh, TensorSharding
from shardy_py.ir import Block, Op, Program, Value
from shardy_py.partition.layouts import Axes, Layout, all_axes, layout_of, mesh_of, size_of
from shardy_py.partition.routes import moves
from shardy_py.partition.strategy import Choice, choose
from shardy_py.partition.workarounds import stand_in
from shardy_py.passes.dataflow import NAMED_COMPUTATION
from shardy_py.passes.walk import blocks_of
from shardy_py.rules import rule_for

_CONSTANTS = frozenset(("sdy.constant", "stablehlo.constant", "stablehlo.iota"))
_OTHERWISE = frozenset(("stablehlo.gather", "stablehlo.scatter", "stablehlo.sort"))
"""Ops that it does not run as their results are sharded."""
_ONE_BY_ONE = frozenset(("stablehlo.optimization_barrier", "sdy.propagation_barrier"))
_AS_THEY_ARE = _OTHERWISE | _CONSTANTS | _ONE_BY_ONE


def partition(program: Program) -> None:
    """Brings operands and results of ops to the layouts that XLA's partitioner runs the ops in.

    Args:
        program: Changed; its shardings are final.
    """
    for function in program.functions:
        function.body.set_ops(_inlined(function.body))
    walker = _Partitioner(program)
    for block in blocks_of(program):
        block.set_ops(walker.block(block))


def _inlined(block: Block) -> list[Op]:
    """The ops of a block with those of named computations in place of these, as XLA inlines calls."""
    out: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            region.set_ops(_inlined(region))
        if op.name != NAMED_COMPUTATION:
            out.append(op)
            continue
        (body,) = op.regions
        for argument, operand in zip(body.arguments, op.operands):
            argument.replace_uses(_as(operand, argument, op, out))
        *inner, end = body.ops
        out += inner
        for result, value in zip(op.results, end.operands):
            result.replace_uses(_as(value, result, op, out))
        end.drop_uses()
        op.regions = ()
        op.drop_uses()
    return out


def _as(value: Value, other: Value, op: Op, out: list[Op]) -> Value:
    """A value in the sharding of another."""
    if value.sharding is other.sharding or other.sharding is None or other.sharding.is_equivalent(value.sharding):
        return value
    made = Op("sdy.reshard", [value], [value.type], location=op.location, primitive=op.primitive)
    made.rule_known, made.result.sharding = True, other.sharding
    out.append(made)
    return made.result


class _Partitioner:
    def __init__(self, program: Program) -> None:
        self.meshes = program.meshes
        self.known: dict[object, Choice] = {}
        self.spelled: dict[Mesh, str | Mesh] = {}

    def block(self, block: Block) -> list[Op]:
        """The ops of a block, with reshards between them."""
        out: list[Op] = []
        at_hand: dict[tuple[Value, Layout], Value] = {}
        for op in block.ops:
            mesh = None if op.regions or not op.results or op.name in _AS_THEY_ARE else self.mesh(op)
            if mesh is None:
                out.append(op)
                continue
            if op.name == "sdy.reshard":
                self.asked(op, mesh, at_hand, out)
                continue
            own = stand_in(op, mesh, self.meshes)
            choice = self.choice(op, mesh) if own is None else own
            reads, results = choice.operands, choice.results
            summed: Axes = ()
            if own is not None:
                summed = next((move.axes for move in own.sums[0] if move.kind == "all_reduce"), ())
            elif op.name == "stablehlo.concatenate":
                if (aside := _aside(op, mesh)) is not None:
                    reads, results = (aside,) * len(op.operands), (aside,)
                elif (cut := _cut(op, mesh)) and not _rotates(op):
                    layout = layout_of(op.result.sharding, op.result.type.rank, mesh)
                    whole = tuple(() if d == op.attributes["dimension"] else axes for d, axes in enumerate(layout))
                    reads, results, summed = (layout,) * len(op.operands), (whole,), cut
            for i, (v, read) in enumerate(zip(op.operands, reads)):
                source = layout_of(v.sharding, v.type.rank, mesh)
                if source != read:
                    brought = at_hand.get((v, read))
                    if brought is None:
                        brought = at_hand[v, read] = self.moved(v, source, read, mesh, op, out)
                        at_hand[brought, source] = v
                    op.set_operand(i, brought)
            out.append(op)
            if own is not None or summed:
                op.rule, op.rule_known = None, True
            for v, made in zip(op.results, results):
                wanted = layout_of(v.sharding, v.type.rank, mesh)
                if made != wanted or summed:
                    uses, v.uses = v.uses, {}
                    v.sharding = self.sharding(made, mesh)
                    target = whole = self.summed(v, summed, mesh, op, out) if summed else v
                    if made != wanted:
                        target = self.moved(whole, made, wanted, mesh, op, out)
                        at_hand[target, made] = whole
                    for user, i in uses:
                        user.operands[i] = target
                    target.uses |= uses
        return out

    def asked(self, op: Op, mesh: Mesh, at_hand: dict[tuple[Value, Layout], Value], out: list[Op]) -> None:
        """A reshard that the program has goes straight from one layout to the other."""
        (v,) = op.operands
        source, target = (layout_of(value.sharding, v.type.rank, mesh) for value in (v, op.result))
        found = v if source == target else at_hand.get((v, target))
        if found is None:
            found = at_hand[v, target] = self.moved(v, source, target, mesh, op, out)
            at_hand[found, source] = v
        op.result.replace_uses(found)
        op.drop_uses()

    def summed(self, value: Value, axes: Axes, mesh: Mesh, op: Op, out: list[Op]) -> Value:
        """The sum of a value over axes."""
        attributes = {"reduction_axes": AxisRefList(_merged(axes, mesh))}
        made = Op("sdy.all_reduce", [value], [value.type], attributes, location=op.location, primitive=op.primitive)
        made.result.sharding = value.sharding
        out.append(made)
        return made.result

    def mesh(self, op: Op) -> Mesh | None:
        """The mesh of an op; None where nothing is to be done: on one device, or between meshes."""
        shardings = [v.sharding for v in (*op.operands, *op.results)]
        mesh = mesh_of(shardings, self.meshes)
        for sharding in shardings:
            if sharding is not None and mesh is not None:
                if sharding.mesh_in(self.meshes) != mesh or mesh.is_maximal:
                    return None
                self.spelled[mesh] = sharding.mesh
        return mesh

    def choice(self, op: Op, mesh: Mesh) -> Choice:
        """How an op runs."""
        rule = op.rule if op.rule_known else rule_for(op)
        values = (*op.operands, *op.results)
        key = (op.name, rule, tuple([v.sharding for v in values]), tuple([v.type for v in values]))
        if key not in self.known:
            count = len(op.operands)
            shapes = [v.type.shape for v in values]
            layouts = [layout_of(v.sharding, v.type.rank, mesh) for v in values]
            self.known[key] = choose(op.name, rule, shapes[:count], layouts[:count], shapes[count:], layouts[count:], mesh)
        return self.known[key]

    def moved(self, value: Value, source: Layout, target: Layout, mesh: Mesh, op: Op, out: list[Op]) -> Value:
        """A value in another layout: through the whole value where there is no other way."""
        maker = value.defining_op
        if maker is not None and maker.name in _CONSTANTS:
            made = Op(maker.name, (), [value.type], maker.attributes, location=maker.location, primitive=maker.primitive)
            made.result.sharding = self.sharding(target, mesh)
            out.append(made)
            return made.result
        steps = moves(value.type.shape, source, target, mesh)
        whole: Layout = ((),) * value.type.rank
        if len(steps) == 1 and steps[0].kind == "all_gather" and target != whole and set(steps[0].axes) == set(all_axes(source)):
            value = self.reshard(value, whole, mesh, op, out)
        return self.reshard(value, target, mesh, op, out)

    def reshard(self, value: Value, target: Layout, mesh: Mesh, op: Op, out: list[Op]) -> Value:
        """One reshard."""
        made = Op("sdy.reshard", [value], [value.type], location=op.location, primitive=op.primitive)
        made.rule_known = True
        made.result.sharding = self.sharding(target, mesh)
        out.append(made)
        return made.result

    def sharding(self, layout: Layout, mesh: Mesh) -> TensorSharding:
        """A layout as a sharding."""
        return TensorSharding(self.spelled[mesh], [DimensionSharding(_merged(axes, mesh)) for axes in layout])


def _cut(op: Op, mesh: Mesh) -> Axes:
    """The axes of the dimension along which arrays are joined: each device writes its pieces into zeros, which are added up."""
    return layout_of(op.result.sharding, op.result.type.rank, mesh)[op.attributes["dimension"]]


def _aside(op: Op, mesh: Mesh) -> Layout | None:
    """The layout in which pieces are put together along a dimension that is cut: its axes go to another that they divide.

    None where it is not cut, no other dimension will do, or an array is rotated, which XLA has another way for.
    """
    dim = op.attributes["dimension"]
    layout = layout_of(op.result.sharding, op.result.type.rank, mesh)
    if not layout[dim] or _rotates(op):
        return None
    shape, ways = op.result.type.shape, size_of(layout[dim], mesh)
    fit = [d for d, axes in enumerate(layout) if d != dim and shape[d] % (size_of(axes, mesh) * ways) == 0]
    other = next((d for d in fit if not layout[d]), next(iter(fit), None))
    if other is None:
        return None
    moved = {dim: (), other: (*layout[other], *layout[dim])}
    return tuple(moved.get(d, axes) for d, axes in enumerate(layout))


def _rotates(op: Op) -> bool:
    makers = [v.defining_op for v in op.operands]
    tail, head = makers if len(makers) == 2 else (None, None)
    if tail is None or head is None or tail.name != "stablehlo.slice" or head.name != tail.name or tail.operands[0] is not head.operands[0]:
        return False
    dim = op.attributes["dimension"]
    starts, ends = tail.attributes["start_indices"], head.attributes["limit_indices"]
    return starts[dim] == ends[dim] and not head.attributes["start_indices"][dim] and op.result.type == tail.operands[0].type


def _merged(axes: Axes, mesh: Mesh) -> list[AxisRef]:
    """Parts of axes that follow each other put together."""
    found: list[tuple[str, int, int]] = []
    for axis in axes:
        before, size = axis.pre_size or 1, axis.size_in(mesh)
        if found and found[-1][0] == axis.name and found[-1][1] * found[-1][2] == before:
            name, first, length = found.pop()
            found.append((name, first, length * size))
        else:
            found.append((axis.name, before, size))
    return [AxisRef(name) if size == mesh.shape[name] else AxisRef(name, before, size) for name, before, size in found]
