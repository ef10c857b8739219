"""The search space: classes of dimensions that are cut alike, and the axes that may cut each.

Dimensions are joined along the factors of ops that would gain nothing from cutting them differently. Dimensions that an op may gain from
stay apart: dimensions of products, gathers and scatters, results of reductions, operands and results of what runs on whole operands, as
FFTs do, arguments of the function at their readers, values that loops change, and the results of the function. There the prices of the op,
and of the moves around it, decide.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding
from shardy_py.dialect.axis import Axes, merged
from shardy_py.errors import UserError
from shardy_py.ir import Block, Op, Program, Value
from shardy_py.partition.layouts import Layout, layout_of, parts
from shardy_py.partition.op import CHEAP, WHOLE
from shardy_py.passes.dataflow import CASE, MANUAL_COMPUTATION, WHILE
from shardy_py.plan.values import location_of
from shardy_py.planner.alike import representatives
from shardy_py.planner.inlined import inlined
from shardy_py.rules import rule_of
from shardy_py.rules.traits import CONSTRAINTS, UNCONSTRAINED

OPEN = {"chlo.ragged_dot", *(f"stablehlo.{name}" for name in "convolution dot dot_general gather scatter select_and_scatter".split())}
"""Ops whose operands and results are cut independently of each other."""

REDUCTIONS = frozenset(("stablehlo.reduce", "stablehlo.reduce_window"))
"""Ops whose results, which are cut alike, are cut independently of their operands."""

SLICE = "stablehlo.dynamic_slice"

Dim = tuple[Value | int, int]
"""A dimension of a value, or of a result of the function by its number."""


Cuts = tuple[tuple[str, ...], ...]
"""Sets of mesh axes, each of which may cut a dimension."""


@dataclass(frozen=True)
class Resolution:
    """The distinctions of a space."""

    cuts: Cuts
    layers: bool = True
    mixes: bool = True


@dataclass(frozen=True, eq=False)
class Space:
    """Classes of dimensions per value, or number of a result, and the prime-size axis parts that may cut each; whole is the first."""

    mesh: Mesh
    classes: Mapping[Value | int, tuple[int, ...]]
    strategies: tuple[tuple[Axes, ...], ...]
    members: tuple[tuple[Dim, ...], ...]
    resolution: Resolution

    def layout(self, value: Value | int, assignment: Sequence[int]) -> Layout:
        """The layout of a value, or of a result by its number."""
        return tuple(self.strategies[c][assignment[c]] for c in self.classes[value])

    @functools.cached_property
    def free(self) -> tuple[int, ...]:
        """The classes with a choice."""
        return tuple(c for c, strategies in enumerate(self.strategies) if len(strategies) > 1)


@dataclass(frozen=True, eq=False)
class Annotations:
    """The user's shardings, which stay.

    Attributes:
        alike: Pairs of numbers of an argument and a result that have one sharding: a step hands them to the next.
    """

    inputs: tuple[TensorSharding | None, ...]
    outputs: tuple[TensorSharding | None, ...]
    alike: tuple[tuple[int, int], ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    freed: tuple[str, ...] = ()


def resolutions(mesh: Mesh) -> tuple[Resolution, ...]:
    """The largest spaces: all layers apart, and alike ones sharded alike.

    Example:
        >>> resolutions(Mesh([("x", 2), ("y", 4)]))[1]
        Resolution(cuts=((), ('x',), ('y',), ('x', 'y')), layers=False, mixes=True)
    """
    names = [axis.name for axis in mesh.axes if axis.size > 1]
    cuts = tuple(some for count in range(len(names) + 1) for some in itertools.combinations(names, count))
    return Resolution(cuts), Resolution(cuts, layers=False)


def values_of(program: Program) -> Iterator[Value]:
    """All values of a program, in an order that equal programs share."""
    yield from program.main.arguments
    for op in program.walk():
        yield from op.results
        for region in op.regions:
            yield from region.arguments


def spaces_of(
    program: Program, mesh: Mesh, annotations: Annotations, groups: Sequence[Sequence[Value]] = ()
) -> Callable[[Resolution | None], Space]:
    """The search spaces of a program by resolution (None is all). Raises UserError if annotations of a group contradict each other."""
    joiner = _Joiner(program, mesh, annotations)
    joiner.block(program.main.body)
    joiner.ends()
    for group in groups:
        joiner.group(group)
    return joiner.space


def stated(constraint: Op) -> TensorSharding | None:
    """The sharding of a constraint as the user states it, before open dimensions were decided."""
    sharding, dims = constraint.result.sharding, constraint.attributes.get(UNCONSTRAINED, ())
    if sharding is None or not dims:
        return sharding
    return sharding.with_dims([DimensionSharding((), False) if d in dims else each for d, each in enumerate(sharding.dims)])


def groups_of(annotations: Annotations, program: Program, copies: Mapping[Value, Value]) -> list[list[Value]]:
    """The members of sharding groups in a copy of the planned program."""
    values = list(values_of(program)) if annotations.groups else []
    return [[copies[values[number]] for number in group if values[number] in copies] for group in annotations.groups]


class _Joiner:
    """Joins dimensions of values into classes, by union-find."""

    def __init__(self, program: Program, mesh: Mesh, annotations: Annotations) -> None:
        self.program = program
        self.mesh = mesh
        self.annotations = annotations
        self.numbers: dict[Dim, int] = {}
        self.dims: list[Dim] = []
        self.sizes: list[int] = []
        self.ranks: dict[Value | int, int] = {}
        self.pins: list[Axes | None] = []
        self.parent: list[int] = []
        self.values: list[dict[Value | int, int]] = []
        self.fixed: set[Value] = set()
        main = program.main
        for argument, sharding in zip(main.arguments, annotations.inputs, strict=True):
            self.add(argument, argument.type.shape, sharding)
            self.fixed.add(argument)
        values = main.body.terminator.operands
        for number, (value, type_, sharding) in enumerate(zip(values, main.result_types, annotations.outputs, strict=True)):
            out_spec = _out_spec(value) if sharding is None else None
            self.add(number, type_.shape, sharding or out_spec, pinned=out_spec is not None)

    def add(self, value: Value | int, shape: Sequence[int], sharding: TensorSharding | None = None, pinned: bool = False) -> None:
        """Numbers the dimensions of a value."""
        layout = layout_of(sharding, len(shape), self.mesh) if sharding is not None else ()
        self.ranks[value] = len(shape)
        for dim, size in enumerate(shape):
            number = self.numbers[value, dim] = len(self.dims)
            self.dims.append((value, dim))
            self.sizes.append(size)
            is_pinned = sharding is not None and (pinned or sharding.dims[dim].is_closed or bool(layout[dim]))
            self.pins.append(layout[dim] if is_pinned else None)
            self.parent.append(number)
            self.values.append({value: dim})

    def of(self, value: Value) -> None:
        """Numbers the dimensions of a value, unless they have been."""
        if (value, 0) not in self.numbers and value.type.rank:
            maximal = value.sharding is not None and value.sharding.mesh_in(self.program.meshes).is_maximal
            if maximal:
                self.fixed.add(value)
            self.add(value, value.type.shape, value.sharding if maximal else None, maximal)

    def root(self, number: int) -> int:
        """The class of a dimension."""
        parent = self.parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    def join(self, one: Dim, other: Dim) -> None:
        """Joins two dimensions unless a value would have two dimensions in one class, or two annotations meet."""
        a, b = sorted((self.root(self.numbers[one]), self.root(self.numbers[other])))
        if a == b:
            return
        pins = self.pins[a], self.pins[b]
        if None not in pins and pins[0] != pins[1]:
            return
        small, large = sorted((self.values[a], self.values[b]), key=len)
        if any(large.get(value, dim) != dim for value, dim in small.items()):
            return
        if (pins[0] is None) != (pins[1] is None) and self.is_taken(pins[0] or pins[1] or (), self.values[a if pins[0] is None else b]):
            return
        large.update(small)
        self.parent[b] = a
        self.values[a], self.values[b] = large, {}
        self.sizes[a] = math.gcd(self.sizes[a], self.sizes[b])
        self.pins[a] = pins[1] if pins[0] is None else pins[0]

    def is_taken(self, pin: Axes, dims: Mapping[Value | int, int]) -> bool:
        """Whether an axis of a pin is pinned to another dimension of one of the values."""
        return bool(pin) and any(
            set(pin) & set(self.pins[self.root(self.numbers[value, other])] or ())
            for value, dim in dims.items()
            for other in range(self.ranks[value])
            if other != dim
        )

    def alike(self, one: Value, other: Value | int) -> None:
        """Joins all dimensions of two values of one shape."""
        for dim in range(one.type.rank):
            self.join((one, dim), (other, dim))

    def made_for(self, one: Value, other: Value | int) -> None:
        """Joins a constant with its reader, which makes it in the layout that it needs."""
        if one.defining_op is not None and one.defining_op.name in CHEAP:
            self.alike(one, other)

    def block(self, block: Block) -> None:
        """Joins along the ops of a block."""
        for op in block.ops[:-1]:
            self.op(op)

    def op(self, op: Op) -> None:
        """Joins along one op."""
        name = op.name
        if name == MANUAL_COMPUTATION:
            self.manual(op)
            return
        for value in (*op.operands, *(() if name in CONSTRAINTS else op.results)):
            self.of(value)
        if name in CONSTRAINTS:
            self.constraint(op)
        elif name == WHILE:
            self.loop(op)
        elif name == CASE:
            for region in op.regions:
                self.block(region)
                for result, end in zip(op.results, region.terminator.operands):
                    self.of(end)
                    self.alike(end, result)
        elif name == "stablehlo.optimization_barrier":
            for operand, result in zip(op.operands, op.results):
                self.alike(operand, result)
        elif not op.regions:
            self.plain(op)

    def group(self, members: Sequence[Value]) -> None:
        """Joins the members of a sharding group; raises UserError if their pins leave no sharding for all."""
        for one in members:
            self.check_group(one, members[0])
            self.alike(one, members[0])

    def check_group(self, one: Value, other: Value) -> None:
        """Checks that the pins of two members of a sharding group leave a sharding for both."""
        pins = [[self.pins[self.root(self.numbers[value, dim])] for dim in range(value.type.rank)] for value in (one, other)]
        both = [a if b is None else b for a, b in zip(*pins)]
        axes = [part for pin in both for part in pin or ()]
        if len(set(axes)) < len(axes) or any(a is not None and a != b for a, b in zip(pins[0], both)):
            places = [self.place(value) for value in (other, one)]
            raise UserError(
                "two members of a sharding group are annotated with different shardings",
                where=" and ".join(places),
                why="a planner gives the members of a group one sharding, and none has the axes of both annotations",
                fix="annotate only one of them, or both in the same way",
            )

    def place(self, value: Value) -> str:
        """The place of a value in the user's code; the name of an argument."""
        op = value.defining_op
        return value.name or f"argument {value.index}" if op is None else location_of(self.program, op) or op.primitive or op.name

    def manual(self, op: Op) -> None:
        """A `shard_map`: what is inside stays as the user wrote it."""
        for value in op.operands:
            self.of(value)
        for value, sharding in zip(op.results, op.attributes["out_shardings"]):
            self.add(value, value.type.shape, sharding, pinned=True)
            self.fixed.add(value)

    def constraint(self, op: Op) -> None:
        """A constraint: its result keeps the user's sharding; open dimensions follow the operand."""
        result = op.result
        self.fixed.add(result)
        if self.annotations.freed and location_of(self.program, op) in self.annotations.freed:
            self.add(result, result.type.shape)
            return
        self.add(result, result.type.shape, stated(op))
        for dim in range(result.type.rank):
            if self.pins[self.numbers[result, dim]] is None:
                self.join((result, dim), (op.operands[0], dim))

    def loop(self, op: Op) -> None:
        """Joins the results of a loop and the arguments of its regions."""
        ends = op.regions[1].terminator.operands
        for i, result in enumerate(op.results):
            for region in op.regions:
                self.of(region.arguments[i])
                self.alike(region.arguments[i], result)
            self.made_for(op.operands[i], result)
        for region in op.regions:
            self.block(region)
            for end in region.terminator.operands:
                self.of(end)
        for end, result in zip(ends, op.results):
            self.made_for(end, result)

    def plain(self, op: Op) -> None:
        """Joins dimensions along the factors of an op that are a whole dimension wherever they are."""
        rule = rule_of(op)
        if rule is None or op.name in OPEN or op.name in WHOLE:
            return
        values = (*op.operands, *op.results)
        tensors = list(zip(values, rule.mappings))
        count = len(op.operands)
        for joined in (tensors[:count], tensors[count:]) if op.name in REDUCTIONS else (tensors,):
            first: dict[int, Dim] = {}
            for value, mapping in joined:
                if value in self.fixed:
                    if not _is_stack(op, value):
                        continue
                    self.keep_whole(value, op.result)
                for dim, factors in enumerate(mapping):
                    if len(factors) == 1 and value.type.shape[dim] > 1:
                        self.join((value, dim), first.setdefault(factors[0], (value, dim)))
        if count and _is_stack(op, op.operands[0]) and op.operands[0] in self.fixed:
            self.fixed.add(op.result)  # each layer may be gathered where it is used

    def keep_whole(self, stack: Value, part: Value) -> None:
        """Cuts no dimension of a stack along which a loop takes one part after the other, unless the user does."""
        for dim, size in enumerate(part.type.shape):
            root = self.root(self.numbers[stack, dim])
            if size < stack.type.shape[dim] and self.pins[root] is None:
                self.pins[root] = ()

    def ends(self) -> None:
        """Joins arguments of the function with the results that take their place."""
        end = self.program.main.body.terminator
        for number, value in enumerate(end.operands):
            self.of(value)
            self.made_for(value, number)
        for argument, result in self.annotations.alike:
            self.alike(self.program.main.arguments[argument], result)

    def space(self, resolution: Resolution | None) -> Space:
        """The classes."""
        resolution = resolution or resolutions(self.mesh)[0]
        numbers: dict[int, int] = {}
        roots = [self.root(number) for number in range(len(self.dims))]
        classes: dict[Value | int, tuple[int, ...]] = _Scalars()
        for (value, _), root in zip(self.dims, roots):
            classes[value] = (*classes[value], numbers.setdefault(root, len(numbers)))
        for value in (*self.program.main.arguments, *range(len(self.program.main.result_types))):
            classes.setdefault(value, ())
        strategies = [self.strategies(self.sizes[root], self.pins[root], resolution.cuts) for root in numbers]
        of_roots = [numbers[root] for root in roots]
        first = range(len(strategies)) if resolution.layers else representatives(self.program, classes, strategies)
        places = {c: place for place, c in enumerate(dict.fromkeys(first))}
        resolution = replace(resolution, layers=len(places) == len(strategies))
        if not resolution.layers:
            strategies = [strategies[c] for c in places]
            of_roots = [places[first[c]] for c in of_roots]
            classes = _Scalars({value: tuple(places[first[c]] for c in each) for value, each in classes.items()})
        members: list[list[Dim]] = [[] for _ in strategies]
        for dim, c in zip(self.dims, of_roots):
            members[c].append(dim)
        return Space(self.mesh, classes, tuple(strategies), tuple(map(tuple, members)), resolution)

    def strategies(self, size: int, pin: Axes | None, cuts: Cuts) -> tuple[Axes, ...]:
        """The axes that may cut a dimension: those of the sets that divide it, whole axes in mesh order."""
        if pin is not None:
            return (pin,)
        chosen: list[Axes] = []
        for names in cuts:
            axes = [axis for axis in self.mesh.axes if axis.name in names]
            if size % math.prod(axis.size for axis in axes) == 0:
                chosen.append(tuple(part for axis in axes for part in parts(AxisRef(axis.name), self.mesh)))
        return tuple(dict.fromkeys(chosen))


