"""Output of a command: plain lines, coloured on a terminal."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.text import Text

from shardy_py.dialect.format import printable

NARROWEST = 40

STYLES = {
    r"(?m)^\S.*?(?=  |$)": "bold",
    r"@(?:\([^)]*\)|[\w.:]+)": "cyan",
    r"\{[^}]*\}": "magenta",
    r"(?m)^ *(?:[-+] )?error\b": "bold red",
    r"(?m)^ *(?:[-+] )?warning\b": "yellow",
    r"(?m)^ *(?:[-+] )?info\b": "blue",
    r"(?m)^ +fix: .*$": "green",
    r"(?m)^  \+ ": "green",
    r"(?m)^  - ": "red",
    r"(?m)^  ~ ": "yellow",
    r"(?m)\b[\d.]+%$": "green",
    r"(?m)\b(?:2[5-9]|[34]\d)\.\d%$": "yellow",
    r"(?m)\b(?:[5-9]\d|100)\.\d%$": "bold red",
    **{rf"(?<=[|\da-jw.]){task}(?=[\da-jw.]*\|)": style for task, style in ((r"\d", "cyan"), ("[a-j]", "yellow"), ("w", "green"))},
}
"""Parts of a text on a terminal -> their style: titles, axes of types, severities, advice, signs of differences; of pipelines shares of
time in which a stage idles, and tasks in pictures of schedules."""


@dataclass(frozen=True)
class Output:
    """The standard output of a command."""

    console: Console | None
    stream: TextIO

    @property
    def width(self) -> int:
        """Width of sentences in columns."""
        return 100 if self.console is None else max(self.console.width, NARROWEST)

    def plain(self, text: str) -> None:
        """Writes lines unchanged."""
        text = printable(text)
        self.stream.write(text if text.endswith("\n") else f"{text}\n")

    def show(self, text: str) -> None:
        """Writes lines; on a terminal in colours, those that are too long folded below themselves."""
        if self.console is None:
            self.plain(text)
            return
        styled = Text("\n".join(folded for line in printable(text).splitlines() for folded in _folded(line, self.console.width)))
        for pattern, style in STYLES.items():
            styled.highlight_regex(pattern, style)
        self.console.print(styled)


def _folded(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = min(len(line) - len(line.lstrip()) + 4, width // 2)
    return textwrap.wrap(line, width, subsequent_indent=" " * indent, replace_whitespace=False, break_on_hyphens=False)


def output_of(color: str) -> Output:
    """The standard output of this process."""
    console = Console(file=sys.stdout, force_terminal=True if color == "always" else None, highlight=False)
    return Output(console if color != "never" and console.is_terminal else None, sys.stdout)
