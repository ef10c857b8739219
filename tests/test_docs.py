"""The pages of the documentation site have every public name; `make docs` builds them, with warnings as errors."""

from __future__ import annotations

import importlib
import re
import types

import pytest

import shardy_py as sp
from tests.documents import ROOT

REFERENCE = ROOT / "docs" / "reference"
LISTED = re.compile(r"^   ~?(shardy_py\.[\w.]+)$", re.MULTILINE)


def listed() -> list[str]:
    return [name for page in sorted(REFERENCE.glob("*.md")) for name in LISTED.findall(page.read_text())]


def members(module: types.ModuleType) -> list[str]:
    """The names of a public module: those of `__all__`, or those that are defined below it."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    defined = [name for name in dir(module) if getattr(getattr(module, name), "__module__", "").startswith(module.__name__)]
    return [name for name in defined if not name.startswith("_")]


def public() -> list[str]:
    names = []
    for name in sorted(set(sp.__all__) - {"__version__"}):
        value = getattr(sp, name)
        names += [f"shardy_py.{name}.{n}" for n in members(value)] if isinstance(value, types.ModuleType) else [f"shardy_py.{name}"]
    return names


@pytest.mark.parametrize("name", public())
def test_a_public_name_has_a_page(name: str) -> None:
    assert name in listed()


def test_what_is_listed_is_public() -> None:
    assert dir(sp) == sorted(sp.__all__)


def test_pages_are_of_names_that_exist() -> None:
    names = listed()
    assert len(names) == len(set(names)) > 80
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__, name


def test_the_contents_have_every_page() -> None:
    docs = ROOT / "docs"
    entries = set((docs / "index.md").read_text().splitlines())
    entries |= {f"reference/{line}" for line in (REFERENCE / "index.md").read_text().splitlines()}
    pages = [*docs.glob("*.md"), *(docs / "guides").glob("*.md"), *REFERENCE.glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    paths = {page.relative_to(ROOT if page.suffix == ".ipynb" else docs).with_suffix("").as_posix() for page in pages}
    assert paths - {"index"} <= entries


def test_files_that_pages_name_exist() -> None:
    """`plan/record` and `backends/local/table.py` are files or rooms of the package, `tests/sweep` of the repository."""
    rooms = {path.name for path in (ROOT / "shardy_py").iterdir() if path.is_dir()}
    for page in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]:
        for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)+(?:\.py)?)`", page.read_text()):
            if page.name != "CHANGELOG.md" and name.partition("/")[0] in rooms | {"tests", "benchmarks", "examples"}:
                places = [base / f"{name}{suffix}" for base in (ROOT, ROOT / "shardy_py") for suffix in ("", ".py")]
                assert any(place.exists() for place in places), f"{page.relative_to(ROOT)} names {name}"
