"""Takes the pictures of guides/concepts.md from pages of its plans: `python -m docs.drawings`.

A picture is a part of a page as its own script draws it in a browser, with the page's style, light or dark as the reader's system is.
"""

from __future__ import annotations

import functools
import html
import pathlib
import re
import tempfile
import urllib.parse
from collections.abc import Callable
from typing import Any

from tests.documents import run_python
from tests.view.browser import open_page, started

CONCEPTS = pathlib.Path(__file__).resolve().parent / "guides" / "concepts.md"
FOLDER = CONCEPTS.parent / "drawings"
WIDTH = 720

TILES, REASONS, MOVES, MEMORY = ".panel .drawing", ".panel div:has(> ol.chain)", ".panel ul.plain:not(.absent)", "#view-charts figure.wide"
DRAWINGS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "mesh": ("plan", [("x", TILES)]),
    "propagation": ("plan", [("down", REASONS)]),
    "partial-sum": ("plan", [("%3", TILES), ("%3", MOVES)]),
    "reshard": ("moved", [("x", TILES), ("result", TILES)]),
    "sub-axis": ("split", [("%0", TILES)]),
    "halo": ("smoothed", [("x", TILES), ("x", MOVES)]),
    "region": ("plan", [("", MEMORY)]),
}
"""File -> the variable of the guide that is a plan, and what its page shows: a value and a part of its panel, or a chart."""

TAKE = r"""
const [selector, width, heading] = arguments;
const frame = document.createElement("div");
frame.className = "picture";
frame.style.cssText = `position: fixed; display: flow-root; width: ${width}px`;
if (heading) frame.append(document.querySelector(".panel h2").cloneNode(true));
frame.append(document.querySelector(selector).cloneNode(true));
for (const each of frame.querySelectorAll("*")) {
  for (const name of ["id", "title", "role", "tabindex", "data-tile", "aria-label"]) each.removeAttribute(name);
  if (each.tagName === "DETAILS") each.open = true;
  if (each.matches(".says, .charts")) each.remove();
}
document.body.append(frame);
const serializer = new XMLSerializer();
const styled = (rule) => (rule.selectorText || "").split(/,(?![^(]*\))/).some((each) => /^:root/.test(each) || (
  !/:hover|:focus/.test(each) && [...document.querySelectorAll(each.replace(/::\w+/g, "") || "none")].some((one) => frame.contains(one))));
const rules = [...document.styleSheets[0].cssRules].map((rule) => [rule.cssText, styled(rule)]);
const height = frame.getBoundingClientRect().height;
frame.remove();
return [[...frame.children].map((each) => serializer.serializeToString(each)).join("\n"), rules, height];
"""

FRAME = """.picture { height: 100%; padding: 12px 14px; background: var(--back); color: var(--text); font: 14px/1.45 var(--sans);
  border: 1px solid var(--line); border-radius: 6px; }"""


def picture(plan: Any, parts: list[tuple[str, str]], opened: Callable[..., Any]) -> str:
    """One picture as SVG; `opened` opens a page in a browser, at a width and an anchor."""
    bodies, used, heights = [], dict[str, bool](), []
    for value, selector in parts:
        browser = opened(plan.show().page, width=WIDTH + 48, anchor="#" + urllib.parse.quote(value))
        if not value:
            browser.find_element("id", "tab-charts").click()
        markup, rules, height = browser.execute_script(TAKE, selector, WIDTH - 30, bool(value) and selector != MOVES)
        bodies.append(markup.replace(' xmlns="http://www.w3.org/1999/xhtml"', ""))
        heights.append(height)
        used = {rule: used.get(rule, False) or styled for rule, styled in rules}
    high = round(sum(heights)) + 28
    style = "\n".join([*(themed(rule) for rule, styled in used.items() if styled), FRAME])
    body = "\n".join(bodies)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" width="{WIDTH}" height="{high}">
<style>
{html.escape(style, quote=False)}
</style>
<foreignObject width="100%" height="100%">
<div xmlns="http://www.w3.org/1999/xhtml" class="picture">
{body}
</div>
</foreignObject>
</svg>
"""


def themed(rule: str) -> str:
    """A rule of a page, with the reader's system in place of the page's button for light and dark."""
    return re.sub(r':root\[data-theme="dark"\] (\{.*\})', r"@media (prefers-color-scheme: dark) { :root \1 }", rule, flags=re.DOTALL)


def pictures(opened: Callable[..., Any]) -> dict[str, str]:
    """All pictures, by the names of their files."""
    names: dict[str, Any] = {}
    run_python(CONCEPTS, names)
    return {f"{name}.svg": picture(names[plan], parts, opened) for name, (plan, parts) in DRAWINGS.items()}


def main() -> None:
    """Writes the pictures."""
    FOLDER.mkdir(exist_ok=True)
    with started() as browser, tempfile.TemporaryDirectory() as folder:
        for name, text in pictures(functools.partial(open_page, browser, pathlib.Path(folder) / "page.html")).items():
            (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
