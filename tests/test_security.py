"""SECURITY.md names the test of every promise; these tests exist."""

from __future__ import annotations

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_every_promise_has_a_test() -> None:
    rows = [row.strip("|").split("|") for row in TEXT.splitlines() if row.startswith("| ") and not row.startswith("| promise")]
    assert len(rows) > 15
    for promise, tests in rows:
        assert re.fullmatch(r" (`tests/[\w/]+\.py::test_\w+`(, )?)+ ", tests), promise


def test_the_tests_that_are_named_exist() -> None:
    for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], f"{file}::{name}"
