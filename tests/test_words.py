"""English that a native engineer writes, in pages, messages and docstrings."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

from tests.documents import ROOT

NOT_ENGLISH = (
    r"\bthat of (a|an|the|its)\b",  # a pronoun in place of a noun
    r"\b(as|with|than|like|from|beside|above|of|to|in|by|on|for) (that|those) of\b",
    r"\botherwise than\b",  # differently from
    r"\bof (yours|ours)\b",  # your, our
    r"\bat hand\b",
    r"\bas far as\b",
    r"\bit is so\b",
    r"\b(seam|space above|of the day)\b",
    r"\bnothing says\b|\bsays nothing\b",
    r"\bcan(not)? be had\b",
    r"\b(is|are) no (rule|array|path|plan|mesh|axis|name|spec|sharding|number|argument)\b(?! (that|which|of|for|with|in|on))",
    r"\bis no (stored|schedule|flag)\b",
    r"\bwhat (leaves|lies)\b",
    r"\bnobody knows\b|\bdeserves a look\b",
    r"\bmade of what\b",
    r"\bblocks of this page continue\b",
)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted([*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)])


def unlike_english(text: str) -> list[str]:
    return [match[0] for form in NOT_ENGLISH for match in re.finditer(form, " ".join(text.split()))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages(page: pathlib.Path) -> None:
    assert not unlike_english(CODE.sub("", page.read_text()))


@pytest.mark.parametrize("room", sorted({path.relative_to(ROOT).parts[1] for path in (ROOT / "shardy_py").rglob("*.py")}))
def test_messages_and_docstrings(room: str) -> None:
    place = ROOT / "shardy_py" / room
    for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not unlike_english(node.value), f"{file.relative_to(ROOT)}:{node.lineno}"
