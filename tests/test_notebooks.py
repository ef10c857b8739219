"""Every notebook is what its source makes of it: it runs, without warnings, and shows what the file in the repository shows."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import types
from importlib import metadata
from typing import Any

import pytest

pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")

import nbformat

HERE = pathlib.Path(__file__).resolve().parent.parent / "notebooks"
NAMES = sorted(path.stem for path in HERE.glob("[0-9]*.py"))
AGAIN = "run `python notebooks/make.py` and look at what changed"


def made_by() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks_make", HERE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored(name: str) -> Any:
    return nbformat.read(HERE / f"{name}.ipynb", as_version=4)


def shown(made: Any) -> list[str]:
    """The output of each cell, as text."""
    found = []
    for cell in made.cells:
        for output in cell.get("outputs", ()):
            what = output.get("text") or sorted(output.get("data", output).items())
            found.append(f"{cell.source}\n-> {what}")
    return found


def test_every_source_has_a_notebook() -> None:
    assert NAMES == sorted(path.stem for path in HERE.glob("*.ipynb"))
    assert len(NAMES) == 6


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_is_its_source(name: str) -> None:
    made = made_by().notebook((HERE / f"{name}.py").read_text(encoding="utf-8"))
    assert [(c.cell_type, c.source) for c in stored(name).cells] == [(c.cell_type, c.source) for c in made.cells], AGAIN


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_one_run_is_stored(name: str) -> None:
    text = (HERE / f"{name}.ipynb").read_text(encoding="utf-8")
    for trace in ("ipykernel", "/tmp", " at 0x", "execution.", "stderr", f"{HERE.parent}/"):
        assert trace not in text
    numbers = [cell.execution_count for cell in stored(name).cells if cell.cell_type == "code"]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.skipif(sys.platform == "win32", reason="the paths that notebooks print are those of other systems")
def test_it_runs_and_shows_the_same(name: str) -> None:
    make = made_by()
    made = make.notebook((HERE / f"{name}.py").read_text(encoding="utf-8"))
    make.run(made)
    assert not [o for cell in made.cells for o in cell.get("outputs", ()) if o.get("name") == "stderr"]
    before = stored(name)
    if before.metadata.shardy_py.jax == metadata.version("jax"):
        assert shown(made) == shown(before), AGAIN