def _is_stack(op: Op, value: Value) -> bool:
    """Whether an op takes the part of one trip of a loop out of an argument of the function: as of a stack of layers.

    Such a stack stays as it is cut: in a space that may read it in another layout, all layers are gathered in front of the loop, since
    that takes as long as to gather each where it is used.
    """
    return op.name == SLICE and value.defining_op is None and any(each.name == WHILE for each in op.outward())


def _out_spec(result: Value) -> TensorSharding | None:
    """The `out_specs` of a result of the function that a `shard_map` makes; None of others.

    The user wrote them. With `check_vma=False` copies along other axes may even differ, and JAX returns those of these specs.
    """
    op = result.defining_op
    if op is None or op.name != MANUAL_COMPUTATION:
        return None
    return op.attributes["out_shardings"][op.results.index(result)]


class _Scalars(dict[Value | int, tuple[int, ...]]):
    """Classes by value; values without dimensions have none."""

    def __missing__(self, value: Value | int) -> tuple[int, ...]:
        return ()


def transferred(assignment: Sequence[int], source: tuple[Program, Space], target: tuple[Program, Space]) -> tuple[int, ...]:
    """The assignment that gives values the layouts of another one; values whose layout the space lacks are whole."""
    results = {number: number for number in range(len(target[0].main.result_types))}
    counterparts: dict[Value | int, Value | int] = {**dict(zip(values_of(target[0]), values_of(source[0]), strict=True)), **results}
    chosen: list[int] = []
    for strategies, members in zip(target[1].strategies, target[1].members):
        value, dim = members[0]
        axes = source[1].layout(counterparts[value], assignment)[dim]
        chosen.append(strategies.index(axes) if axes in strategies else 0)
    return tuple(chosen)


