"""Plans that experts write: starting points of the search, and alternatives beside its result.

A template shards the arguments of the function: the batch, parameters and optimizer state, by roles that are read off the program.
What they leave open follows along the factors of ops.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.dialect.axis import Axes
from shardy_py.errors import UserError
from shardy_py.ir import Op, Program, Value
from shardy_py.partition.layouts import layout_of, parts
from shardy_py.passes.dataflow import WHILE
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.feeding import Feeding
from shardy_py.planner.space import SLICE, Annotations, Space
from shardy_py.rules import rule_of
from shardy_py.rules.traits import ELEMENTWISE

Neighbours = Sequence[Sequence[int]]
"""Per class, the classes that an op with one factor along both reads or makes."""


@dataclass(frozen=True)
class Template:
    """Strategies of the classes of arguments.

    Attributes:
        carried: The classes whose strategies what is made of parameters follows too; it is whole along all others, however the
            parameters themselves are cut. None: all.
        partly: Whether classes follow along the axes that others of their values leave, where some are taken.
    """

    name: str
    strategies: Mapping[int, int]
    carried: tuple[int, ...] | None = None
    partly: bool = False


@dataclass(frozen=True, eq=False)
class UserTemplate:
    """A template of the user's.

    Attributes:
        inside: Values of the planned program, and a sharding for each, which counts where the space and earlier ones allow it.
    """

    name: str
    shardings: tuple[TensorSharding | None, ...]
    inside: tuple[tuple[Value, TensorSharding], ...] = ()


HINT = "constraints as written"
"""The name of the template that has the user's constraints on values inside."""


def in_space(template: UserTemplate, program: Program, space: Space, paths: Sequence[str], copies: Mapping[Value, Value]) -> Template:
    """Strategies of a user's template in a search space; raises UserError if the space has no such plans."""
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
    """Arguments by role: of a step's data, of parameters, and of state that it only updates, such as moments.

    Attributes:
        whole: Features of the data that no template cuts; a cache may well be cut by its heads.
        beside: Classes of parameters that values have beside the batch, such as the width of a stream, which is its gain's as well.
    """

    batch: tuple[Value, ...]
    whole: frozenset[int]
    parameters: tuple[Value, ...]
    state: tuple[Value, ...]
    beside: frozenset[int]


def templates(
    program: Program, space: Space, annotations: Annotations, neighbours: Neighbours, batch: Sequence[Value]
) -> tuple[Template, ...]:
    """The built-in templates, each once."""
    feature = _connected(neighbours)
    roles = _roles(program, space, annotations, feature, batch)
    distinct: dict[tuple[tuple[int, int], ...], Template] = {}
    features = _features(space, roles, feature)
    experts = _experts(program, space, roles, feature)
    other = _features(space, roles, feature, frozenset(feature[c] for c in experts)) if experts else ()
    built_in = (
        *((each, features, False) for each in _built_in(space, roles, features)),
        *((each, (*other, *experts), True) for each in _of_experts(space, roles, other, experts)),
    )
    for (name, strategies), carried, partly in built_in:
        whole = {c: 0 for argument in program.main.arguments for c in space.classes[argument] if len(space.strategies[c]) > 1}
        complete = {**whole, **strategies}
        distinct.setdefault(tuple(sorted(complete.items())), Template(name, complete, carried, partly))
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
            strategies = _cut(space, (*roles.parameters, *roles.state), _axes(some, space), batch, roles.beside)
            yield f"{name}, {behind}" if behind else name, strategies
        if roles.state and not tensor:
            name = f"optimizer state sharded over {' and '.join(rest)}"
            yield name, _cut(space, roles.state, _axes(rest, space), _cut(space, roles.parameters, (), batch), roles.beside)


def _of_experts(space: Space, roles: _Roles, features: Sequence[int], experts: Sequence[int]) -> Iterator[tuple[str, dict[int, int]]]:
    """Experts over some axes, features over others, the batch over all but these, and parameters whole or over what is left."""
    names = [axis.name for axis in space.mesh.axes if axis.size > 1]
    for tensor, owners in itertools.product(_subsets(names), _subsets(names)[1:] if experts else ()):
        columns = _cut_features(space, features, _axes(tensor, space))
        matrices = _cut_features(space, experts, _axes(owners, space))
        if not matrices or (tensor and not columns) or set(tensor) & set(owners):
            continue
        rest = _axes([name for name in names if name not in tensor], space)
        batch = _cut(space, roles.batch, rest, {**columns, **matrices}, first=True)
        behind = f", tensor parallel over {' and '.join(tensor)}" if tensor else ""
        parameters = (*roles.parameters, *roles.state)
        yield f"experts over {' and '.join(owners)}{behind}", _cut(space, parameters, (), batch)
        yield f"experts over {' and '.join(owners)}, the rest fully sharded{behind}", _cut(space, parameters, rest, batch, roles.beside)


