"""A program under an assignment: every value with the sharding of its classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shardy_py.dialect import DimensionSharding, Mesh, TensorSharding
from shardy_py.dialect.axis import Axes, merged
from shardy_py.ir import Program, Value
from shardy_py.partition.layouts import Layout
from shardy_py.passes.dataflow import MANUAL_COMPUTATION
from shardy_py.plan.prediction.loops import as_xla_inlines
from shardy_py.planner.space import Annotations, Resolution, Space, groups_of, space_of

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
    """Sets the shardings of a program to those of an assignment of its space."""
    copy, _, copies = as_xla_inlines(program)
    space = space_of(copy, mesh, annotations, resolution, groups_of(annotations, program, copies))
    assign(program, space, shardings_of(space, assignment, mesh_name), copies)
