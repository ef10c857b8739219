from __future__ import annotations

import copy
import pickle

import pytest

from shardy_py.errors import DialectError, ParseError, ShardyError


def test_every_part_has_its_line() -> None:
    error = DialectError("no such axis", where="argument x", why="the mesh has only y", fix="use y", notes=["seen before"])
    assert str(error) == "no such axis\n  where: argument x\n  why: the mesh has only y\n  fix: use y\n  note: seen before"
    assert str(DialectError("no such axis")) == "no such axis"
    assert isinstance(error, ShardyError)
    assert isinstance(error, ValueError)


def test_at_goes_from_the_outside_in() -> None:
    assert str(DialectError("wrong").at("dim 0").at("argument x")) == "wrong\n  where: argument x, dim 0"


@pytest.mark.parametrize(
    ("text", "position", "line", "column", "shown"),
    [
        ("abc", 1, 1, 2, "    abc\n     ^"),
        ("abc", 3, 1, 4, "    abc\n       ^"),
        ("", 0, 1, 1, "    \n    ^"),
        ("one\n\ttwo\nthree", 6, 2, 3, "    \ttwo\n    \t ^"),
        ("one\ntwo", 4, 2, 1, "    two\n    ^"),
    ],
)
def test_a_parse_error_points(text: str, position: int, line: int, column: int, shown: str) -> None:
    error = ParseError("wrong", text, position, fix="write it right")
    assert (error.line, error.column) == (line, column)
    assert str(error) == f"wrong\n  where: line {line}, column {column}\n{shown}\n  fix: write it right"


@pytest.mark.parametrize("error", [DialectError("a", where="b", notes=["c"]), ParseError("a", "text", 2)])
def test_errors_can_be_copied_and_sent(error: ShardyError) -> None:
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)
