"""The collectives that XLA's partitioner will make of a plan under `lowering="jit"`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.dialect.format import format_axis
from shardy_py.ir import Block, Op, Program, Value
from shardy_py.ir.types import element_bits
from shardy_py.partition.layouts import Layout, layout_of, local_shape, mesh_of, size_of, spelled
from shardy_py.partition.routes import Move, moves
from shardy_py.partition.strategy import Choice, choose
from shardy_py.partition.workarounds import stand_in
from shardy_py.passes.dataflow import CASE, COMPUTATIONS, MANUAL_COMPUTATION, WHILE
from shardy_py.passes.export.collective_bytes import local_bytes
from shardy_py.plan.collectives import Collective
from shardy_py.plan.prediction.written import KINDS, axes_of_written
from shardy_py.plan.trips import trip_count
from shardy_py.plan.values import location_of, module_of
from shardy_py.rules import rule_for

RESULTS = -1
"""In place of the number of an operand."""

_ONE_BY_ONE = frozenset(("stablehlo.optimization_barrier", "sdy.propagation_barrier", "sdy.sharding_constraint", "sdy.reshard"))
_NOTHING = frozenset(("sdy.constant", "stablehlo.constant", "stablehlo.iota", "sdy.data_flow_edge", "sdy.sharding_group"))
_CHEAP = frozenset(("sdy.constant", "stablehlo.constant", "stablehlo.iota"))


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """One collective and where it stands.

    Attributes:
        collective: What moves.
        op: The op that it is for.
        operand: Which of its operands is moved; `RESULTS` where it is a result.
        early: Whether it stands in front of the loop that the op is in.
        scatters: Whether it is an all-reduce of which each device keeps a piece of its own, which XLA makes a reduce-scatter of on GPUs
            and TPUs.
    """

    collective: Collective
    op: Op
    operand: int
    early: bool = False
    scatters: bool = False

    @property
    def on_accelerator(self) -> Collective:
        """What it is on GPUs and TPUs."""
        return replace(self.collective, kind="reduce_scatter") if self.scatters else self.collective


def predict(program: Program, name: Callable[[Value], str]) -> tuple[Predicted, ...]:
    """What XLA's partitioner moves between devices, in program order.

    It follows xla/service/spmd: every op runs under axes that its result or its operands have, and values are resharded before and
    after. A value that is brought to one layout twice moves once; what a loop does not change moves once, in front of it. Collectives that
    the user wrote in a `shard_map` are listed too; see `prediction/written.py` for their axes.

    Args:
        program: With final shardings.
        name: The name of a value.
    """
    if not program.meshes:
        return ()
    walker = _Walker(program, name)
    walker.block(program.main.body, _Scope(1, set(), None))
    return tuple(walker.found)


@dataclass(eq=False, slots=True)
class _Scope:
    """A computation: that of the function, or the body of a loop.

    Attributes:
        trips: How often it runs; None where that is unknown.
        moved: What is at hand in another layout.
        changing: Values that differ from trip to trip; None outside of loops.
        around: The computation around it.
    """

    trips: int | None
    moved: set[tuple[Value, Layout]]
    changing: set[Value] | None
    around: _Scope | None = None

    def home(self, value: Value) -> _Scope:
        """The outermost computation in which a value is known."""
        scope = self
        while scope.around is not None and scope.changing is not None and value not in scope.changing:
            scope = scope.around
        return scope


class _Walker:
    def __init__(self, program: Program, name: Callable[[Value], str]) -> None:
        self.program = program
        self.name = name
        self.found: list[Predicted] = []
        self.known: dict[tuple[object, ...], Choice | None] = {}
        self.between: dict[tuple[object, ...], tuple[Move, ...]] = {}
        self.same: dict[Value, Value] = {}
        self.manual: tuple[str, ...] = ()

    def origin(self, value: Value) -> Value:
        """The value that this one is under another name, in the same sharding."""
        while (before := self.same.get(value)) is not None:
            value = before
        return value

    def block(self, block: Block, scope: _Scope) -> None:
        for op in block.ops:
            name = op.name
            if name in _NOTHING:
                continue
            if scope.changing is not None and any(self.origin(v) in scope.changing for v in op.operands):
                scope.changing.update(op.results)
            if name == WHILE:
                self.loop(op, scope)
            elif name == CASE:
                for region in op.regions:
                    self.block(region, _Scope(scope.trips, set(), None if scope.changing is None else set(), scope))
                    self.ends(region.terminator, [r.sharding for r in op.results], scope)
                if scope.changing is not None:
                    scope.changing.update(op.results)
            elif name in COMPUTATIONS:
                self.computation(op, scope)
            elif name == "func.return":
                self.ends(op, self.program.main.result_shardings, scope)
            elif name in _ONE_BY_ONE:
                for i, result in enumerate(op.results):
                    self.to(op, i, op.operands[i], result.sharding, scope)
            elif name in KINDS:
                self.written(op, scope)
            elif not name.endswith(".return"):
                self.op(op, scope)

    def loop(self, op: Op, scope: _Scope) -> None:
        """Operands are brought to the shardings of the loop once, what the body makes on every trip."""
        shardings = [result.sharding for result in op.results]
        for i, (operand, sharding) in enumerate(zip(op.operands, shardings)):
            self.to(op, i, operand, sharding, scope)
        count = trip_count(op)
        condition, body = op.regions
        varying = [end is not a for a, end in zip(body.arguments, body.terminator.operands)]
        for block, more in ((condition, 1), (body, 0)):  # the condition is asked once more than the body runs
            changing = {a for a, varies in zip(block.arguments, varying) if varies}
            for argument, operand in zip(block.arguments, op.operands):
                if argument not in changing and argument.sharding is operand.sharding:
                    self.same[argument] = operand
            inner = _Scope(None if count is None or scope.trips is None else scope.trips * (count + more), set(), changing, scope)
            self.block(block, inner)
        self.ends(body.terminator, shardings, inner)

    def computation(self, op: Op, scope: _Scope) -> None:
        body = op.regions[0]
        if op.name == MANUAL_COMPUTATION:
            ins, outs = op.attributes["in_shardings"], op.attributes["out_shardings"]
        else:
            ins, outs = [a.sharding for a in body.arguments], [r.sharding for r in op.results]
        for i, (argument, operand, sharding) in enumerate(zip(body.arguments, op.operands, ins)):
            self.to(op, i, operand, sharding, scope)
            if argument.sharding is operand.sharding and op.name != MANUAL_COMPUTATION:
                self.same[argument] = operand
            if scope.changing is not None and self.origin(operand) in scope.changing:
                scope.changing.add(argument)
        around = self.manual
        self.manual += tuple(op.attributes["manual_axes"]) if op.name == MANUAL_COMPUTATION else ()
        self.block(body, scope)
        self.manual = around
        for i, (result, value) in enumerate(zip(op.results, body.terminator.operands)):
            if op.name != MANUAL_COMPUTATION:
                self.to(body.terminator, i, value, outs[i], scope)
                if result.sharding is value.sharding:
                    self.same[result] = value
            if scope.changing is not None and self.origin(value) in scope.changing:
                scope.changing.add(result)

    def ends(self, terminator: Op, shardings: list[TensorSharding | None], scope: _Scope) -> None:
        for i, (value, sharding) in enumerate(zip(terminator.operands, shardings)):
            self.to(terminator, i, value, sharding, scope)

    def mesh_of(self, *shardings: TensorSharding | None) -> Mesh | None:
        return mesh_of(shardings, self.program.meshes)

    def to(self, op: Op, i: int, value: Value, target: TensorSharding | None, scope: _Scope) -> None:
        """Brings one operand to a sharding."""
        source = value.sharding
        if source is target or (mesh := self.mesh_of(source, target)) is None or not value.type.rank:
            return
        key = (value.type, source, target)
        if key not in self.between:
            rank = value.type.rank
            self.between[key] = moves(value.type.shape, layout_of(source, rank, mesh), layout_of(target, rank, mesh), mesh)
        self.emit(op, i, value, self.between[key], layout_of(target, value.type.rank, mesh), mesh, scope)

    def written(self, op: Op, scope: _Scope) -> None:
        """A collective of the user's."""
        mesh = next(iter(self.program.meshes.values()))
        names = axes_of_written(op, [axis for axis in mesh.shape if axis in self.manual], mesh.shape)
        group = size_of((AxisRef(axis) for axis in names), mesh)
        value = op.operands[0]
        shape = local_shape(value.type.shape, layout_of(value.sharding, value.type.rank, mesh), mesh)
        size = local_bytes(value.type, value.sharding, self.program.meshes)
        if group > 1 and size:
            axes = tuple(format_axis(AxisRef(axis)) for axis in names)
            moved = Collective(
                KINDS[op.name],
                axes,
                group,
                size,
                scope.trips,
                value.type.dtype,
                shape,
                self.name(value),
                op.primitive or "",
                location_of(self.program, op),
                module_of(self.program, op),
            )
            self.found.append(Predicted(moved, op, RESULTS))

    def on_one_device(self, op: Op, scope: _Scope) -> None:
        """An op that runs on one device: its operands are gathered, its results are sent to all by adding them to zeros."""
        for i, operand in enumerate(op.operands):
            self.to(op, i, operand, op.results[0].sharding, scope)
        mesh = next((mesh for mesh in self.program.meshes.values() if mesh.axes), None)
        if mesh is None or mesh.size == 1:
            return
        axes = tuple(format_axis(AxisRef(axis.name)) for axis in mesh.axes if axis.size > 1)
        where, module = location_of(self.program, op), module_of(self.program, op)
        for result in op.results:
            size = local_bytes(result.type, result.sharding, self.program.meshes)
            if size and result.uses:
                dtype, shape = result.type.dtype, result.type.shape
                primitive = op.primitive or op.name.rpartition(".")[2]
                named = self.name(result)
                moved = Collective("all_reduce", axes, mesh.size, size, scope.trips, dtype, shape, named, primitive, where, module)
                self.found.append(Predicted(moved, op, RESULTS))

    def op(self, op: Op, scope: _Scope) -> None:
        values = (*op.operands, *op.results)
        shardings = tuple([v.sharding for v in values])
        mesh = self.mesh_of(*shardings)
        if mesh is None:
            return
        if any(r.sharding is not None and r.sharding.mesh_in(self.program.meshes).is_maximal for r in op.results):
            self.on_one_device(op, scope)
            return
        rule = op.rule if op.rule_known else rule_for(op)
        key = (op.name, rule, shardings, tuple([v.type for v in values]))
        choice = None if self.manual else stand_in(op, mesh, self.program.meshes)
        if choice is not None:
            pass
        elif key in self.known:
            choice = self.known[key]
        else:
            count = len(op.operands)
            shapes = [v.type.shape for v in values]
            layouts = [layout_of(v.sharding, v.type.rank, mesh) for v in values]
            choice = choose(op.name, rule, shapes[:count], layouts[:count], shapes[count:], layouts[count:], mesh)
            if not any(choice.moves) and not any(choice.sums):
                choice = None
            self.known[key] = choice
        if choice is None:
            return
        for i, (operand, steps) in enumerate(zip(op.operands, choice.moves)):
            self.emit(op, i, operand, steps, choice.operands[i], mesh, scope)
        for result, steps in zip(op.results, choice.sums):
            self.emit(op, RESULTS, result, steps, None, mesh, scope)

    def emit(self, op: Op, operand: int, value: Value, steps: tuple[Move, ...], target: Layout | None, mesh: Mesh, scope: _Scope) -> None:
        if not steps:
            return
        value = self.origin(value)
        maker = value.defining_op
        if operand != RESULTS and maker is not None and maker.name in _CHEAP:
            return
        home = scope.home(value)
        if target is not None:
            if (value, target) in home.moved:
                return
            home.moved.add((value, target))
        bits = element_bits(value.type.dtype)
        named, where, module = self.name(value), location_of(self.program, op), module_of(self.program, op)
        for step in steps:
            axes = spelled(step.axes, mesh)
            group = size_of(axes, mesh) if axes else mesh.size
            if group == 1 or not step.elements:
                continue
            moved = Collective(
                step.kind,
                tuple(map(format_axis, axes)),
                group,
                -(-step.elements * bits // 8),
                home.trips,
                value.type.dtype,
                step.shape,
                named,
                "" if op.name.endswith(".return") else op.primitive or op.name.rpartition(".")[2],
                where,
                module,
            )
            self.found.append(Predicted(moved, op, operand, home is not scope, step.scatters))
