"""One grammar of patterns for `rules=`, `ignore=` and `where=`, matched without backtracking."""

from __future__ import annotations

import random
import time

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.errors import ShardyError, SpecError
from shardy_py.facade import Plan
from shardy_py.plan.checks.table import accepted
from shardy_py.plan.findings import Finding
from shardy_py.plan.paths import LONGEST, matches, matches_text, names_path

PATHS = ("params['layers'][0]['kernel']", "params.layers[0].kernel.value", "params/layers/0/kernel")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("pattern", "yes"),
    [
        ("kernel", True),
        ("layers/*/kernel", True),
        ("layers[*]['kernel']", True),
        ("layers[?].kernel", True),
        ("params/**", True),
        ("params/**/kernel", True),
        ("params/**/0/**", True),
        ("**", True),
        ("k*l", True),
        ("layers", False),
        ("params/*/kernel", False),
        ("layers/**/0/kernel", False),
        ("ernel", False),
        ("", False),
    ],
)
def test_last_components_in_every_spelling(pattern: str, path: str, yes: bool) -> None:
    assert matches(pattern, path) is yes


def reference(pattern: str, text: str) -> bool:
    """All ways to match, tried one after the other."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return reference(pattern[1:], text) or (bool(text) and reference(pattern, text[1:]))
    return bool(text) and pattern[0] in ("?", text[0]) and reference(pattern[1:], text[1:])


def reference_of_components(pattern: list[str], path: list[str]) -> bool:
    """The same for components."""
    if not pattern or not path:
        return not pattern and not path
    rest = path[1:]
    if pattern[0] == "**":
        return reference_of_components(pattern[1:], rest) or reference_of_components(pattern, rest)
    return reference(pattern[0], path[0]) and reference_of_components(pattern[1:], rest)


def test_random_patterns_match_what_trying_all_ways_does() -> None:
    draw = random.Random(7)
    agreed = [0, 0]
    for _ in range(4000):
        pattern, text = ("".join(draw.choices(letters, k=draw.randint(0, 7))) for letters in ("ab*?", "ab\n"))
        assert matches_text(pattern, text) is reference(pattern, text), (pattern, text)
        components = draw.choices(["a", "b", "*", "?b", "**"], k=draw.randint(1, 5))
        path = draw.choices(["a", "b", "ab"], k=draw.randint(1, 7))
        expected = any(reference_of_components(components, path[i:]) for i in range(len(path)))
        assert matches("/".join(components), "/".join(path)) is expected, (components, path)
        agreed[expected] += 1
    assert min(agreed) > 500


HARD = (
    ("*a" * 400 + "b", "a" * 20_000, "b"),
    ("*" * 900 + "b", "a" * 20_000, "b"),
    ("*?a" * 300 + "b", "a" * 20_000, "b"),
    ("**/" * 300 + "bias", "block/" * 2000, "bias"),
    ("**/a/" * 190 + "b", "a/" * 2000, "b"),
)


@pytest.mark.parametrize(("pattern", "path", "end"), HARD)
def test_many_wildcards_take_no_longer(pattern: str, path: str, end: str) -> None:
    """With a regular expression that tries all ways these take hours; here milliseconds."""
    started = time.process_time()
    assert names_path(pattern, path + end)
    assert not names_path(pattern, path + end + "c")
    assert time.process_time() - started < 5


def plan() -> Plan:
    def f(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ params["kernel"])

    w = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
    return sp.auto_shard(f, mesh={"a": 2, "b": 4}, in_shardings=(None, P(("a", "b")))).plan({"kernel": w}, w)


def test_ignore_takes_patterns_of_rules() -> None:
    findings = [Finding("replicated-large", "...", path) for path in PATHS]
    for pattern in ("kernel", "layers/*/kernel", "layers[*].kernel", "params/**", "params*"):
        assert accepted(findings, f"replicated-large:{pattern}") == (), pattern
    assert accepted(findings, "replicated-large:layers/kernel") == tuple(findings)


def test_where_takes_patterns_of_rules() -> None:
    for where in ("params/*", "ker*", "params[*]", "*['kernel']", "par*nel']"):
        lines = plan().as_text(where=where).splitlines()
        assert lines[1].startswith("inputs  1 array"), where
        assert "params['kernel']" in lines[2]


def test_longer_patterns_are_refused() -> None:
    pattern = "*a" * LONGEST
    with pytest.raises(SpecError, match=f"a pattern of {2 * LONGEST} characters\n  where: rules"):
        sp.auto_shard(lambda w: w, mesh={"a": 2}, rules=[(pattern, P("a"))])
    with pytest.raises(ShardyError, match=r"a pattern of .* characters\n  where: ignore"):
        accepted((), f"replicated-large:{pattern}")
    with pytest.raises(ShardyError, match=r"a pattern of .* characters\n  where: where"):
        plan().as_text(where=pattern)
