"""Shardings by name: `("layers/*/kernel", P("fsdp", "tp"))` gives every leaf of that path its sharding.

A leaf's path is its pytree path joined by `/`, beginning with the parameter's name: `state/params/layers/0/kernel`. A pattern
(`plan/patterns`) matches a path whose last components it matches, so the optimizer's moments, whose paths end as the parameters' do,
follow them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

from shardy_py.api.companions import companion_sharding, parameters_of
from shardy_py.api.errors import SpecError
from shardy_py.api.meshes import MeshView
from shardy_py.api.specs import is_spec_leaf, to_tensor_sharding
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
    return next((f"rules[{i}] ({pattern!r})" for i, (pattern, _) in enumerate(rules) if matches(pattern, path)), "")


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
        Shardings, and findings: leaves of rank 2 and more that no rule matches, those of layers as one; rules that match nothing or never
        first.

    Raises:
        SpecError: A rule does not fit its leaf, or contradicts `in_shardings`.
    """
    if not rules:
        return list(given), []
    out: list[TensorSharding | None] = []
    used: set[int] = set()
    shadowed: dict[int, int] = {}
    findings: list[Finding] = []
    unmatched: dict[str, list[str]] = {}
    place = location.partition(" (")[0]  # without the name of the function
    paths = rule_paths(leaves)
    parameters = parameters_of(leaves, paths)
    for number, (leaf, path, have, named) in enumerate(zip(leaves, paths, given, decided, strict=True)):
        hits = [i for i, (pattern, _) in enumerate(rules) if matches(pattern, path)]
        for i in hits[1:]:
            shadowed.setdefault(i, hits[0])
        if not hits:
            out.append(have)
            if have is None and len(leaf.shape) > 1:
                unmatched.setdefault(without_numbers(leaf.path), []).append(leaf.path)
            continue
        pattern, spec = rules[hits[0]]
        used.add(hits[0])
        source = f"rules[{hits[0]}] ({pattern!r})"
        parameter = parameters[number]
        if parameter is None or not matches(pattern, paths[parameter]) or spec is None:
            wanted = to_tensor_sharding(spec, view, leaf, source, location=location)
        else:
            cut = to_tensor_sharding(spec, view, leaves[parameter], source, location=location)
            assert cut is not None
            wanted = companion_sharding(leaf.shape, leaves[parameter].shape, cut, view.core)
            if wanted is None and have is None and math.prod(leaf.shape) > 1:
                message = f"{pattern!r} is for {leaves[parameter]}, which has other dimensions; propagation decides its sharding"
                findings.append(Finding("unmatched-rule", message, leaf.path, place, "info"))
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
    free = [path for path in paths if not any(matches(pattern, path) for pattern, _ in rules)]
    for i, (pattern, _) in enumerate(rules):
        if i in used:
            continue
        why = (
            f"every leaf it matches is taken by rule {shadowed[i]}, {rules[shadowed[i]][0]!r}"
            if i in shadowed
            else "it matches no argument"
        )
        fix = "put it before that one, or drop it" if i in shadowed else f"drop it, or write {_nearest(pattern, free or paths)}"
        findings.append(Finding("unused-rule", f"rule {i}, {pattern!r}, is not used: {why}", "", place, fix=fix))
    return out, findings