Shardings = Callable[[Value | int], TensorSharding]


def shardings_of(space: Space, assignment: Sequence[int], mesh_name: str) -> Shardings:
    """The sharding of each value, or result by its number, every dimension closed."""
    dims: dict[Axes, DimensionSharding] = {}
    shardings: dict[Layout, TensorSharding] = {}

    def sharding(value: Value | int) -> TensorSharding:
        layout = space.layout(value, assignment)
        if layout not in shardings:
            for axes in layout:
                if axes not in dims:
                    dims[axes] = DimensionSharding(merged(axes, space.mesh))
            shardings[layout] = TensorSharding(mesh_name, [dims[axes] for axes in layout])
        return shardings[layout]

    return sharding


def assign(program: Program, space: Space, sharding: Shardings, copies: Mapping[Value, Value]) -> None:
    """Sets the shardings of a program in place; those inside of a `shard_map` and on single devices stay."""
    main = program.main
    stays = {id(op) for outer in program.walk() if outer.name == MANUAL_COMPUTATION for region in outer.regions for op in region.walk()}
    values = [*main.arguments]
    for op in program.walk():
        if id(op) not in stays:
            values += op.results
            if op.name != MANUAL_COMPUTATION:
                values += [argument for region in op.regions for argument in region.arguments]
    for value in values:
        copy = copies.get(value)
        if copy is not None and (copy in space.classes or not value.type.rank):
            if value.sharding is None or not value.sharding.mesh_in(program.meshes).is_maximal:
                value.sharding = sharding(copy)
    main.result_shardings = [sharding(number) for number in range(len(main.result_types))]


def assigned(
    program: Program, mesh_name: str, mesh: Mesh, annotations: Annotations, resolution: Resolution, assignment: Sequence[int]
) -> None:
    """Sets the shardings of a program from an assignment of its space."""
    copy, copies = inlined(program)
    space = spaces_of(copy, mesh, annotations, groups_of(annotations, program, copies))(resolution)
    assign(program, space, shardings_of(space, assignment, mesh_name), copies)
