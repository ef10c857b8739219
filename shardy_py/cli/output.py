"""Output of a command: tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from shardy_py.dialect.format import printable

NARROWEST = 40


@dataclass(frozen=True)
class Output:
    """The standard output of a command.

    Attributes:
        console: The console for tables; None for plain lines.
        stream: The stream for plain lines.
    """

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

    def show(self, parts: Iterable[RenderableType]) -> None:
        """Writes tables; only where there is a console."""
        assert self.console is not None
        for part in parts:
            self.console.print(part)


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def output_of(color: str) -> Output:
    """The standard output of this process.

    Args:
        color: `auto`, `always` or `never`.
    """
    console = _Console(file=sys.stdout, force_terminal=True if color == "always" else None, highlight=False)
    return Output(console if color != "never" and console.is_terminal else None, sys.stdout)


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str | Text]], note: str = "", tight: bool = False) -> RenderableType:
    """A table without vertical lines; columns of numbers are aligned to the right.

    Args:
        title: Its heading.
        heads: Names of the columns; one that ends with `>` is aligned to the right, one that ends with `*` may be broken.
        rows: The cells.
        note: Text behind the title.
        tight: Whether columns stand close together.
    """
    named = any(head.rstrip(">*") for head in heads)
    grid = Table(box=box.SIMPLE_HEAD if named else None, show_header=named, header_style="dim", pad_edge=False, show_edge=False)
    grid.collapse_padding = tight
    for head in heads:
        name = head.rstrip(">*")
        if head.endswith(">"):
            grid.add_column(name, justify="right", no_wrap=True)
        else:
            grid.add_column(name, no_wrap=not head.endswith("*"), overflow="fold" if head.endswith("*") else "ellipsis")
    for row in rows:
        grid.add_row(*row)
    return Group(Text.assemble((title, "bold"), (f"  {note}" if note else "", "dim")), grid)


def type_text(text: str) -> Text:
    """A type with its mesh axes in colour."""
    styled = Text(text)
    styled.highlight_regex(r"@(?:\([^)]*\)|[\w.:]+)", "cyan")
    styled.highlight_regex(r"\{[^}]*\}", "magenta")
    return styled
