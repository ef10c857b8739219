"""Statements of docs/differences.md that no other test shows."""

from __future__ import annotations

import pathlib
import re

import pytest

from shardy_py.dialect import CHANGES, Mesh
from shardy_py.errors import ShardyError
from shardy_py.opt import run_passes
from tests.dialect.test_against_jaxlib import jaxlib_attribute
from tests.reference import run_pipeline

ROOT = pathlib.Path(__file__).parents[1]
MODULE = """sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  return %a : tensor<8xf32>
}"""


def test_every_row_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "differences.md").read_text()
    rows = [line for line in text.split("\n\n| where ")[1].split("\n\n")[0].splitlines()[2:] if line.startswith("|")]
    assert len(rows) > 5
    for row in rows:
        paths = re.findall(r"`(tests/[\w/]+\.py)`", row.split("|")[-2])
        assert paths, row
        assert all((ROOT / path).is_file() for path in paths), row


def test_every_change_between_releases_is_listed() -> None:
    table = (ROOT / "docs" / "differences.md").read_text().split("| change in 0.12 | what holds |\n|---|---|\n")[1].split("\n\n")[0]
    assert table.splitlines() == [f"| {change} | {what} |" for change, what in CHANGES.items()]


def test_text_behind_an_attribute_in_its_long_form() -> None:
    text = '#sdy<mesh<["a"=2]> x>'
    assert jaxlib_attribute(text) == '#sdy.mesh<["a"=2]>'
    with pytest.raises(ShardyError, match="expected '>'"):
        Mesh.parse(text)


def test_modules_are_not_written_to_a_directory(tmp_path: pathlib.Path) -> None:
    pipeline = f"sdy-export-pipeline{{dump-directory={tmp_path}}}"
    run_passes(MODULE, pipeline)
    assert not list(tmp_path.iterdir())
    run_pipeline(MODULE, f"builtin.module({pipeline})")
    assert list(tmp_path.iterdir())
