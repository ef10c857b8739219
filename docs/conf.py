"""Settings of the documentation site: `make docs` builds it."""

from __future__ import annotations

import pathlib
import re
import shutil
import sys
import tomllib
from typing import TYPE_CHECKING

from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from docutils.nodes import Element, TextElement  # pyright: ignore[reportMissingImports]
    from sphinx.application import Sphinx  # pyright: ignore[reportMissingImports]  (an extra of its own)
    from sphinx.environment import BuildEnvironment  # pyright: ignore[reportMissingImports]

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOME = PROJECT["urls"]["Repository"] + "/blob/main"
LINK = re.compile(r"(?<=\]\()(?P<path>\.\.?/[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)(\w?)")
HOME_OF_A_CLASS = re.compile(r"~?\b(?:shardy_py|collections|typing)\.(?:\w+\.)*(?=[A-Z])")

sys.path.insert(0, str(ROOT))

import shardy_py  # noqa: E402

project, release = PROJECT["name"], PROJECT["version"]
author = "The shardy_py maintainers"
copyright = author
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]
html_theme = "furo"
html_title = f"shardy_py {release}"
html_search_scorer = str(DOCS / "scorer.js")
html_show_search_summary = False  # summaries are fetched, which browsers refuse where the site is opened from files
pygments_style = "friendly"

nb_execution_mode = "off"  # pages show the outputs that tests/test_notebooks.py compares
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = [
    "myst.header",  # a notebook may begin below a title
    "ref.python",  # annotations name `bytes`, which some classes have as an attribute
]

autosummary_generate = True
add_module_names = False  # a page says where to import its name from
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": True}
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True


def copy_notebooks() -> None:
    """Pages of the notebooks are copies beside the other pages."""
    target = DOCS / "notebooks"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        shutil.copy(notebook, target)


def link_outside(app: Sphinx, name: str, source: list[str]) -> None:
    """Makes relative links to files outside of docs/ into links to the repository, or to the page of a notebook."""
    folder = (DOCS / name).parent

    def moved(match: re.Match[str]) -> str:
        path = (folder / match["path"]).resolve()
        if path.is_relative_to(DOCS) or not path.exists():
            return match[0]
        if path.suffix == ".ipynb":
            return f"/notebooks/{path.name}"
        return f"{HOME}/{path.relative_to(ROOT).as_posix()}{match['anchor'] or ''}"

    source[0] = LINK.sub(moved, source[0])


def write_code(app: Sphinx, what: str, name: str, subject: object, options: object, lines: list[str]) -> None:
    """Makes the code of docstrings, which is written as in Markdown, into that of reStructuredText."""
    lines[:] = [CODE.sub(lambda match: f"``{match[1]}``" + ("\\ " if match[2] else "") + match[2], line) for line in lines]


def shorten_types(app: Sphinx, what: str, name: str, subject: object, options: object, lines: list[str]) -> None:
    """Leaves the module out of the types of attributes, which napoleon writes in full."""
    lines[:] = [HOME_OF_A_CLASS.sub("", line) if line.startswith(":vartype ") else line for line in lines]


def write_defaults(app: Sphinx, what: str, name: str, subject: object, options: object, signature: str | None, returns: str) -> object:
    """Writes `...` for defaults that are not expressions, such as `<factory>`, with which Sphinx would leave a signature unread."""
    return signature and re.sub(r"= <.*?>(?=[,)])", "= ...", signature), returns


def link_public(app: Sphinx, env: BuildEnvironment, node: Element, child: TextElement) -> Element | None:
    """Links a class in a signature to the page of the name that users import."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if name not in shardy_py.__all__:
        return None
    return env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", f"shardy_py.{name}", node, child)


def keep_sentence(app: Sphinx, what: str, name: str, subject: object, options: object, lines: list[str]) -> None:
    """Keeps napoleon from taking what stands before a colon in the first line of a property's docstring for its type."""
    if what in ("property", "attribute"):
        lines.insert(0, "")


def setup(app: Sphinx) -> None:
    """Registers the hooks of this file."""
    copy_notebooks()
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", link_outside)
    app.connect("autodoc-process-docstring", keep_sentence, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", write_code)
    app.connect("autodoc-process-docstring", shorten_types)
    app.connect("autodoc-process-signature", write_defaults)
    app.connect("missing-reference", link_public)
