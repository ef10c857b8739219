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
from shardy_py.planner.following import Neighbours, computes
from shardy_py.planner.space import Annotations, Space


@dataclass(frozen=True)
class Template:
    """Strategies of the classes of arguments.

    Attributes:
        name: For people to read.
        strategies: Class -> number of its strategy.
        carried: The classes whose strategies what is made of parameters follows too; it is whole along all others, however the
            parameters themselves are cut. None: all.
    """

    name: str
    strategies: Mapping[int, int]
    carried: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class UserTemplate:
    """A template of the user's.

    Attributes:
        name: Its name.
        shardings: Of each argument of the function; None where the template leaves it open.
        inside: Values of the planned program, and a sharding for each, which counts as far as the space and earlier ones allow.
    """

    name: str
    shardings: tuple[TensorSharding | None, ...]
    inside: tuple[tuple[Value, TensorSharding], ...] = ()


HINT = "constraints as written"
"""The name of the template that has the user's constraints on values inside."""


def in_space(template: UserTemplate, program: Program, space: Space, paths: Sequence[str], copies: Mapping[Value, Value]) -> Template:
    """Strategies of a user's template in a search space.

    Args:
        template: The template.
        program: The program.
        space: Its search space.
        paths: Names of the arguments.
        copies: Values of the planned program -> those of this one.

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
    for value, sharding in template.inside:
        classes = space.classes.get(copies.get(value, value), ())
        layout = layout_of(sharding, len(classes), space.mesh)
        stated = [(c, axes) for c, axes, dim in zip(classes, layout, sharding.dims) if axes or dim.is_closed]
        choices = {c: space.strategies[c].index(axes) for c, axes in stated if axes in space.strategies[c]}
        if len(choices) == len(stated) and all(strategies.get(c, s) == s for c, s in choices.items()):
            strategies.update(choices)
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


def templates(program: Program, space: Space, annotations: Annotations, neighbours: Neighbours) -> tuple[Template, ...]:
    """The built-in templates, each once.

    Args:
        program: The program.
        space: Its search space.
        annotations: The user's; pairs of arguments and results tell parameters from data.
        neighbours: As of `neighbours_of`.
    """
    roles = _roles(program, annotations)
    distinct: dict[tuple[tuple[int, int], ...], Template] = {}
    features = _features(space, roles, neighbours)
    for name, strategies in _built_in(space, roles, features):
        whole = {c: 0 for argument in program.main.arguments for c in space.classes[argument] if len(space.strategies[c]) > 1}
        complete = {**whole, **strategies}
        distinct.setdefault(tuple(sorted(complete.items())), Template(name, complete, features))
    return tuple(distinct.values())


def _built_in(space: Space, roles: _Roles, features: Sequence[int]) -> Iterator[tuple[str, dict[int, int]]]:
    """Data parallel, with state or all parameters sharded, over all axes but those over which features are cut."""
    names = [axis.name for axis in space.mesh.axes if axis.size > 1]
    yield "whole", {}
    for tensor in _subsets(names) if features else ((),):
        rest = [name for name in names if name not in tensor]
        behind = f"tensor parallel over {' and '.join(tensor)}" if tensor else ""
        columns = _cut_features(space, features, _axes(tensor, space))
        if tensor and not columns:
            continue
        batch = _cut(space, roles.batch, _axes(rest, space), columns, first=True)
        if not rest:
            yield behind, batch
            continue
        replicated = [(f"data parallel over {' and '.join(rest)}", ())]
        sharded = [(f"fully sharded over {' and '.join(some)}", some) for some in reversed(_subsets(rest)[1:])]
        for name, some in (*replicated, *sharded):
            strategies = _cut(space, (*roles.parameters, *roles.state), _axes(some, space), batch)
            yield f"{name}, {behind}" if behind else name, strategies
        if roles.state and not tensor:
            name = f"optimizer state sharded over {' and '.join(rest)}"
            yield name, _cut(space, roles.state, _axes(rest, space), _cut(space, roles.parameters, (), batch))


def _subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """All subsets, small ones first."""
    return [some for count in range(len(names) + 1) for some in itertools.combinations(names, count)]


def _axes(names: Sequence[str], space: Space) -> Axes:
    return tuple(part for name in names for part in parts(AxisRef(name), space.mesh))


def _roles(program: Program, annotations: Annotations) -> _Roles:
    handed_on = {argument for argument, _ in annotations.alike}
    arguments = program.main.arguments
    carried = [a for i, a in enumerate(arguments) if i in handed_on]
    state = tuple(a for a in carried if a.uses and not computes(a))
    batch = tuple(a for i, a in enumerate(arguments) if i not in handed_on)
    return _Roles(batch, tuple(a for a in carried if a not in state), state)


def _features(space: Space, roles: _Roles, neighbours: Neighbours) -> tuple[int, ...]:
    """The classes that tensor parallelism cuts: of each parameter at most one dimension, which the op behind it sums over.

    Dimensions that ops relate are one feature. Those of the data, and one that most parameters have, as the width of a residual stream,
    stay whole.
    """
    feature = _connected(neighbours)
    owners: dict[int, int] = {}
    for value in roles.parameters:
        for each in {feature[c] for c in space.classes[value]}:
            owners[each] = owners.get(each, 0) + 1
    most = max(owners.values(), default=0)
    whole = {feature[c] for value in roles.batch for c in space.classes[value]}
    whole |= {each for each, count in owners.items() if count == most and count > max(2, len(roles.parameters) / 2)}
    cut: set[int] = set()
    for value in roles.parameters:
        if value.type.rank > 1 and not any(feature[c] in cut for c in space.classes[value]):
            free = [feature[c] for c in space.classes[value] if feature[c] not in whole and len(space.strategies[c]) > 1]
            cut.update(free[:1])
        whole.update(feature[c] for c in space.classes[value] if feature[c] not in cut)
    classes: dict[int, None] = {}
    for value in (*roles.parameters, *roles.state):
        classes.update(dict.fromkeys([c for c in space.classes[value] if feature[c] in cut and len(space.strategies[c]) > 1][:1]))
    return tuple(classes)


def _connected(neighbours: Neighbours) -> list[int]:
    """Per class, the first of those that ops relate it to."""
    first = [-1] * len(neighbours)
    for c in range(len(neighbours)):
        waiting = [c] if first[c] < 0 else []
        while waiting:
            each = waiting.pop()
            if first[each] < 0:
                first[each] = c
                waiting += neighbours[each]
    return first


def _cut_features(space: Space, features: Sequence[int], axes: Axes) -> dict[int, int]:
    return {c: space.strategies[c].index(axes) for c in features if axes and axes in space.strategies[c]}


def _cut(space: Space, values: Sequence[Value], axes: Axes, strategies: Mapping[int, int], *, first: bool = False) -> dict[int, int]:
    """Strategies with some values cut as well, each along its longest dimension that the axes, or most of them, divide, or its first one.

    Classes that have a strategy keep it.
    """
    chosen = dict(strategies)
    for value in values:
        classes, shape = space.classes[value], value.type.shape
        used = {part for c in classes if c in chosen for part in space.strategies[c][chosen[c]]}
        order = classes if first else [classes[dim] for dim in sorted(range(len(classes)), key=lambda dim: (-shape[dim], dim))]
        pieces: dict[tuple[int, int], int] = {}
        for c in order if used.isdisjoint(axes) else ():
            if c not in chosen:
                some = {s: each for s, each in enumerate(space.strategies[c]) if each and set(each) <= set(axes)}
                pieces |= {(c, s): math.prod(part.size_in(space.mesh) for part in each) for s, each in some.items()}
            if first and pieces:
                break
        if pieces:
            c, strategy = max(pieces, key=lambda choice: pieces[choice])
            chosen[c] = strategy
        for c in classes:
            chosen.setdefault(c, 0)
    return {c: s for c, s in chosen.items() if len(space.strategies[c]) > 1}