def _experts(program: Program, space: Space, roles: _Roles, feature: Sequence[int]) -> tuple[int, ...]:
    """The classes of experts: of dimensions along which products with parameters, and products of their size, are batched."""
    arguments = (*roles.parameters, *roles.state)
    weights = {c for value in arguments for c in space.classes[value]} | set(copies_of(roles.parameters, space))
    batched: dict[int, bool] = {}
    for op in program.walk():
        if op.name == "stablehlo.dot_general":
            sides = (*op.operands, op.result)
            dims = (op.attributes["lhs_batching_dimensions"], op.attributes["rhs_batching_dimensions"])
            is_of_weights = any(all(c in weights for c in space.classes[value]) for value in op.operands)
            for place, pair in enumerate(zip(*dims, strict=True)):
                for value, dim in zip(sides, (*pair, place)):
                    batched[space.classes[value][dim]] = batched.get(space.classes[value][dim], False) or is_of_weights
    experts = {feature[c] for c, is_of_weights in batched.items() if is_of_weights}
    experts -= roles.whole
    own = [c for value in arguments for c in space.classes[value] if feature[c] in experts]
    return tuple(c for c in dict.fromkeys([*own, *batched]) if feature[c] in experts and len(space.strategies[c]) > 1)


def _subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """All subsets, small ones first."""
    return [some for count in range(len(names) + 1) for some in itertools.combinations(names, count)]


def _axes(names: Sequence[str], space: Space) -> Axes:
    return tuple(part for name in names for part in parts(AxisRef(name), space.mesh))


def batch_of(program: Program, space: Space, annotations: Annotations, neighbours: Neighbours, feeding: Feeding) -> tuple[Value, ...]:
    """The arguments that are a step's data: those that are fed.

    Where nothing is, arguments are on the devices already, as in inference: data are those with the first dimension of a result that
    replaces no argument, such as tokens and a cache beside logits. Where there is none, all that no step hands to the next.
    """
    arguments = program.main.arguments
    if feeding.arguments:
        return tuple(arguments[n] for n in feeding.arguments)
    feature = _connected(neighbours)
    leading = _leading(program, space, annotations, feature)
    handed_on = {argument for argument, _ in annotations.alike}
    batch = tuple(a for a in arguments if any(feature[c] in leading for c in space.classes[a]))
    return batch or tuple(a for i, a in enumerate(arguments) if i not in handed_on)


def _leading(program: Program, space: Space, annotations: Annotations, feature: Sequence[int]) -> set[int]:
    """The features of the first dimensions of results that replace no argument."""
    replacing = {result for _, result in annotations.alike}
    results = (space.classes[n] for n in range(len(program.main.result_types)) if n not in replacing)
    return {feature[classes[0]] for classes in results if classes and len(space.strategies[classes[0]]) > 1}


def _roles(program: Program, space: Space, annotations: Annotations, feature: Sequence[int], batch: Sequence[Value]) -> _Roles:
    handed_on = {argument for argument, _ in annotations.alike}
    arguments = program.main.arguments
    data = set(batch)
    state = tuple(a for i, a in enumerate(arguments) if i in handed_on and a not in data and a.uses and not computes(a))
    parameters = tuple(a for a in arguments if a not in data and a not in state)
    whole = {feature[c] for i, a in enumerate(arguments) if a in data and i not in handed_on for c in space.classes[a]}
    rows = {feature[space.classes[a][0]] for a in batch if space.classes[a]}
    classes = {c for a in (*parameters, *state) for c in space.classes[a]}
    beside = {c for c in classes for value, _ in space.members[c] if any(feature[each] in rows for each in space.classes[value])}
    return _Roles(tuple(batch), frozenset(whole | _leading(program, space, annotations, feature)), parameters, state, frozenset(beside))


def _features(space: Space, roles: _Roles, feature: Sequence[int], experts: frozenset[int] = frozenset()) -> tuple[int, ...]:
    """The classes that tensor parallelism cuts: of each parameter at most one dimension, which the op behind it sums over.

    Dimensions that ops relate are one feature. Those of the data, and one that most parameters have, as the width of a residual stream,
    stay whole, and so do features of experts.
    """
    owners: dict[int, int] = {}
    for value in roles.parameters:
        for each in {feature[c] for c in space.classes[value]}:
            owners[each] = owners.get(each, 0) + 1
    most = max(owners.values(), default=0)
    whole = set(roles.whole | experts)
    whole |= {each for each, count in owners.items() if count == most and count > max(2, len(roles.parameters) / 2)}
    cut: set[int] = set()
    for value in roles.parameters:
        if value.type.rank > 1 and not any(feature[c] in cut for c in space.classes[value]):
            free = [feature[c] for c in space.classes[value] if feature[c] not in whole and len(space.strategies[c]) > 1]
            cut.update(free[:1])
        whole.update(feature[c] for c in space.classes[value] if feature[c] not in cut)
    classes: dict[int, None] = {}
    for value in (*roles.parameters, *roles.state, *roles.batch):
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


