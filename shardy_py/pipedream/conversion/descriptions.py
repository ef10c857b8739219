"""Descriptions of nodes as data: PyTorch's repr of a layer, or the name of an op.

Arguments are literals and single words. Nothing in a description is evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from shardy_py.errors import ShardyError

LONGEST = 20_000
DEEPEST = 16

_HEAD = re.compile(r"\s*([A-Za-z_][\w.]*)\s*")
_CHILD = re.compile(r"\s*\(([A-Za-z_]\w*|\d+)\):\s*")


class ConversionError(ShardyError):
    """A graph, or a name, of which no module can be written."""


@dataclass(frozen=True)
class Word:
    """A bare word among arguments, such as `inplace` in `ReLU(inplace)`."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Description:
    """A parsed description."""

    kind: str
    positional: tuple[object, ...] = ()
    named: Mapping[str, object] = field(default_factory=dict)
    children: Mapping[str, Description] = field(default_factory=dict)


def parse_description(text: str) -> Description:
    """Reads a node's description, `Conv2d(3, kernel_size=(3, 3))` or `Add`. Raises ConversionError for anything else.

    Example:
        >>> parse_description("Conv2d(3, 64, kernel_size=(3, 3))").named
        {'kernel_size': (3, 3)}
    """
    if len(text) > LONGEST:
        raise _refused(text, f"it has {len(text)} characters; the longest description taken has {LONGEST}")
    description, end = _layer(text, 0, 0)
    if text[end:].strip():
        raise _refused(text, f"{text[end:].strip()!r} stands behind the layer")
    return description


def _layer(text: str, start: int, depth: int) -> tuple[Description, int]:
    if depth > DEEPEST:
        raise _refused(text, f"layers are nested more than {DEEPEST} deep")
    head = _HEAD.match(text, start)
    if head is None:
        raise _refused(text, "it does not start with the name of a layer or op")
    kind, at = head[1], head.end()
    if not text.startswith("(", at):
        return Description(kind), at
    end = _closing(text, at)
    child = _CHILD.match(text, at + 1)
    if child is None:
        positional, named = _arguments(text, text[at + 1 : end])
        return Description(kind, positional, named), end + 1
    children: dict[str, Description] = {}
    place = at + 1
    while place < end and text[place:end].strip():
        child = _CHILD.match(text, place, end)
        if child is None or child[1] in children:
            raise _refused(text, f"{text[place:end].strip()[:40]!r} is not a further layer, `(name): Layer(...)`")
        children[child[1]], place = _layer(text, child.end(), depth + 1)
    return Description(kind, children=children), end + 1


def _closing(text: str, start: int) -> int:
    """Index of the parenthesis that closes the one at `start`."""
    depth, quote = 0, ""
    for i in range(start, len(text)):
        char = text[i]
        if quote:
            quote = "" if char == quote and text[i - 1] != "\\" else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if not depth:
                return i
    raise _refused(text, "a parenthesis is not closed")


def _arguments(text: str, inside: str) -> tuple[tuple[object, ...], dict[str, object]]:
    try:
        tree = ast.parse(f"_({inside.strip()})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(text, f"{inside.strip()[:60]!r} is not a list of arguments") from None
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "_"):
        raise _refused(text, f"{inside.strip()[:60]!r} is more than a list of arguments")
    named: dict[str, object] = {}
    for keyword in tree.keywords:
        if keyword.arg is None or keyword.arg in named:
            raise _refused(text, "an argument is given by ** or twice")
        named[keyword.arg] = _value(text, keyword.value)
    return tuple(_value(text, argument) for argument in tree.args), named


def _value(text: str, node: ast.expr) -> object:
    if isinstance(node, ast.Name):
        return Word(node.id)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(text, part) for part in node.elts)
    if isinstance(node, ast.Call):
        # A slice is how the key of `x[1:]` is written, and cannot be a literal.
        parts = [_value(text, part) for part in node.args]
        plain = all(part is None or type(part) is int for part in parts)
        if isinstance(node.func, ast.Name) and node.func.id == "slice" and not node.keywords and 1 <= len(parts) <= 3 and plain:
            return slice(*parts)
        raise _refused(text, f"{_shown(node)!r} is a call")
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise _refused(text, f"{_shown(node)!r} is code") from None
    if value is None or value is Ellipsis or isinstance(value, bool | int | float | str):
        return value
    raise _refused(text, f"{_shown(node)!r} is no number, word or tuple of them")


def _shown(node: ast.expr) -> str:
    try:
        return ast.unparse(node)[:60]
    except RecursionError:
        return type(node).__name__


def _refused(text: str, why: str) -> ConversionError:
    excerpt = text if len(text) <= 120 else text[:117] + "..."
    return ConversionError(
        f"the description {excerpt!r} is not that of a layer",
        why=f"{why}; a description is a name with literals, and is never executed",
    )
