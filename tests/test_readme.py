"""Runs the README's Python blocks, one after the other, and compares what each prints with the text block that follows it.

`python tests/test_readme.py` writes what they print now into the README.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)

# The blocks share one namespace, as the cells of a notebook do. Each is compiled under the name of a file of its own, so
# that the lines a plan names are lines of the block.
RUNNER = """
import contextlib, io, json, sys
namespace, printed = {"__name__": "__main__"}, []
for number, body in enumerate(json.load(sys.stdin)):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(body, f"example_{number}.py", "exec"), namespace)
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


@dataclass(frozen=True)
class Example:
    """A Python block and the text block that follows it, if one does; `span` is where that text stands in the README."""

    body: str
    expected: str | None
    span: tuple[int, int]


def examples() -> list[Example]:
    text = README.read_text()
    blocks = list(BLOCK.finditer(text))
    found = []
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block["kind"] != "python":
            continue
        shown = following if following is not None and following["kind"] == "text" else None
        found.append(Example(block["body"], shown["body"] if shown else None, shown.span("body") if shown else (0, 0)))
    return found


def run(blocks: list[str]) -> list[str]:
    environment = os.environ | {"NPROC": "64", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER],
        input=json.dumps(blocks), capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.fixture(scope="module")
def printed() -> list[str]:
    return run([example.body for example in examples()])


def test_opens_with_an_example_and_its_plan() -> None:
    first = examples()[0]
    assert first.expected is not None
    assert len(first.body.strip().splitlines()) <= 24


@pytest.mark.parametrize("number", range(len(examples())))
def test_prints_what_the_readme_shows(printed: list[str], number: int) -> None:
    expected = examples()[number].expected
    assert trimmed(printed[number]) == trimmed(expected or "")


def test_commands_are_those_that_ci_runs() -> None:
    commands = re.findall(r"^make (\w+)", "".join(b["body"] for b in BLOCK.finditer(README.read_text()) if b["kind"] == "sh"), re.MULTILINE)
    assert {"demo", "test"} <= set(commands)
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{command}:", makefile, re.MULTILINE) for command in commands)
    assert all(f"make {command}" in (ROOT / ".ci" / "run").read_text() for command in ("demo", "test"))


def test_links_lead_somewhere() -> None:
    for name in ("README.md", "BUILD.md", "CONTRIBUTING.md", "docs/design.md", "benchmarks/README.md"):
        path = ROOT / name
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{name} links to {target}"


def rewrite() -> None:
    text, shown = README.read_text(), examples()
    outputs = run([example.body for example in shown])
    for example, output in reversed(list(zip(shown, outputs, strict=True))):
        if example.expected is not None:
            start, end = example.span
            text = text[:start] + trimmed(output) + "\n" + text[end:]
    README.write_text(text)


if __name__ == "__main__":
    rewrite()