def _cut(
    space: Space, values: Sequence[Value], axes: Axes, strategies: Mapping[int, int], whole: Collection[int] = (), *, first: bool = False
) -> dict[int, int]:
    """Strategies with some values cut as well, each along its longest dimension that the axes, or most of them, divide, or its first one.

    Classes that have a strategy keep it, and some stay whole.
    """
    chosen = dict(strategies)
    for value in values:
        classes, shape = space.classes[value], value.type.shape
        used = {part for c in classes if c in chosen for part in space.strategies[c][chosen[c]]}
        order = classes if first else [classes[dim] for dim in sorted(range(len(classes)), key=lambda dim: (-shape[dim], dim))]
        pieces: dict[tuple[int, int], int] = {}
        for c in order:
            if c not in chosen and c not in whole:
                some = {s: each for s, each in enumerate(space.strategies[c]) if each and set(each) <= set(axes) - used}
                pieces |= {(c, s): math.prod(part.size_in(space.mesh) for part in each) for s, each in some.items()}
            if first and pieces:
                break
        if pieces:
            c, strategy = max(pieces, key=lambda choice: pieces[choice])
            chosen[c] = strategy
        for c in classes:
            chosen.setdefault(c, 0)
    return {c: s for c, s in chosen.items() if len(space.strategies[c]) > 1}


def neighbours_of(program: Program, space: Space) -> Neighbours:
    """The classes next to each."""
    neighbours: list[dict[int, None]] = [{} for _ in space.strategies]
    end = program.main.body.terminator
    results = [tuple(zip(space.classes[value], space.classes[number])) for number, value in enumerate(end.operands)]
    for pairs in (*(_pairs(op, space) for op in program.walk()), *results):
        for one, other in pairs:
            if one != other:
                neighbours[one][other] = neighbours[other][one] = None
    return tuple(map(tuple, neighbours))


def _pairs(op: Op, space: Space) -> Iterator[tuple[int, int]]:
    """Pairs of different classes that share a factor of an op, of a dimension that it merges or splits the first one."""
    if op.name == WHILE:
        for operand, result, end in zip(op.operands, op.results, op.regions[1].terminator.operands):
            yield from zip(space.classes[operand], space.classes[result])
            yield from zip(space.classes[end], space.classes[result])
    rule = None if op.regions else rule_of(op)
    if rule is None:
        return
    first: dict[int, int] = {}
    for value, mapping in zip((*op.operands, *op.results), rule.mappings):
        for c, factors in zip(space.classes[value], mapping):
            if factors:
                yield first.setdefault(factors[0], c), c


def computes(value: Value) -> bool:
    """Whether a value, or what ops of one operand make of it, as in another precision, is read by more than elementwise ops."""
    waiting = [value]
    while waiting:
        for op, _ in waiting.pop().uses:
            if op.name not in ELEMENTWISE:
                return True
            if len(op.operands) == 1:
                waiting.append(op.result)
    return False


def copies_of(arguments: Iterable[Value], space: Space) -> tuple[int, ...]:
    """The classes of what a step computes with of some arguments, such as a layer of a stack, or a value in another precision."""
    waiting, copies = list(arguments), dict[int, None]()
    own = {c for argument in waiting for c in space.classes[argument]}
    while waiting:
        for op, number in waiting.pop().uses:
            if number == 0 and (len(op.operands) == 1 or op.name == SLICE) and len(op.results) == 1 and computes(op.result):
                copies.update(dict.fromkeys(space.classes[op.result]))
                waiting.append(op.result)
    return tuple(c for c in copies if c not in own)


def followed(
    space: Space,
    neighbours: Neighbours,
    strategies: Mapping[int, int],
    order: Iterable[int],
    whole: Iterable[int],
    rest: Iterable[int],
    *,
    partly: bool = False,
) -> tuple[int, ...]:
    """The strategy of each class where some are stated and the others follow, unless a value would have an axis twice.

    Args:
        order: Classes whose strategies are carried on, the first to its end before the next.
        whole: Classes that stay whole where none of these reach them.
    """
    chosen = [strategies.get(c, 0 if len(each) == 1 else -1) for c, each in enumerate(space.strategies)]

    def left(c: int, axes: Axes) -> Axes:
        others = {other for value, _ in space.members[c] for other in space.classes[value]} - {c}
        taken = {axis for other in others if chosen[other] >= 0 for axis in space.strategies[other][chosen[other]]}
        free = tuple(axis for axis in axes if axis not in taken)
        return free if partly or free == axes else ()

    def carry(origin: int) -> None:
        waiting = deque((origin,))
        while waiting:
            c = waiting.popleft()
            axes = space.strategies[c][chosen[c]] if chosen[c] >= 0 else ()
            for other in neighbours[c] if axes else ():
                if chosen[other] < 0 and (free := left(other, axes)) and free in space.strategies[other]:
                    chosen[other] = space.strategies[other].index(free)
                    waiting.append(other)

    for c in order:
        carry(c)
    for c in whole:
        chosen[c] = max(chosen[c], 0)
    for c in rest:
        carry(c)
    return tuple(max(strategy, 0) for strategy in chosen)
