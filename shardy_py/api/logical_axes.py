"""Logical axis names of Flax: parameters that say what their dimensions are called, and rules from these names to mesh axes.

A box of Flax Linen (`nn.with_partitioning`, `nn.with_logical_partitioning`) or a variable of NNX names the dimensions of its array. Rules
are pairs of a name and mesh axes, in order, as in Flax: of several for one name the first counts whose axes no other dimension of the array
has. Where Flax leaves a dimension whole without a word, because it has no rule or every axis is taken, this is an error. Flax is not
imported; where no one has imported it, there are no names.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardy_py.api.calls import UserCall
from shardy_py.api.meshes import MeshView
from shardy_py.api.name_rules import Annotated, Proposal, pairs_of, parameters_of, rule_paths, sharding_by
from shardy_py.api.specs import check_spec
from shardy_py.api.trees import Leaf
from shardy_py.errors import SpecError, did_you_mean
from shardy_py.ir import Program
from shardy_py.plan.findings import Finding
from shardy_py.rules.traits import CONSTRAINTS

LogicalRule = tuple[str, tuple[str, ...]]
LogicalAxisRules = Mapping[str, str | Sequence[str] | None] | Sequence[tuple[str, str | Sequence[str] | None]]

ARGUMENT = "logical_axis_rules"


@dataclass(frozen=True)
class AxisNames:
    """The logical axes of an array's dimensions.

    Attributes:
        dims: The names of each dimension; None of one that is to stay whole, `P.UNCONSTRAINED` of one that is left open.
    """

    dims: tuple[Any, ...]
    rules: tuple[LogicalRule, ...] = ()

    def __str__(self) -> str:
        return str(self.dims)


def check_logical_rules(rules: object) -> tuple[LogicalRule, ...] | None:
    """The rules as pairs of a name and a tuple of mesh axes, empty for None; raises SpecError for anything else.

    Example:
        >>> check_logical_rules([("batch", ["data", "fsdp"]), ("mlp", "model"), ("head", None)])
        (('batch', ('data', 'fsdp')), ('mlp', ('model',)), ('head', ()))
    """
    return None if rules is None else tuple(_checked(pair, i) for i, pair in enumerate(pairs_of(rules)))


def _checked(pair: object, number: int) -> LogicalRule:
    if isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str):
        axes = pair[1]
        names = () if axes is None else (axes,) if isinstance(axes, str) else axes
        if isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names):
            return pair[0], tuple(names)
    raise SpecError(
        f"{ARGUMENT}: {pair!r} is not a rule",
        where=f"{ARGUMENT}[{number}]",
        why="a rule is a pair of a logical name and a mesh axis, several of them, or None for a dimension that stays whole",
        fix='write logical_axis_rules=[("batch", ("data", "fsdp")), ("mlp", "model"), ("embed", None)]',
    )


def axis_names(tree: object) -> list[AxisNames | None]:
    """The logical axes of each leaf of a tree."""
    linen, nnx = sys.modules.get("flax.linen"), sys.modules.get("flax.nnx")
    boxes = (*(() if linen is None else (linen.Partitioned,)), *(() if nnx is None else (nnx.Variable,)))
    if not boxes:
        return [None] * jax.tree.structure(tree).num_leaves
    names: list[AxisNames | None] = []
    for node in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, boxes)):
        names += [_of_box(node)] * jax.tree.structure(node).num_leaves if isinstance(node, boxes) else [None]
    return names


def _of_box(box: Any) -> AxisNames | None:
    read = getattr(box, "get_metadata", None)
    metadata = {"out_sharding": box.names, "sharding_rules": getattr(box, "rules", None)} if read is None else read()
    names = next((metadata[key] for key in ("out_sharding", "sharding_names", "sharding") if metadata.get(key)), None)
    spec = getattr(names, "spec", names)  # a variable may have a NamedSharding, too
    dims = spec.partitions if isinstance(spec, PartitionSpec) else spec
    if not isinstance(dims, (tuple, list)) or not dims:
        return None
    return AxisNames(tuple(dims), check_logical_rules(metadata.get("sharding_rules")) or ())


def spec_of(names: AxisNames, rules: Sequence[LogicalRule], view: MeshView, leaf: Leaf, location: str) -> PartitionSpec:
    """The `PartitionSpec` that rules make of the names of an array's dimensions.

    A name without a rule may be a mesh axis itself. Raises SpecError if there is not a rule for a name, or another dimension has the axes
    of all rules for it.
    """
    pairs = [
        *((name, axes, f"{ARGUMENT}[{i}]") for i, (name, axes) in enumerate(rules)),
        *((*r, "a rule of the array") for r in names.rules),
    ]
    places = [(d, name) for d, entry in enumerate(names.dims) for name in _parts(entry)]
    ruled = {name for name, _, _ in pairs}
    pairs += [(name, (name,), "the mesh axis") for _, name in places if name not in ruled and name in view.sizes]
    chosen: dict[tuple[int, str], tuple[tuple[str, ...], str]] = {}
    owners: dict[str, str] = {}
    for name, axes, source in pairs:
        for place in places:
            if place[1] == name and place not in chosen and not any(axis in owners for axis in axes):
                text = f"{source} ({name!r}, {_axes_text(axes)}) on dimension {place[0]}"
                chosen[place] = axes, text
                owners.update(dict.fromkeys(axes, text))
    for place in places:
        if place not in chosen:
            raise _no_axes(place, pairs, owners, f"{leaf} named {names}, {location}")
    dims: list[Any] = []
    for d, entry in enumerate(names.dims):
        axes = tuple(axis for name in _parts(entry) for axis in chosen[d, name][0])
        dims.append(entry if entry is PartitionSpec.UNCONSTRAINED else axes if len(axes) > 1 else next(iter(axes), None))
    return PartitionSpec(*dims)


def rules_of(arrays: Sequence[tuple[str, AxisNames, PartitionSpec]], own: Sequence[LogicalRule]) -> tuple[LogicalRule, ...]:
    """The rules, in order, that give arrays the specs that they have; those of `own` for names that no array has.

    A rule may come next if every array that it would apply to then has its axes there. Raises SpecError if there are none.

    Example:
        >>> specs = ("w", AxisNames(("embed", "mlp")), PartitionSpec("model")), ("v", AxisNames(("mlp", "embed")), PartitionSpec("model"))
        >>> rules_of((specs[0], ("b", AxisNames(("mlp",)), PartitionSpec())), ())
        (('embed', ('model',)), ('mlp', ()))
    """
    left = [
        {
            name: () if axes is None else axes if isinstance(axes, tuple) else (axes,)
            for name, axes in zip(n.dims, [*spec, *[None] * len(n.dims)])
        }
        for _, n, spec in arrays
    ]
    left = [{name: axes for name, axes in each.items() if isinstance(name, str)} for each in left]
    taken: list[set[str]] = [set() for _ in arrays]
    rules: list[LogicalRule] = []
    while waiting := dict.fromkeys((name, axes) for each in left for name, axes in each.items()):
        applied = {rule: [i for i, each in enumerate(left) if rule[0] in each and taken[i].isdisjoint(rule[1])] for rule in waiting}
        rule = next((rule for rule, numbers in applied.items() if all(left[i][rule[0]] == rule[1] for i in numbers)), None)
        if rule is None:
            (name, axes), (i, *_) = next(iter(applied.items()))
            other = next(i for i in applied[name, axes] if left[i][name] != axes)
            first = next(k for k, each in enumerate(left) if each.get(name) == axes)
            raise SpecError(
                f"no rules give {arrays[first][0]} and {arrays[other][0]} the plan's shardings",
                where="Plan.as_code",
                why=f"{name!r} is {_axes_text(axes)} in the one and {_axes_text(left[other][name])} in the other",
                fix='give their dimensions different names, or use style="constraints"',
            )
        rules.append(rule)
        for i in applied[rule]:
            taken[i].update(left[i].pop(rule[0]))
    return (*rules, *(rule for rule in own if rule[0] not in {name for name, _ in rules}))


def by_axis_names(
    rules: Sequence[LogicalRule], leaves: Sequence[Leaf], names: Sequence[AxisNames | None], call: UserCall
) -> Iterator[Proposal]:
    """The shardings that follow from names of dimensions.

    Raises SpecError if there are no axes for a name, or they do not fit the array.
    """
    for i, (name, axes) in enumerate(rules):
        check_spec(PartitionSpec(axes), call.view, f"{ARGUMENT}[{i}] ({name!r})", call.location)
    parameters = parameters_of(leaves, rule_paths(leaves)) if any(names) else []
    for i, (leaf, named) in enumerate(zip(leaves, names, strict=True)):
        if named is None:
            continue
        number = parameters[i]
        parameter = None if number is None or names[number] != named else leaves[number]
        owner, source = parameter or leaf, f"{ARGUMENT} of {named}"
        if len(named.dims) > len(owner.shape) and math.prod(leaf.shape) == 1:
            continue  # optimizers put an array of one element where they keep nothing of a parameter
        spec = spec_of(named, rules, call.view, owner, call.location)
        sharding, findings = sharding_by(spec, leaf, parameter, source, call)
        yield i, sharding, source, findings


def unruled_names(leaves: Sequence[Leaf], names: Sequence[AxisNames | None], annotated: Annotated, place: str) -> list[Finding]:
    """The note that arrays name their dimensions, and these names shard nothing."""
    silent = [(leaf, named) for leaf, named, sharding in zip(leaves, names, annotated.shardings, strict=True) if named and sharding is None]
    if not silent:
        return []
    leaf, named = silent[0]
    more = f", and so do {len(silent) - 1} more" if len(silent) > 1 else ""
    message = f"{leaf.path} calls its dimensions {named}{more}; without {ARGUMENT}, these names shard nothing"
    fix = f"pass {ARGUMENT}=[({_first_name(named)!r}, 'an axis of the mesh'), ...], [] where they are axes of the mesh themselves"
    return [Finding("unmatched-rule", message, leaf.path, place, "info", fix=fix)]


def idle_rules(rules: Sequence[LogicalRule], names: Iterable[AxisNames | None], program: Program, place: str) -> list[Finding]:
    """One finding of all rules for names that no dimension has: a warning where no rule applies to anything, else a note.

    Rules that leave dimensions whole are left out, and rules whose axes a constraint in the program has: it may come from one of these.
    """
    called = {name for named in names if named for entry in named.dims for name in _parts(entry)}
    cutting = [(name, axes) for name, axes in rules if axes and name not in called]
    if not cutting:
        return []
    constrained = {a.name for op in program.walk() if op.name in CONSTRAINTS and (s := op.results[0].sharding) for a in s.dim_axes()}
    idle = list(dict.fromkeys(name for name, axes in cutting if constrained.isdisjoint(axes)))
    if not idle:
        return []
    nothing = len(idle) == len({name for name, axes in rules if axes})
    which = "" if nothing else f" for {', '.join(map(repr, idle))}"
    fix = "drop them" if called else "pass parameters with their names, before nn.unbox or nn.meta.unbox, or write rules= for their paths"
    does = "calls a dimension so" if called else "names its dimensions"
    message = f"{ARGUMENT}{which} apply to nothing: no array of the arguments or the result {does}"
    return [Finding("unused-rule", message, "", place, "warning" if nothing else "info", fix=fix)]


def _first_name(names: AxisNames) -> str:
    return next((name for entry in names.dims for name in _parts(entry)), "name")


def _parts(entry: Any) -> tuple[str, ...]:
    """The names of one dimension."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return tuple(map(str, entry)) if isinstance(entry, (tuple, list)) else (str(entry),)


