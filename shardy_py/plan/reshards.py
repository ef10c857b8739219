"""Data movement in a planned program: each reshard and reduction with its reason, its collectives and its cost."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import format_axis, short_location
from shardy_py.ir import Block, Op, Program, Type, Value
from shardy_py.passes.clone import clone_program, dissolve
from shardy_py.passes.collection import no_collection
from shardy_py.passes.dataflow import CASE, COMPUTATIONS, MANUAL_COMPUTATION, WHILE, get_sharding
from shardy_py.passes.export.canonicalization.reshards import skip_reshard
from shardy_py.passes.export.canonicalization.rewriting import erase
from shardy_py.passes.export.canonicalize import COLLECTIVES, Canonicalize
from shardy_py.passes.export.insert_explicit_reshards import InsertExplicitReshards
from shardy_py.passes.export.reshard_to_collectives import ReshardToCollectives
from shardy_py.plan.collectives import MOVING_OPS, Movement, format_bytes, movement_of, trips_text
from shardy_py.plan.trips import with_trips
from shardy_py.plan.values import location_of, name_of, typed
from shardy_py.rules.traits import TERMINATORS

_RESHARD = "sdy.reshard"


@dataclass(frozen=True, slots=True)
class Reshard:
    """One movement of data: a value is resharded, or partial sums are reduced.

    `bytes_per_device` counts the bytes that each device receives when it runs once, summed over the collectives. With n devices in a group
    and the pieces that a device has before and after a collective:

    * `all_gather` and `all_to_all`: (n-1)/n of the piece afterwards
    * `reduce_scatter`: (n-1)/n of the piece before
    * `all_reduce`: 2 (n-1)/n of the piece, as a reduce-scatter and an all-gather
    * `collective_permute`, and a `reshard` to a mesh with other axes: the whole piece afterwards
    * `all_slice`: nothing; each device keeps a part of what it has

    Attributes:
        value: Path or name of the value that moves, as in `Plan.values`. An argument of a computation, and a value that a loop carries
            unchanged, has the name of its operand; so has a slice of a scan's operand in a region. Small sums that a region sends
            together are named one after the other, `%3, %7`.
        type: Its global type; inside a `shard_map`, that of one shard.
        source: The sharding before; axes of a sum still to be taken are its unreduced axes.
        target: The sharding afterwards.
        collectives: Its collectives, in order.
        bytes_per_device: Bytes that each device receives, once; see above.
        reason: Its cause: `operand of dot_general`, `sharding constraint`, `function result result[0]`, ...; of a sum in
            a region `reduction over model`.
        location: `file:line` of the user's code; empty where unknown.
        primitive: The JAX primitive that asks for it; empty for results of the function.
        depth: Number of bodies (scan, while, cond, computations) around it.
        trips: Number of executions in one call: 1 outside of loops, else the product of the trip counts; None where one is unknown.
            Each branch of a cond counts as if it ran.
    """

    value: str
    type: Type
    source: TensorSharding | None
    target: TensorSharding | None
    collectives: tuple[Movement, ...]
    bytes_per_device: int
    reason: str
    location: str = ""
    primitive: str = ""
    depth: int = 0
    trips: int | None = 1

    @property
    def total_bytes_per_device(self) -> int | None:
        """Bytes that each device receives in one call; None where the number of trips is unknown."""
        return None if self.trips is None else self.bytes_per_device * self.trips

    @property
    def call_bytes(self) -> int:
        """Bytes that each device receives in one call, a loop with an unknown number of trips taken for one."""
        return self.bytes_per_device * (1 if self.trips is None else self.trips)

    @property
    def change(self) -> str:
        """Its type with the sharding before, and if that differs with the one afterwards."""
        before, after = typed(self.type, self.source), typed(self.type, self.target)
        return before if before == after else f"{before} -> {after}"

    def __str__(self) -> str:
        return self.text()

    def text(self, value: str = "") -> str:
        """One line: value, types, collectives, bytes, trips, source line, reason.

        Args:
            value: Text in place of the value's name.
        """
        steps = ", ".join(map(str, self.collectives))
        where = short_location(self.location)
        head = f"{value or self.value} {self.change}: {steps}".lstrip()
        return "  ".join(part for part in (head, format_bytes(self.bytes_per_device) + trips_text(self.trips), where, self.reason) if part)


@dataclass(eq=False, slots=True)
class _Origin:
    """The cause of a movement. It replaces the op's location, which passes copy to the collectives that they create."""

    value: str
    reason: str
    location: str
    primitive: str


