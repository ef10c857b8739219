"""Shardings by name: `("layers/*/kernel", P("fsdp", "tp"))` gives every leaf of that path its sharding.

A leaf's path is its pytree path joined by `/`, beginning with the parameter's name: `state/params/layers/0/kernel`. A pattern
(`plan/paths`) matches a path whose last components it matches, so the optimizer's moments, whose paths end as the parameters' do,
follow them.

Rules reach results too, so that what an `init` function returns is sharded from the first: the leaves of a result that have a name, by
rules that name something.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardy_py.api.calls import UserCall
from shardy_py.api.specs import check_spec, has_rank, is_spec_leaf, to_fitting_sharding
from shardy_py.api.trees import Leaf
from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding
from shardy_py.dialect.grouping import grouped
from shardy_py.errors import SpecError
from shardy_py.plan.checks.axes import state_and_parameter
from shardy_py.plan.checks.context import is_replicated
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.findings import Finding
from shardy_py.plan.paths import check_length, matches, paths_as_one, slash_path, without_numbers
from shardy_py.plan.values import PlannedValue

_PARAMETERS = ("params", "model", "weights")
"""Names of the part of a state that holds the parameters."""


def parameters_of(leaves: Sequence[Leaf], paths: Sequence[str]) -> list[int | None]:
    """For each leaf the parameter of another shape that it belongs to.

    The whole path of a parameter, below its argument, an element of it, or `params` in these, is the end of the leaf's path, which lies
    elsewhere.

    Example:
        >>> leaves = [Leaf("params['up']", (256, 512), "float32"), Leaf("state['v_row']['up']", (256,), "float32")]
        >>> parameters_of(leaves, ["params/up", "state/v_row/up"])
        [None, 0]
    """
    homes: dict[tuple[str, ...], list[tuple[int, tuple[str, ...]]]] = {}
    split = [tuple(path.split("/")) for path in paths]
    for i, parts in enumerate(split):
        for depth in _depths(parts):
            homes.setdefault(parts[depth:], []).append((i, parts[:depth]))
    matched: list[int | None] = []
    for leaf, parts in zip(leaves, split, strict=True):
        candidates = (
            i
            for start in range(1, len(parts))
            for i, home in homes.get(parts[start:], ())
            if parts[: len(home)] != home and start > len(home) and leaves[i].shape != leaf.shape
        )
        matched.append(next(candidates, None))
    return matched


def _depths(parts: Sequence[str]) -> list[int]:
    """Components that may come before those of a parameter: its argument or the result, an element of it, the part that is `params`."""
    if len(parts) > 2 and parts[1] in _PARAMETERS:
        return [2]
    if len(parts) < 3 or not parts[1].isdigit():
        return [1]
    return [1, 3] if len(parts) > 3 and parts[2] in _PARAMETERS else [1, 2]


def companion_sharding(shape: Sequence[int], parameter: Sequence[int], sharding: TensorSharding, mesh: Mesh) -> TensorSharding | None:
    """The sharding of a parameter's companion, such as its moments; None if it follows nothing.

    Example:
        >>> cut = TensorSharding("mesh", [["x"], ["y"]])
        >>> mesh = Mesh([("x", 2), ("y", 4)])
        >>> [str(companion_sharding(shape, (8, 16), cut, mesh)) for shape in ((16,), (10, 8, 16), (1,))]
        ['#sdy.sharding<@mesh, [{"y"}]>', '#sdy.sharding<@mesh, [{}, {"x"}, {"y"}]>', 'None']
    """
    extra = len(shape) - len(parameter)
    if extra > 0:
        if tuple(shape[extra:]) != tuple(parameter):
            return None
        return sharding.with_dims((*(DimensionSharding(),) * extra, *sharding.dims))
    candidates = {
        tuple(sharding.dims[d] for d in dims)
        for dims in itertools.combinations(range(len(parameter)), len(shape))
        if tuple(parameter[d] for d in dims) == tuple(shape)
    }
    if len(candidates) != 1:
        return None
    (dims,) = candidates
    return sharding.with_dims(dims) if all(size % dim.shards(mesh) == 0 for size, dim in zip(shape, dims, strict=True)) else None


NameRules = Sequence[tuple[str, object]]

LISTED = 12
"""Paths of a note that are written out."""

OWN = "the sharding of the argument"
"""The source of shardings of arguments that the user has not annotated."""


@dataclass(frozen=True)
class Annotated:
    """Shardings of the leaves of arguments or results, and their sources."""

    shardings: Sequence[TensorSharding | None]
    sources: Sequence[str]
    findings: Sequence[Finding] = ()


def pairs_of(rules: object) -> Sequence[object]:
    """The rules of a mapping or a sequence; anything else is taken for one."""
    if isinstance(rules, Mapping):
        return list(rules.items())
    return rules if isinstance(rules, Sequence) and not isinstance(rules, str) else [rules]


def check_rules(rules: object) -> tuple[tuple[str, object], ...]:
    """The rules as a tuple of pairs; raises SpecError if they are not a sequence of `(pattern, sharding)`."""
    if rules is None:
        return ()
    checked: list[tuple[str, object]] = []
    for i, pair in enumerate(pairs_of(rules)):
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str) and is_spec_leaf(pair[1])):
            raise SpecError(
                f"rules: {pair!r} is not a rule",
                where=f"rules[{i}]",
                why="a rule is a pair of a pattern (a string) and a sharding",
                fix='write rules=[("layers/*/kernel", P("fsdp", "tp"))]',
            )
        check_length(pair[0], f"rules[{i}]", SpecError)
        checked.append((pair[0], pair[1]))
    return tuple(checked)


_ONLY_CHILD = "/<flat index 0>"


def rule_paths(leaves: Sequence[Leaf]) -> list[str]:
    """The path of each leaf that rules match: its `slash_path`, without JAX's name for the only array of an unnamed class.

    Example:
        >>> rule_paths([Leaf(path, (), "") for path in ("p['w'][<flat index 0>]", "q[<flat index 0>]", "q[<flat index 1>]")])
        ['p/w', 'q/<flat index 0>', 'q/<flat index 1>']
    """
    paths = [slash_path(leaf.path) for leaf in leaves]
    several = {path.removesuffix("/<flat index 1>") for path in paths if path.endswith("/<flat index 1>")}
    bare = [path.removesuffix(_ONLY_CHILD) for path in paths]
    return [path if short in several else short for path, short in zip(paths, bare, strict=True)]


def _nearest(pattern: str, paths: Sequence[str]) -> str:
    """The end of a path that is written most like a pattern."""
    parts = pattern.strip("/").count("/") + 1
    ends = list(dict.fromkeys("/".join(path.split("/")[-parts:]) for path in paths))
    if not ends:
        return "one that an argument matches"
    near = max(ends[:200], key=lambda end: difflib.SequenceMatcher(None, pattern, end).ratio())
    return f"a pattern for the end of a path, such as {near!r}"


Proposal = tuple[int, TensorSharding | None, str, Sequence[Finding]]
"""The number of a leaf, its sharding by a rule, the rule, and what is found of it."""


def by_rules(
    rules: Sequence[tuple[str, object]], leaves: Sequence[Leaf], annotated: Annotated, call: UserCall, *, results: bool = False
) -> Iterator[Proposal]:
    """The shardings of the first matching rules. Raises SpecError for misfits.

    Args:
        results: They are of results, which have a sharding of a rule only where nothing else gives them one.
    """
    paths = rule_paths(leaves)
    parameters = parameters_of(leaves, paths)
    for i, (leaf, path) in enumerate(zip(leaves, paths, strict=True)):
        hit, own = (_result_rule if results else _first_rule)(rules, path), annotated.shardings[i]
        if hit is None or (results and (own is not None or rules[hit][1] is None)):
            continue
        pattern, spec = rules[hit]
        source, number = f"rules[{hit}] ({pattern!r})", parameters[i]
        parameter = leaves[number] if number is not None and matches(pattern, paths[number]) else None
        sharding: TensorSharding | None = None
        findings: Sequence[Finding] = ()
        if not results or parameter is not None or has_rank(spec, len(leaf.shape)):
            sharding, findings = sharding_by(spec, leaf, parameter, source, call)
        if sharding is None and spec is not None and own is None and math.prod(leaf.shape) > 1:
            owner = "values of" if parameter is None else f"{parameter}, which has"
            message = f"{pattern!r} is for {owner} other dimensions; propagation decides its sharding"
            findings = (Finding("unmatched-rule", message, leaf.path, call.place, "info"),)
        yield i, sharding, source, findings
    for i, (pattern, spec) in enumerate(() if results else rules):
        check_spec(spec, call.view, f"rules[{i}] ({pattern!r})", call.location)


_MOVE = 'have it moved in each call, options=sp.Options(misplaced="move"), or put it there once, plan.place(args) of a plan of structs'


def with_proposals(proposals: Iterable[Proposal], leaves: Sequence[Leaf], annotated: Annotated, call: UserCall) -> Annotated:
    """The annotations with shardings by rules, and findings. Raises SpecError if two annotations of one leaf disagree."""
    out, sources, findings = list(annotated.shardings), list(annotated.sources), list(annotated.findings)
    for i, sharding, source, found in proposals:
        own, other, leaf = out[i], sources[i], leaves[i]
        if sharding is None or own is sharding:
            findings += found if sharding is None else ()
            continue
        if own is not None and other != OWN:
            raise SpecError(
                f"{source} and {other} disagree",
                where=f"{leaf}, {call.location}",
                why=f"{source} says {sharding_text(sharding)}, {other} says {sharding_text(own)}",
                fix="leave the leaf to one of them: None in in_shardings, or the same sharding in both",
            )
        if own is None or call.settings.options.misplaced == "move":
            out[i], sources[i] = sharding, source
            findings += found
        elif not refines(sharding, own, call.view.dialect_mesh):
            message = f"{source} says {sharding_text(sharding)}; the argument is committed to {sharding_text(own)}, which counts"
            findings.append(Finding("overruled-rule", message, leaf.path, call.place, "warning", fix=_MOVE))
    return Annotated(out, sources, findings)


def unmatched(rules: Sequence[tuple[str, object]], inputs: Sequence[PlannedValue], place: str) -> Iterator[Finding]:
    """One note of all leaves of rank 2 and more, state aside, that no rule matches and that propagation leaves whole."""
    paths = rule_paths([Leaf(v.path, v.shape, v.dtype) for v in inputs])
    whole = [
        v
        for v, path in zip(inputs, paths)
        if v.given is None and len(v.shape) > 1 and is_replicated(v.sharding) and _first_rule(rules, path) is None
    ]
    parameters = {state.path: parameter.path for state, parameter, _ in state_and_parameter(inputs)}
    unnamed = {v.path for v in whole}
    listed = [v.path for v in whole if parameters.get(v.path) not in unnamed]
    if not listed:
        return
    names = [repr(paths_as_one([*map(slash_path, group)])) for group in grouped(listed, without_numbers).values()]
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    message = f"no rule matches {', '.join(names[:LISTED])}{more}; propagation leaves {'them' if len(listed) > 1 else 'it'} whole"
    paths = tuple(listed) if len(listed) > 1 else ()
    yield Finding("unmatched-rule", message, listed[0], place, "info", paths=paths)


def refines(annotation: TensorSharding, actual: TensorSharding, mesh: Mesh) -> bool:
    """Whether `actual` keeps closed dimensions and only adds axes to open ones; axes of size 1 do not count."""

    def cutting(dim: DimensionSharding) -> tuple[AxisRef, ...]:
        return tuple(axis for axis in dim.axes if axis.size_in(mesh) > 1)

    pairs = [(required.is_closed, cutting(required), cutting(present)) for required, present in zip(annotation.dims, actual.dims)]
    return all(present == required if closed else present[: len(required)] == required for closed, required, present in pairs)


def unused_rules(rules: Sequence[tuple[str, object]], leaves: Sequence[Leaf], results: Sequence[Leaf], place: str) -> list[Finding]:
    """Rules that match nothing, or never first."""
    arguments = rule_paths(leaves)
    paths = arguments + [path for path in rule_paths(results) if _has_name(path)]
    used: set[int] = set()
    shadowed: dict[int, int] = {}
    for path in paths:
        hits = [i for i, (pattern, _) in enumerate(rules) if matches(pattern, path)]
        used.update(hits[:1])
        for i in hits[1:]:
            shadowed.setdefault(i, hits[0])
    free = [path for path in paths if not any(matches(pattern, path) for pattern, _ in rules)]
    nothing = "it matches no argument" + (" and no result" if len(paths) > len(arguments) else "")
    findings: list[Finding] = []
    for i, (pattern, _) in enumerate(rules):
        if i in used:
            continue
        why = f"every leaf it matches is taken by rule {shadowed[i]}, {rules[shadowed[i]][0]!r}" if i in shadowed else nothing
        fix = "put it before that one, or drop it" if i in shadowed else f"drop it, or write {_nearest(pattern, free or paths)}"
        message = f"rule {i}, {pattern!r}, is not used: {why}"
        findings.append(Finding("unused-rule", message, "", place, fix=fix))
    return findings


def _first_rule(rules: Sequence[tuple[str, object]], path: str) -> int | None:
    return next((i for i, (pattern, _) in enumerate(rules) if matches(pattern, path)), None)


def sharding_by(
    spec: object, leaf: Leaf, parameter: Leaf | None, source: str, call: UserCall
) -> tuple[TensorSharding | None, list[Finding]]:
    """The sharding of a leaf by a rule; for a leaf that belongs to a parameter of another shape, the one that follows from it."""
    sharding, dropped = to_fitting_sharding(spec, parameter or leaf, source, call)
    if parameter is None:
        return sharding, dropped
    return None if sharding is None else companion_sharding(leaf.shape, parameter.shape, sharding, call.view.dialect_mesh), []


def _result_rule(rules: Sequence[tuple[str, object]], path: str) -> int | None:
    """The first rule that matches a leaf of a result; None of a leaf without a name, and where that rule would match any path."""
    hit = _first_rule(rules, path) if _has_name(path) else None
    return None if hit is None or not set(rules[hit][0]) - set("*?/") else hit


def _has_name(path: str) -> bool:
    """Whether a leaf of a result is more than an element of tuples."""
    return not all(part.isdigit() for part in path.split("/")[1:])