def _axes_text(axes: Sequence[str]) -> str:
    return "None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))


def _no_axes(place: tuple[int, str], pairs: Sequence[tuple[str, tuple[str, ...], str]], owners: Mapping[str, str], where: str) -> SpecError:
    d, name = place
    of_name = [(axes, source) for rule_name, axes, source in pairs if rule_name == name]
    if not of_name:
        return SpecError(
            f"{ARGUMENT} has no rule for {name!r}",
            where=f"dimension {d} of {where}",
            why="every logical name needs a rule; a name without one would silently leave its dimension whole",
            fix=f"add ({name!r}, None) to leave it whole, or {did_you_mean(name, dict.fromkeys(rule_name for rule_name, _, _ in pairs))}",
        )
    axes, source = of_name[-1]
    axis = next(axis for axis in axes if axis in owners)
    return SpecError(
        f"mesh axis {axis!r} would shard two dimensions of one array",
        where=f"dimension {d} of {where}",
        why=f"{source} ({name!r}, {_axes_text(axes)}) is for dimension {d}, and {owners[axis]} already uses {axis!r}",
        fix=f"give one of them another axis, or add ({name!r}, None) after it, which leaves the dimension whole where {axis!r} is used",
    )


def in_flax_context(fun: Callable[..., Any], rules: Sequence[LogicalRule]) -> Callable[..., Any]:
    """The function with the rules for Flax's own constraints inside of it, such as `nn.with_logical_constraint`."""
    pairs = tuple((name, None if not axes else axes[0] if len(axes) == 1 else axes) for name, axes in rules)

    @functools.wraps(fun)
    def within(*args: Any, **kwargs: Any) -> Any:
        flax = sys.modules.get("flax.linen") or sys.modules.get("flax.nnx")
        with contextlib.nullcontext() if flax is None else flax.logical_axis_rules(pairs):
            return fun(*args, **kwargs)

    return within
