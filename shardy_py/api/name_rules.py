"""Shardings by name: `("layers/*/kernel", P("fsdp", "tp"))` gives every leaf of that path its sharding.

A leaf's path is its pytree path joined by `/`, beginning with the parameter's name: `state/params/layers/0/kernel`. A pattern
(`plan/patterns`) matches a path whose last components it matches, so the optimizer's moments, whose paths end as the parameters' do,
follow them.

Rules reach results too, so that what an `init` function returns is sharded from the first: the leaves of a result that have a name, by
rules that name something.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

from shardy_py.api.companions import companion_sharding, parameters_of
from shardy_py.api.errors import SpecError
from shardy_py.api.meshes import MeshView
from shardy_py.api.specs import has_rank, is_spec_leaf, to_tensor_sharding
from shardy_py.api.trees import Leaf
from shardy_py.dialect import TensorSharding
from shardy_py.plan.checks.accept import paths_as_one, without_numbers
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.findings import Finding
from shardy_py.plan.patterns import check_length, matches, slash_path

NameRules = Sequence[tuple[str, object]]


def check_rules(rules: object) -> tuple[tuple[str, object], ...]:
    """The rules as a tuple of pairs.

    Raises:
        SpecError: They are no sequence of `(pattern, sharding)`.
    """
    if rules is None:
        return ()
    made: list[tuple[str, object]] = []
    pairs = (
        list(rules.items())
        if isinstance(rules, dict)
        else list(rules)
        if isinstance(rules, Sequence) and not isinstance(rules, str)
        else None
    )
    for i, pair in enumerate([None] if pairs is None else pairs):
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str) and is_spec_leaf(pair[1])):
            raise SpecError(
                f"rules: {pair if pairs is not None else rules!r} is no rule",
                where=f"rules[{i}]",
                why="a rule is a pair of a pattern (a string) and a sharding",
                fix='write rules=[("layers/*/kernel", P("fsdp", "tp"))]',
            )
        check_length(pair[0], f"rules[{i}]", SpecError)
        made.append((pair[0], pair[1]))
    return tuple(made)


_ONLY_CHILD = "/<flat index 0>"


def rule_paths(leaves: Sequence[Leaf]) -> list[str]:
    """What rules see of each leaf: its `slash_path`, without what JAX calls the only array of a class that names none.

    Args:
        leaves: The leaves of the arguments.

    Example:
        >>> rule_paths([Leaf(path, (), "") for path in ("p['w'][<flat index 0>]", "q[<flat index 0>]", "q[<flat index 1>]")])
        ['p/w', 'q/<flat index 0>', 'q/<flat index 1>']
    """
    paths = [slash_path(leaf.path) for leaf in leaves]
    several = {path.removesuffix("/<flat index 1>") for path in paths if path.endswith("/<flat index 1>")}
    bare = [path.removesuffix(_ONLY_CHILD) for path in paths]
    return [path if short in several else short for path, short in zip(paths, bare, strict=True)]


def rule_for(rules: Sequence[tuple[str, object]], path: str) -> str:
    """What to call the first rule that matches a leaf.

    Args:
        rules: Checked rules.
        path: The path of the leaf, as `rule_paths` has it.

    Example:
        >>> rule_for([("bias", None), ("*kernel", None)], "params/kernel")
        "rules[1] ('*kernel')"
    """
    hit = _first_rule(rules, path)
    return "" if hit is None else f"rules[{hit}] ({rules[hit][0]!r})"


def _nearest(pattern: str, paths: Sequence[str]) -> str:
    """The end of a path that is written most like a pattern."""
    parts = pattern.strip("/").count("/") + 1
    ends = list(dict.fromkeys("/".join(path.split("/")[-parts:]) for path in paths))
    if not ends:
        return "one that an argument matches"
    near = max(ends[:200], key=lambda end: difflib.SequenceMatcher(None, pattern, end).ratio())
    return f"a pattern for the end of a path, such as {near!r}"


def apply_rules(
    rules: Sequence[tuple[str, object]],
    leaves: Sequence[Leaf],
    given: Sequence[TensorSharding | None],
    decided: Sequence[bool],
    view: MeshView,
    location: str,
) -> tuple[list[TensorSharding | None], list[Finding]]:
    """Adds the shardings of the first rule that matches each leaf.

    Args:
        rules: Checked rules.
        leaves: The leaves of the arguments.
        given: What `in_shardings` and the arguments themselves say of each leaf.
        decided: Whether `in_shardings` named that leaf.
        view: The mesh.
        location: `file:line` of the user's function.

    Returns:
        Shardings, and findings: leaves of rank 2 and more that no rule matches, those of layers as one.

    Raises:
        SpecError: A rule does not fit its leaf, or contradicts `in_shardings`.
    """
    if not rules:
        return list(given), []
    out: list[TensorSharding | None] = []
    findings: list[Finding] = []
    unmatched: dict[str, list[str]] = {}
    place = location.partition(" (")[0]  # without the name of the function
    paths = rule_paths(leaves)
    parameters = parameters_of(leaves, paths)
    for number, (leaf, path, have, named) in enumerate(zip(leaves, paths, given, decided, strict=True)):
        hit = _first_rule(rules, path)
        if hit is None:
            out.append(have)
            if have is None and len(leaf.shape) > 1:
                unmatched.setdefault(without_numbers(leaf.path), []).append(leaf.path)
            continue
        pattern, spec = rules[hit]
        parameter = _parameter(pattern, parameters[number], leaves, paths)
        wanted = _by_rule(spec, leaf, parameter, view, f"rules[{hit}] ({pattern!r})", location)
        if wanted is None and spec is not None and have is None and math.prod(leaf.shape) > 1:
            findings.append(_other_dimensions(pattern, parameter, leaf, place))
        if named and have is not None and wanted is not None and have is not wanted:
            raise SpecError(
                f"rule {pattern!r} and in_shardings disagree",
                where=f"{leaf}, {location}",
                why=f"the rule says {sharding_text(wanted)}, in_shardings says {sharding_text(have)}",
                fix="leave the leaf to one of them: None in in_shardings, or an earlier rule with the same sharding",
            )
        out.append(have if wanted is None or have is not None else wanted)
    for alike in unmatched.values():
        path, shardings = paths_as_one(alike), "its sharding" if len(alike) == 1 else "their shardings"
        message = f"no rule matches {paths_as_one([*map(slash_path, alike)])!r}; propagation decides {shardings}"
        findings.append(Finding("unmatched-rule", message, path, place, "info"))
    return out, findings


def apply_to_results(
    rules: Sequence[tuple[str, object]], results: Sequence[Leaf], given: Sequence[TensorSharding | None], view: MeshView, location: str
) -> tuple[list[TensorSharding | None], list[str], list[Finding]]:
    """Adds the shardings of rules to those of `out_shardings`.

    Args:
        rules: Checked rules.
        results: The leaves of the result.
        given: What `out_shardings` says of each.
        view: The mesh.
        location: `file:line` of the user's function.

    Returns:
        Shardings, the rule that says each, and findings: leaves that have too few dimensions for their rule.

    Raises:
        SpecError: A rule does not fit its leaf.
    """
    out, sources, findings = list(given), [""] * len(given), list[Finding]()
    paths = rule_paths(results)
    parameters = parameters_of(results, paths) if rules else []
    for i, (leaf, path) in enumerate(zip(results, paths, strict=True)):
        hit = _result_rule(rules, path)
        if hit is None or given[i] is not None or rules[hit][1] is None:
            continue
        pattern, spec = rules[hit]
        source = f"rules[{hit}] ({pattern!r})"
        parameter = _parameter(pattern, parameters[i], results, paths)
        if parameter is not None or has_rank(spec, len(leaf.shape)):
            out[i] = _by_rule(spec, leaf, parameter, view, source, location)
        if out[i] is not None:
            sources[i] = source
        elif math.prod(leaf.shape) > 1:
            findings.append(_other_dimensions(pattern, parameter, leaf, location.partition(" (")[0]))
    return out, sources, findings


def unused_rules(rules: Sequence[tuple[str, object]], leaves: Sequence[Leaf], results: Sequence[Leaf], location: str) -> list[Finding]:
    """Rules that match nothing, or never first.

    Args:
        rules: Checked rules.
        leaves: The leaves of the arguments.
        results: Those of the result.
        location: `file:line` of the user's function.
    """
    if not rules:
        return []
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
        findings.append(Finding("unused-rule", message, "", location.partition(" (")[0], fix=fix))
    return findings


def _first_rule(rules: Sequence[tuple[str, object]], path: str) -> int | None:
    return next((i for i, (pattern, _) in enumerate(rules) if matches(pattern, path)), None)


def _by_rule(spec: object, leaf: Leaf, parameter: Leaf | None, view: MeshView, source: str, location: str) -> TensorSharding | None:
    """What a rule says of a leaf; of one that belongs to a parameter of another shape what follows from that of the parameter."""
    if parameter is None:
        return to_tensor_sharding(spec, view, leaf, source, location=location)
    cut = to_tensor_sharding(spec, view, parameter, source, location=location)
    return None if cut is None else companion_sharding(leaf.shape, parameter.shape, cut, view.core)


def _parameter(pattern: str, number: int | None, leaves: Sequence[Leaf], paths: Sequence[str]) -> Leaf | None:
    """The parameter that a leaf belongs to, where the leaf's rule is the parameter's too."""
    return leaves[number] if number is not None and matches(pattern, paths[number]) else None


def _other_dimensions(pattern: str, parameter: Leaf | None, leaf: Leaf, place: str) -> Finding:
    owner = "values of" if parameter is None else f"{parameter}, which has"
    message = f"{pattern!r} is for {owner} other dimensions; propagation decides its sharding"
    return Finding("unmatched-rule", message, leaf.path, place, "info")


def _result_rule(rules: Sequence[tuple[str, object]], path: str) -> int | None:
    """The first rule that matches a leaf of a result; None of a leaf without a name, and where that rule would match any path."""
    hit = _first_rule(rules, path) if _has_name(path) else None
    return None if hit is None or not set(rules[hit][0]) - set("*?/") else hit


def _has_name(path: str) -> bool:
    """Whether a leaf of a result is more than an element of tuples."""
    return not all(part.isdigit() for part in path.split("/")[1:])
