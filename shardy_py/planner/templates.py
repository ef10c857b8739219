"""Plans that experts write: starting points of the search, and alternatives beside its result.

A template shards the arguments of the function: the batch, parameters and optimizer state, by roles that are read off the program.
Everything else follows by the search.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.dialect.axis import Axes
from shardy_py.errors import UserError
from shardy_py.ir import Program, Value
from shardy_py.partition.layouts import layout_of, parts
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.planner.space import Annotations, Space
from shardy_py.rules.traits import ELEMENTWISE


@dataclass(frozen=True)
class Template:
    """Strategies of the classes of arguments.

    Attributes:
        name: For people to read.
        strategies: Class -> number of its strategy.
    """

    name: str
    strategies: Mapping[int, int]


@dataclass(frozen=True, eq=False)
class UserTemplate:
    """A template of the user's.

    Attributes:
        name: Its name.
        shardings: Of each argument of the function; None where the template leaves it open.
    """

    name: str
    shardings: tuple[TensorSharding | None, ...]


def in_space(template: UserTemplate, program: Program, space: Space, paths: Sequence[str]) -> Template:
    """Strategies of a user's template in a search space.

    Args:
        template: The template.
        program: The program.
        space: Its search space.
        paths: Names of the arguments.

    Raises:
        UserError: The space has no such plans.
    """
    strategies: dict[int, int] = {}
    for argument, sharding, path in zip(program.main.arguments, template.shardings, paths, strict=True):
        if sharding is None:
            continue
        layout = layout_of(sharding, argument.type.rank, space.mesh)
        for dim, (c, axes) in enumerate(zip(space.classes[argument], layout)):
            if not axes and not sharding.dims[dim].is_closed:
                continue
            choices = space.strategies[c]
            if axes not in choices or strategies.setdefault(c, choices.index(axes)) != choices.index(axes):
                raise UserError(
                    f"template {template.name!r} shards {path} as {sharding_text(sharding)}, and this search has no such plan",
                    where="Planner(templates=...)",
                    why=f"an annotation or another argument of the template pins dimension {dim}, or the axes do not divide it",
                    fix=f"write P.UNCONSTRAINED for dimension {dim}, which the search then completes, or drop the annotation",
                )
    return Template(template.name, {c: s for c, s in strategies.items() if len(space.strategies[c]) > 1})


@dataclass(frozen=True)
class _Roles:
    """Arguments by role.

    Attributes:
        batch: Arguments that a step is fed with.
        parameters: Arguments that it hands to the next one and computes with.
        state: Arguments that it hands to the next one and only updates: moments of optimizers.
    """

    batch: tuple[Value, ...]
    parameters: tuple[Value, ...]
    state: tuple[Value, ...]


def templates(program: Program, space: Space, annotations: Annotations) -> tuple[Template, ...]:
    """The built-in templates, each once.

    Args:
        program: The program.
        space: Its search space.
        annotations: The user's; pairs of arguments and results tell parameters from data.
    """
    roles = _roles(program, annotations)
    distinct: dict[tuple[tuple[int, int], ...], Template] = {}
    for name, strategies in _built_in(space, roles):
        distinct.setdefault(tuple(sorted(strategies.items())), Template(name, strategies))
    return tuple(distinct.values())


def _built_in(space: Space, roles: _Roles) -> Iterator[tuple[str, dict[int, int]]]:
    names = [axis.name for axis in space.mesh.axes if axis.size > 1]
    everything = (*roles.batch, *roles.parameters, *roles.state)
    yield "whole", _cut(space, everything, (), {})
    for count in range(len(names), 0, -1):
        for some in itertools.combinations(names, count):
            axes = tuple(part for name in some for part in parts(AxisRef(name), space.mesh))
            over = " and ".join(some)
            batch = _cut(space, roles.batch, axes, {}, first=True)
            whole = _cut(space, (*roles.parameters, *roles.state), (), batch)
            yield f"data parallel over {over}", whole
            if roles.state:
                yield f"optimizer state sharded over {over}", _cut(space, roles.state, axes, _cut(space, roles.parameters, (), batch))
            if roles.parameters or roles.state:
                yield f"fully sharded over {over}", _cut(space, (*roles.parameters, *roles.state), axes, batch)


def _roles(program: Program, annotations: Annotations) -> _Roles:
    handed_on = {argument for argument, _ in annotations.alike}
    arguments = program.main.arguments
    carried = [a for i, a in enumerate(arguments) if i in handed_on]
    state = tuple(a for a in carried if a.uses and not _computes(a))
    batch = tuple(a for i, a in enumerate(arguments) if i not in handed_on)
    return _Roles(batch, tuple(a for a in carried if a not in state), state)


def _computes(value: Value) -> bool:
    """Whether a value, or what ops of one operand make of it, as in another precision, is read by more than elementwise ops."""
    waiting = [value]
    while waiting:
        for op, _ in waiting.pop().uses:
            if op.name not in ELEMENTWISE:
                return True
            if len(op.operands) == 1:
                waiting.append(op.result)
    return False


def _cut(space: Space, values: Sequence[Value], axes: Axes, strategies: Mapping[int, int], *, first: bool = False) -> dict[int, int]:
    """Strategies with some values cut over axes as well, each along its longest dimension that they divide, or its first one.

    Classes that have a strategy keep it.
    """
    chosen = dict(strategies)
    for value in values:
        classes, shape = space.classes[value], value.type.shape
        used = {part for c in classes if c in chosen for part in space.strategies[c][chosen[c]]}
        order = range(len(classes)) if first else sorted(range(len(classes)), key=lambda dim: (-shape[dim], dim))
        placed = bool(used & set(axes)) or not axes
        for dim in order:
            c = classes[dim]
            if c not in chosen and not placed and axes in space.strategies[c] and len(space.strategies[c]) > 1:
                chosen[c], placed = space.strategies[c].index(axes), True
                if first:
                    break
        for c in classes:
            chosen.setdefault(c, 0)
    return {c: s for c, s in chosen.items() if len(space.strategies[c]) > 1}


def size_of(value: Value) -> int:
    """Elements of a value."""
    return math.prod(value.type.shape)
