"""Runs the Python blocks of the README and the guides, and compares what each prints with the text block that follows it.

`python tests/test_readme.py` writes what they print now into them; `python tests/test_readme.py docs/guides/why.md` into one.
"""

from __future__ import annotations

import os
import pathlib
import platform
import re
import subprocess
import sys
import tomllib
import warnings
from importlib import metadata

import pytest
from packaging.requirements import Requirement

if __name__ == "__main__":  # tests/conftest.py does so for pytest; JAX reads them when it starts
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    os.environ |= {"NPROC": "64", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}

from tests.documents import DOCUMENTS, README, ROOT, blocks, missing_packages, rewrite, run_python, trimmed, with_blocks

LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
OTHERS = (*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in ("BUILD.md", "CONTRIBUTING.md", "benchmarks/README.md")))


SLOW = ("README", "one-model", "pipelines", "large-models", "let-it-choose")
"""Documents whose blocks take more than two seconds of a processor."""


def named(document: pathlib.Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize(
    "document", [pytest.param(each, marks=[pytest.mark.slow] * (each.stem in SLOW), id=named(each)) for each in with_blocks("python")]
)
def test_blocks_print_what_the_document_shows(document: pathlib.Path) -> None:
    if missing := missing_packages(document):
        pytest.skip(f"no {', '.join(missing)}")
    for number, (example, printed) in enumerate(zip(blocks(document, "python"), run_python(document), strict=True)):
        assert trimmed(printed) == trimmed(example.expected or ""), f"block {number} of {named(document)}"


def test_opens_with_an_example_and_its_plan() -> None:
    model, first = blocks(README, "python")[:2]
    assert first.expected is not None
    assert len((model.body + first.body).strip().splitlines()) <= 40


def test_the_readme_stays_short() -> None:
    assert 7_000 <= len(README.read_bytes()) <= 10_240


def test_commands_are_those_that_ci_runs() -> None:
    commands = re.findall(r"^make (\w+)", "".join(example.body for example in blocks(README, "sh")), re.MULTILINE)
    assert {"demo", "test"} <= set(commands)
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{command}:", makefile, re.MULTILINE) for command in commands)
    assert all(f"make {command}" in (ROOT / ".ci" / "run").read_text() for command in ("demo", "test"))


def test_the_table_of_versions_is_what_ci_writes(tmp_path: pathlib.Path) -> None:
    """Of each minor version of Python it has one row, of a jax that is admitted, and of what CI runs."""
    row = re.compile(r"^\| (3\.\d+)\.\d+ \| ([\d.]+) \| [\d.]+ \| [\d.]+ \| (.+) \|$", re.MULTILINE)
    written = row.findall((ROOT / "BUILD.md").read_text())
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (admitted,) = [each for each in map(Requirement, dependencies) if each.name == "jax"]
    ci = [text for name in ("Makefile", ".ci/run") for text in re.findall(r"tried\.py BUILD\.md '(.+)'", (ROOT / name).read_text())]
    assert all(admitted.specifier.contains(jax) and ran in ci for _, jax, ran in written)
    copy = tmp_path / "BUILD.md"
    copy.write_text((ROOT / "BUILD.md").read_text())
    for ran in ("little", ci[-1]):
        subprocess.run([sys.executable, str(ROOT / ".ci" / "tried.py"), str(copy), ran], check=True)
        here = (platform.python_version().rpartition(".")[0], metadata.version("jax"), ran)
        assert row.findall(copy.read_text()) == sorted([here, *(each for each in written if each[0] != here[0])])
    assert row.sub("", copy.read_text()).split() == row.sub("", (ROOT / "BUILD.md").read_text()).split()


def links(document: pathlib.Path) -> list[str]:
    return [target or source for target, source in LINK.findall(re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.S | re.M))]


def test_links_of_the_readme_work_on_a_package_page() -> None:
    """They are absolute; those into this repository lead to files of it."""
    home = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    into = re.compile(rf"{re.escape(home)}/(?:blob|tree|raw)/main/([^#]+)")
    targets = links(README)
    assert len(targets) > 10
    for target in targets:
        assert target.startswith("https://"), f"the README links to {target}"
        if target.startswith(home):
            assert (path := into.match(target)), f"the README links to {target}"
            assert (ROOT / path[1]).exists(), f"the README links to {target}"


@pytest.mark.parametrize("document", [*DOCUMENTS[1:], *OTHERS], ids=named)
def test_links_lead_somewhere(document: pathlib.Path) -> None:
    for target in links(document):
        path = target.partition("#")[0]
        if path and ":" not in path:
            assert (document.parent / path).exists(), f"{named(document)} links to {target}"


if __name__ == "__main__":
    warnings.simplefilter("error")
    for chosen in [pathlib.Path(path).resolve() for path in sys.argv[1:]] or with_blocks("python"):
        if not missing_packages(chosen):
            rewrite(chosen, "python", run_python(chosen))
