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

_KIND = re.compile(r"[A-Za-z_][\w.]*")
_CHILD = re.compile(r"(\()?\s*\(([A-Za-z_]\w*|\d+)\):\s*")


class ConversionError(ShardyError):
    """A graph, or a name, of which no module can be written.

    Example:
        >>> from shardy_py.pipedream import ProfileGraph, ProfileNode, convert
        >>> try:
        ...     convert(ProfileGraph((ProfileNode("a", "Unknown(2)", stage=0),), ()), "small", arch="small", model_name="Small")
        ... except ConversionError as error:
        ...     print(error.what)
        no layer is called 'Unknown'
    """


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
    # Layers inside of a layer are written "(name): Layer(...)", one behind the other; here they are arguments "_name=Layer(...)".
    code = _CHILD.sub(lambda child: f"{child[1] or ','}_{child[2]}=", text)
    try:
        tree = ast.parse(code.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(text, "it is not a name, or a name with arguments in parentheses") from None
    return _layer(text, tree.body)


def _layer(text: str, node: ast.expr) -> Description:
    head = node.func if isinstance(node, ast.Call) else node
    kind = head.id if isinstance(head, ast.Name) else _shown(head)
    if not _KIND.fullmatch(kind):
        raise _refused(text, f"{kind!r} is no name of a layer or op")
    if not isinstance(node, ast.Call):
        return Description(kind)
    named: dict[str, object] = {}
    children: dict[str, Description] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise _refused(text, "arguments are given by **")
        if keyword.arg.startswith("_"):
            children[keyword.arg[1:]] = _layer(text, keyword.value)
        else:
            named[keyword.arg] = _value(text, keyword.value)
    return Description(kind, tuple(_value(text, argument) for argument in node.args), named, children)


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
    raise _refused(text, f"{_shown(node)!r} is not a number, a word or a tuple of them")


def _shown(node: ast.expr) -> str:
    try:
        return ast.unparse(node)[:60]
    except RecursionError:
        return type(node).__name__


def _refused(text: str, why: str) -> ConversionError:
    excerpt = text if len(text) <= 120 else text[:117] + "..."
    return ConversionError(
        f"the description {excerpt!r} does not describe a layer",
        why=f"{why}; a description is a name with literals, and is never executed",
    )
