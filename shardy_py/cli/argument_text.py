"""Parses arguments of a command line: types as plans print them, in dicts, lists and tuples.

`float32[8,128]`, `bf16[8@data,128@(data,model)]`, `{'w': f32[8,8], 'b': None}`, `[f32[8], 3]`, `(f32[8], 0.1)`, `True`, `'relu'`.
A sharding in a type is an annotation of the argument.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from typing import Any, NoReturn

from shardy_py.cli.errors import CommandError

SHORT = {
    **{f"f{n}": f"float{n}" for n in (16, 32, 64)},
    **{f"{kind[0]}{n}": f"{kind}{n}" for kind in ("int", "uint") for n in (2, 4, 8, 16, 32, 64)},
    **{f"c{n}": f"complex{n}" for n in (64, 128)},
    "bf16": "bfloat16",
}
"""Short names of element types, as in jaxprs."""

_TYPE = re.compile(r"(?P<dtype>[A-Za-z][A-Za-z0-9_]*(?:<\w+>)?)\s*\[(?P<dims>[^\[\]]*)\]")
_DIM = re.compile(r"(?P<size>\d+)\s*(?:@\s*(?:(?P<axis>[\w.:]+)|\((?P<axes>[^()]*)\)))?")
_WORD = re.compile(r"(True|False|None)\b|[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)
_DEEPEST = 50


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
    """Parses one argument. Raises CommandError if it cannot be read; the message shows where."""
    reader = _ArgumentReader(text)
    value = reader.value(0)
    reader.blank()
    if reader.at < len(text):
        reader.fail("something is left over")
    return value


class _ArgumentReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, what: str) -> NoReturn:
        raise CommandError(
            f"{what} at {self.text[self.at : self.at + 20]!r}" if self.at < len(self.text) else f"{what} at the end",
            where=f"--args {self.text}",
            fix="write types as float32[8,128] or float32[8@data,128], in {'name': ...}, [...] or (...), or numbers, texts, None",
        )

    def blank(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def next(self, char: str) -> bool:
        self.blank()
        is_next = self.text.startswith(char, self.at)
        self.at += is_next
        return is_next

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            self.fail("too many brackets")
        self.blank()
        if self.next("{"):
            return self.mapping(depth)
        if self.next("["):
            return self.several("]", depth)[0]
        if self.next("("):
            items, comma = self.several(")", depth)
            return tuple(items) if comma or len(items) != 1 else items[0]
        match = _TYPE.match(self.text, self.at)
        if match is not None:
            return self.array(match)
        match = _WORD.match(self.text, self.at)
        if match is None:
            self.fail("expected a type or a value")
        return self.literal(match)

    def literal(self, match: re.Match[str]) -> Any:
        """A number, a text or None, as Python reads it; an escape that Python only warns of is a mistake here."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                literal = ast.literal_eval(match.group())
            except (SyntaxError, ValueError, Warning):
                self.fail("expected another spelling of this value")
        self.at = match.end()
        return literal

    def several(self, end: str, depth: int) -> tuple[list[Any], bool]:
        items: list[Any] = []
        comma = False
        while not self.next(end):
            items.append(self.value(depth + 1))
            comma = self.next(",")
            if not comma:
                if not self.next(end):
                    self.fail(f"expected , or {end}")
                break
        return items, comma

    def mapping(self, depth: int) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        while not self.next("}"):
            self.blank()
            match = _WORD.match(self.text, self.at)
            if match is None:
                self.fail("expected a name in quotes")
            key = self.literal(match)
            if key in items:
                self.fail(f"{key!r} stands twice before this")
            if not self.next(":"):
                self.fail("expected :")
            items[key] = self.value(depth + 1)
            if not self.next(","):
                if not self.next("}"):
                    self.fail("expected , or }")
                break
        return items

    def array(self, match: re.Match[str]) -> ArrayText:
        dims: list[tuple[int, tuple[str, ...]]] = []
        for part in _parts(match["dims"]):
            dim = _DIM.fullmatch(part.strip())
            if dim is None:
                self.fail(f"{part.strip()!r} is no dimension,")
            listed = dim["axis"] or dim["axes"] or ""
            dims.append((int(dim["size"]), tuple(axis.strip() for axis in listed.split(",") if axis.strip())))
        self.at = match.end()
        return ArrayText(SHORT.get(match["dtype"], match["dtype"]), tuple(n for n, _ in dims), tuple(axes for _, axes in dims))


def _parts(dims: str) -> list[str]:
    """Splits at commas outside of brackets."""
    return re.split(r",(?![^()]*\))", dims) if dims.strip() else []
