"""A plan's page in a cell of a notebook."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from shardy_py.plan.movements import format_bytes


@dataclass(frozen=True)
class Frame:
    """A page in a frame of its own: its script and style do not reach the notebook, nor the notebook's them."""

    title: str
    height: int
    page: str = field(repr=False)

    def __repr__(self) -> str:
        size = format_bytes(len(self.page))
        return f"<page of the {self.title}, {size}: a notebook shows it, and save_html(path) writes it>"

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self.height}px;border:1px solid #8886;border-radius:4px"
        return f'<iframe title="{escape(self.title)}" sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.page)}"></iframe>'