@no_collection()
def find_reshards(program: Program, names: Mapping[Value, str], results: tuple[str, ...]) -> tuple[Reshard, ...]:
    """The data movements of a program with final shardings, in program order.

    Shardy's explicit collectives: `sdy-insert-explicit-reshards` in its full version, then reshards become collectives, and a reduction
    whose result is only sliced becomes a reduce-scatter. Collectives that the user wrote in a `shard_map` are not listed.
    """
    copy, mapping = clone_program(program)
    copied_names = {mapping[value]: name for value, name in names.items() if value in mapping}
    inserted: list[tuple[Op, str, Op]] = []
    user_reshards = [op for op in copy.walk() if op.name == _RESHARD]
    InsertExplicitReshards(enable_full_version=True).run(copy, record=lambda *entry: inserted.append(entry))
    inserted_ops = {op for op, _, _ in inserted}
    origins: list[tuple[Op, _Origin]] = []
    for op in user_reshards:
        if op.block is not None:
            primitive = op.primitive or "sharding_constraint"
            origins.append(
                (op, _Origin(name_of(op.operands[0], copied_names, inserted_ops), "sharding constraint", location_of(copy, op), primitive))
            )
    for op, why, cause in inserted:
        reason = _reason(op, why, cause, results)
        value = op.operands[0]
        by = value.defining_op if cause.name in TERMINATORS else cause
        while by is not None and by in inserted_ops:
            by = by.operands[0].defining_op
        location = location_of(copy, by) if by is not None else location_of(copy, cause)
        origins.append((op, _Origin(name_of(value, copied_names, inserted_ops), reason, location, primitive_of(cause))))
    for op, origin in origins:
        op.location = origin
    _merge([op for op, _ in origins], copy)
    ReshardToCollectives().run(copy)
    Canonicalize(enable_patterns=(COLLECTIVES,)).run(copy)
    groups: dict[_Origin, _OpGroup] = {}
    for op, trips, depth in with_trips(copy.main.body):
        if op.name in MOVING_OPS and isinstance(op.location, _Origin):
            groups.setdefault(op.location, _OpGroup([], depth, trips)).ops.append(op)
    reshards = tuple(_entry(origin, entry, copy) for origin, entry in groups.items())
    dissolve(copy)
    return reshards


def _merge(ops: list[Op], program: Program) -> None:
    """Merges two reshards in a row into one."""
    blocks: dict[Block, None] = {}
    for op in ops:
        first = op.operands[0].defining_op
        while op.name == _RESHARD and first is not None and skip_reshard(op, program):
            assert first.block is not None
            blocks[first.block] = None
            erase(first)
            first = op.operands[0].defining_op
    for block in blocks:
        block.ops = [op for op in block.ops if op.block is block]


@dataclass(slots=True)
class _OpGroup:
    ops: list[Op]
    depth: int
    trips: int | None


def _entry(origin: _Origin, group: _OpGroup, program: Program) -> Reshard:
    first, last = group.ops[0], group.ops[-1]
    steps = tuple(movement_of(op, get_sharding(op.operands[0]), program.meshes) for op in group.ops)
    source = get_sharding(first.operands[0])
    reason = origin.reason
    if steps[0].kind in ("all_reduce", "reduce_scatter"):
        axes = steps[0].axes
        reason = f"{reason} over {','.join(map(format_axis, axes))}"
        if source is not None and not source.unreduced:
            source = TensorSharding(source.mesh, source.dims, source.replicated, axes)
    return Reshard(
        origin.value,
        first.result.type,
        source,
        last.result.sharding,
        steps,
        sum(step.bytes_per_device for step in steps),
        reason,
        origin.location,
        origin.primitive,
        group.depth,
        group.trips,
    )


def primitive_of(op: Op) -> str:
    """The JAX primitive of an op that data moves for; empty for results of the function."""
    if op.name == "func.return":
        return ""
    if op.name in TERMINATORS:
        op = op.parent or op
    return op.primitive or op.name.rpartition(".")[2]


def _reason(op: Op, why: str, cause: Op, results: tuple[str, ...]) -> str:
    """The reason that an op was inserted for, in the words of JAX."""
    name = primitive_of(cause)
    if cause.name != "func.return" and op.name == "sdy.all_reduce":
        return f"reduction in {name}"
    if why.endswith("makes it otherwise") and cause.name not in TERMINATORS and cause.name != WHILE and cause.name not in COMPUTATIONS:
        return f"result of {name}"
    index = next((i for user, i in _final_uses(op) if user is cause), None)
    return reason_of(cause, results[index] if index is not None and index < len(results) else "")


def reason_of(op: Op, result: str) -> str:
    """The reason that an operand of an op is moved for, in the words of JAX."""
    name = primitive_of(op)
    if op.name == "func.return":
        return f"function result {result}".rstrip()
    if op.name in TERMINATORS:
        parent = op.parent
        if parent is not None and parent.name == WHILE:
            return f"next trip of {name}"
        return f"result of {_title(parent, name)}"
    if op.name == WHILE:
        return f"entry of {name}"
    if op.name in COMPUTATIONS:
        return f"argument of {_title(op, name)}"
    return f"operand of {name}"


def _title(op: Op | None, name: str) -> str:
    """The name of a computation or branch."""
    if op is None:
        return name
    if op.name == MANUAL_COMPUTATION:
        return "shard_map"
    if op.name == CASE:
        return "cond"
    return op.attributes.get("name") or name


def _final_uses(op: Op) -> Collection[tuple[Op, int]]:
    """Uses of an inserted op's result, behind further ops inserted for the same use."""
    uses = op.results[0].uses
    while len(uses) == 1 and (user := next(iter(uses))[0]).name in MOVING_OPS:
        uses = user.results[0].uses
    return uses
