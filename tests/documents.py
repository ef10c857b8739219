"""The documents whose blocks run as tests: the README, and pages of docs/ for users."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import linecache
import pathlib
import re
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = (ROOT / "docs" / "getting-started.md", ROOT / "docs" / "how-do-i.md", *sorted((ROOT / "docs" / "guides").glob("*.md")))
DOCUMENTS = (README, *PAGES)
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONAL = ("equinox", "orbax.checkpoint")


@dataclass(frozen=True)
class Example:
    """A block of code and the text block that follows it, if one does; `span` is where that text stands in the document."""

    body: str
    expected: str | None
    span: tuple[int, int]


def blocks(document: pathlib.Path, kind: str) -> list[Example]:
    """The blocks of one kind, such as `python`, in order."""
    every = list(BLOCK.finditer(document.read_text()))
    examples = []
    for block, following in zip(every, [*every[1:], None], strict=True):
        if block["kind"] == kind:
            shown = following if following is not None and following["kind"] == "text" else None
            examples.append(Example(block["body"], shown["body"] if shown else None, shown.span("body") if shown else (0, 0)))
    return examples


def with_blocks(kind: str) -> list[pathlib.Path]:
    """The documents that have blocks of this kind."""
    return [document for document in DOCUMENTS if blocks(document, kind)]


def missing_packages(document: pathlib.Path) -> list[str]:
    """Optional packages that a document imports and this environment lacks."""
    code = "".join(example.body for example in blocks(document, "python"))
    imported = [name for name in OPTIONAL if re.search(rf"^(import|from) {re.escape(name)}\b", code, re.MULTILINE)]
    return [name for name in imported if importlib.util.find_spec(name.partition(".")[0]) is None]


def run_python(document: pathlib.Path, names: dict[str, Any] | None = None) -> list[str]:
    """Runs a document's Python blocks one after the other, and returns the text that each prints.

    The blocks share one namespace, as the cells of a notebook do. Each is compiled under the name of a file of its own, so that the lines
    a plan names are lines of the block. `names` receives what they define.
    """
    namespace: dict[str, Any] = {} if names is None else names
    namespace["__name__"] = "__main__"
    printed = []
    for number, example in enumerate(blocks(document, "python")):
        text, name = io.StringIO(), f"example_{number}.py"
        linecache.cache[name] = (len(example.body), None, example.body.splitlines(keepends=True), name)
        with contextlib.redirect_stdout(text):
            exec(compile(example.body, name, "exec"), namespace)
        printed.append(text.getvalue())
    return printed


def trimmed(text: str) -> str:
    """The text without blank lines around it and without spaces at line ends."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def rewrite(document: pathlib.Path, kind: str, printed: list[str]) -> None:
    """Puts what the blocks of a kind print into the text blocks that follow them."""
    text = document.read_text()
    for example, output in reversed(list(zip(blocks(document, kind), printed, strict=True))):
        if example.expected is not None:
            start, end = example.span
            text = text[:start] + trimmed(output) + "\n" + text[end:]
    document.write_text(text)
