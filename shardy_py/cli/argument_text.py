"""Parses arguments of a command line: types as plans print them, in dicts, lists and tuples.

`float32[8,128]`, `bf16[8@data,128@(data,model)]`, `{'w': f32[8,8], 'b': None}`, `[f32[8], 3]`, `(f32[8], 0.1)`, `True`, `'relu'`.
A sharding in a type is an annotation of the argument.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from typing import Any

from shardy_py.cli.errors import CommandError

SHORT = {
    **{f"f{n}": f"float{n}" for n in (16, 32, 64)},
    **{f"{kind[0]}{n}": f"{kind}{n}" for kind in ("int", "uint") for n in (2, 4, 8, 16, 32, 64)},
    **{f"c{n}": f"complex{n}" for n in (64, 128)},
    "bf16": "bfloat16",
}
"""Short names of element types, as in jaxprs."""

_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_TOKEN = re.compile(rf"{_QUOTED}|(?P<dtype>[A-Za-z][A-Za-z0-9_]*(?:<\w+>)?)\s*\[(?P<dims>[^\[\]]*)\]")
_DIM = re.compile(r"(?P<size>\d+)\s*(?:@\s*(?:(?P<axis>[\w.:]+)|\((?P<axes>[^()]*)\)))?")
_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ArrayText:
    """An array written as its type."""

    dtype: str
    shape: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...]


def parse_arguments(texts: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments, `x=float32[8]`. Raises CommandError if one cannot be read.

    Example:
        >>> parse_arguments(["f32[8@data,4]", "rate=0.1"])
        ([ArrayText(dtype='float32', shape=(8, 4), axes=(('data',), ()))], {'rate': 0.1})
    """
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for text in texts:
        match = _NAMED.fullmatch(text.strip())
        if match is None:
            if named:
                raise CommandError(f"the argument {text!r} has no name and stands behind one that has", where="--args")
            positional.append(parse_argument(text))
        elif match["name"] in named:
            raise CommandError(f"the argument {match['name']} is given twice", where="--args")
        else:
            named[match["name"]] = parse_argument(match["value"])
    return positional, named


def parse_argument(text: str) -> Any:
    """Parses one argument: a Python literal, in which types may stand for arrays. Raises CommandError if it cannot be read."""
    arrays: dict[str, ArrayText] = {}

    def as_name(match: re.Match[str]) -> str:
        if match["dtype"] is None:
            return match.group()
        name = f"__array_{len(arrays)}__"
        arrays[name] = _array(match, text)
        return f" {name} "

    literal = _TOKEN.sub(as_name, text).strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an escape that Python only warns of is a mistake here
            return _value(ast.parse(literal, mode="eval").body, arrays, text)
    except CommandError:
        raise
    except (SyntaxError, TypeError, ValueError, Warning, MemoryError, RecursionError):
        raise _refused("no type and no value", text) from None


def _value(node: ast.expr, arrays: dict[str, ArrayText], text: str) -> Any:
    match node:
        case ast.Name() if node.id in arrays:
            return arrays[node.id]
        case ast.List():
            return [_value(item, arrays, text) for item in node.elts]
        case ast.Tuple():
            return tuple(_value(item, arrays, text) for item in node.elts)
        case ast.Dict():
            keys = [ast.literal_eval(key) for key in node.keys if key is not None]
            if len(set(keys)) < len(node.values):
                raise _refused("a name that stands twice", text)
            return dict(zip(keys, (_value(value, arrays, text) for value in node.values)))
        case _:
            return ast.literal_eval(node)


def _array(match: re.Match[str], text: str) -> ArrayText:
    sizes: list[int] = []
    axes: list[tuple[str, ...]] = []
    for part in re.split(r",(?![^()]*\))", match["dims"]) if match["dims"].strip() else []:  # at commas outside of brackets
        dim = _DIM.fullmatch(part.strip())
        if dim is None:
            raise _refused(f"{part.strip()!r} is no dimension", text)
        sizes.append(int(dim["size"]))
        axes.append(tuple(axis.strip() for axis in (dim["axis"] or dim["axes"] or "").split(",") if axis.strip()))
    return ArrayText(SHORT.get(match["dtype"], match["dtype"]), tuple(sizes), tuple(axes))


def _refused(what: str, text: str) -> CommandError:
    fix = "write types as float32[8,128] or float32[8@data,128], in {'name': ...}, [...] or (...), or numbers, texts, None"
    return CommandError(what, where=f"--args {text}", fix=fix)
