"""Renders a plan as one self-contained page of HTML with data, style and script."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from typing import Any

from shardy_py.cost.hardware import Hardware
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.diff import partners
from shardy_py.plan.record import PlanRecord
from shardy_py.view.html.payload import payload

SCRIPTS = ("dom.js", "data.js", "tree.js", "sharding.js", "lists.js", "panel.js", "charts.js", "planner.js", "main.js")
"""Parts of the page's script, in the order in which they are put together."""


def page(plan: PlanRecord, other: PlanRecord | None = None, hardware: str | Hardware | None = None) -> str:
    """The page; the same plans give the same text in every process.

    Nothing that a user named is markup in it: names stand in a block of JSON whose `<`, `>` and `&` are escaped, and the script makes
    text of them. The page's content security policy allows its own style and script, by their hashes, and nothing else. Raises
    HardwareError if the hardware is not in the table. Raises TypeError if `other` is not a plan.
    """
    for each in (plan, other):
        if each is not None and not hasattr(each, "program"):
            raise TypeError(f"other must be a Plan, got {type(each).__name__}; hardware is a keyword: hardware={each!r}")
    plans = [payload(each, hardware) for each in (plan, other) if each is not None]
    title = f"plan of {plan.name}" if other is None or other.name == plan.name else f"plans of {plan.name} and {other.name}"
    return assembled({"plans": plans, "partners": None if other is None else partners(plan, other)}, title)


def assembled(data: dict[str, Any], title: str) -> str:
    """A page from its data.

    Args:
        data: `plans`, one or two as `payload` gives them, and `partners`, as `plan.diff.partners` gives them, or None.
    """
    style, script = _file("page.css"), '(() => {\n"use strict";\n' + "".join(map(_file, SCRIPTS)) + "})();\n"
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    parts = {"POLICY": policy, "TITLE": html.escape(title), "STYLE": style, "DATA": inert_json(data), "SCRIPT": script}
    pieces = _file("page.html").split("%")
    return "".join(parts.get(piece, piece) for piece in pieces)


def inert_json(data: Any) -> str:
    r"""Encodes JSON for a `<script>` element: it can neither end the element nor begin a comment.

    Example:
        >>> inert_json(["</script>"])
        '["\\u003c/script\\u003e"]'
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return resources.files("shardy_py.view.html").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


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
