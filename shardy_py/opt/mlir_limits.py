"""Text that jaxlib's parser or printer could not survive is refused before they see it.

The parser and the printer of MLIR call themselves for every level of nesting and every term of an affine expression, and the process
ends with their stack. A few lines of aliases that hold each other twice stand for any amount of text. The verifier of SDY reads past the
end of a sharding over one device in a manual computation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from shardy_py.errors import ShardyError

MAX_BRACKETS = 1_000
"""Brackets that may be open at once, those of aliases included; a region in generic form has two."""

MAX_ALIAS_TEXT = 10_000_000
"""Characters that aliases may stand for, all their uses together; for locations, which are not printed together, each alias alone."""

MAX_AFFINE_TEXT = 2_000
"""Characters of one affine map or set."""

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_SKIPPED = re.compile(rf"{_STRING}|//[^\n]*|->|>=".encode())
_BRACKETS = b"(<[{)>]}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_STEPS = np.zeros(256, np.int32)
_STEPS[list(b"(<[{")] = 1
_STEPS[list(b")>]}")] = -1
_CHUNK = 1 << 20

_TOKEN = re.compile(rf"{_STRING}|//[^\n]*|->|>=|[#!@]?[\w.$]+|\S")
_OPEN = frozenset("(<[{")
_CLOSE = frozenset(")>]}")
_ALIAS = re.compile(r"^[ \t]*([#!][\w.$]+)[ \t]*=", re.MULTILINE)
_REFERENCE = re.compile(r"[#!][\w.$]+")
_AFFINE = re.compile(r"\baffine_(?:map|set)\s*<(?:->|>=|[^>])*")

_NAME_OF_OP = re.compile(r'//[^\n]*|"((?:[^"\\\n]|\\.)*)"(?P<op>(?:\s|//[^\n]*)*\()?')
_ESCAPE = re.compile(rb"\\([0-9a-fA-F]{2}|.)", re.DOTALL)

_ONE_DEVICE = r"<\s*\[\s*\]\s*,\s*device_ids"
_MESHES_OF_ONE = re.compile(rf'@"?([\w.$-]+)"?\s*=\s*{_ONE_DEVICE}|mesh{_ONE_DEVICE}[^>]*>[^}}]*sym_name\s*=\s*"([^"]*)"')
_SHARDING_LISTS = re.compile(r"\b(?:in|out)_shardings\s*=")
_SHARDING = re.compile(rf'<\s*(?:mesh\s*{_ONE_DEVICE}|@"?([\w.$-]+))')


class _Alias(NamedTuple):
    """The value of an alias: where it begins, brackets that are open at once, characters, and whether it is a location."""

    start: int
    depth: int
    size: int
    is_location: bool


def check_text(text: str) -> None:
    """Checks that jaxlib can read a module and print what is in it.

    Raises ShardyError if it is no Unicode text, the name of an op is not UTF-8, it is nested too deep, its aliases stand for too much text,
    an affine map or set is too long, or a manual computation states a sharding over one device.
    """
    _check_encoding(text)
    aliases = _aliases(text)
    _check_nesting(text, max((alias.depth for alias in aliases.values()), default=0))
    _check_uses(text, aliases)
    if "affine_" in text:
        _check_affine(text)
    if "manual_computation" in text and "device_ids" in text:
        _check_manual_computations(text, aliases)


def _check_encoding(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ShardyError("the module is no Unicode text", where=place(text, error.start), why=error.reason) from None
    if "\\" not in text:
        return
    for match in _NAME_OF_OP.finditer(text):
        if match["op"] and "\\" in match[1]:
            try:
                _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode()) if len(escape[1]) == 2 else b"?", match[1].encode()).decode()
            except UnicodeDecodeError:
                raise ShardyError(
                    "the name of an op or function is not UTF-8",
                    where=place(text, match.start()),
                    why="jaxlib ends the process where it is read",
                ) from None


def _check_nesting(text: str, inside: int) -> None:
    data = _SKIPPED.sub(b"", text.encode(errors="replace")).translate(None, _NO_BRACKETS)
    depth = inside
    for start in range(0, len(data), _CHUNK):
        depths = np.cumsum(_STEPS[np.frombuffer(data[start : start + _CHUNK], np.uint8)], dtype=np.int32)
        if depth + int(depths.max()) > MAX_BRACKETS:
            raise ShardyError(
                f"brackets are nested more than {MAX_BRACKETS:,} deep",
                where=place(text, _position_at_depth(text, MAX_BRACKETS - inside)),
                why="MLIR's parser calls itself for every level and would run out of stack",
                fix="write fewer regions, attributes or types inside each other",
            )
        depth += int(depths[-1])


def _position_at_depth(text: str, limit: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += _step(token[0])
        if depth > limit:
            return token.start()
    return len(text)


def _aliases(text: str) -> dict[str, _Alias]:
    """Name of each alias, with the mark in front -> what it stands for."""
    aliases: dict[str, _Alias] = {}
    for definition in _ALIAS.finditer(text):
        depth = deepest = size = 0
        first = ""
        for token in _tokens_of_value(text, definition.end()):
            first = first or token
            inner = aliases.get(token)
            size += len(token) + (inner.size if inner else 0)
            depth += _step(token)
            deepest = max(deepest, depth + (inner.depth if inner else 0))
        if deepest > MAX_BRACKETS or size > MAX_ALIAS_TEXT:
            raise _too_long(text, definition.start(), definition[1])
        aliases[definition[1]] = _Alias(definition.end(), deepest, size, first == "loc")
    return aliases


def _tokens_of_value(text: str, start: int) -> Iterator[str]:
    """The tokens of the value of an alias: up to the end of a line on which no bracket is open and nothing is to follow."""
    depth, end, last = 0, start, ""
    for token in _TOKEN.finditer(text, start):
        written = token[0]
        if written.startswith("//"):
            continue
        if last and depth <= 0 and ":" not in (last, written) and "\n" in text[end : token.start()]:
            return
        yield written
        end, last = token.end(), written
        depth += _step(written)


def _check_uses(text: str, aliases: Mapping[str, _Alias]) -> None:
    sizes = {name: alias.size for name, alias in aliases.items() if not alias.is_location and alias.size > 100}
    total = 0
    for reference in _REFERENCE.finditer(text) if sizes else ():
        total += sizes.get(reference[0], 0)
        if total > MAX_ALIAS_TEXT:
            raise _too_long(text, reference.start(), reference[0])


def _too_long(text: str, position: int, name: str) -> ShardyError:
    return ShardyError(
        f"alias {name} stands for more text than can be written out",
        where=place(text, position),
        why=f"aliases may be nested {MAX_BRACKETS:,} deep and stand for {MAX_ALIAS_TEXT:,} characters together",
        fix="use fewer aliases inside of aliases",
    )


def _check_affine(text: str) -> None:
    for match in _AFFINE.finditer(text):
        if len(match[0]) > MAX_AFFINE_TEXT:
            raise ShardyError(
                f"an affine map or set has more than {MAX_AFFINE_TEXT:,} characters",
                where=place(text, match.start()),
                why="MLIR's parser calls itself for every term and would run out of stack",
            )


def _check_manual_computations(text: str, aliases: Mapping[str, _Alias]) -> None:
    meshes = {match[1] or match[2] for match in _MESHES_OF_ONE.finditer(text)}
    for match in _SHARDING_LISTS.finditer(text):
        waiting, seen = [match.end()], set[str]()
        while waiting:
            for token, position in _attribute_at(text, waiting.pop()):
                if token in aliases and token not in seen:
                    seen.add(token)
                    waiting.append(aliases[token].start)
                sharding = _SHARDING.match(text, position)
                if sharding is not None and (sharding[1] is None or sharding[1] in meshes):
                    raise ShardyError(
                        "a manual computation states a sharding over one device",
                        where=place(text, position),
                        why="a manual computation is divided over the axes of a mesh, and this one has none; jaxlib ends the process there",
                        fix="state shardings over a mesh with axes",
                    )


def _attribute_at(text: str, start: int) -> Iterator[tuple[str, int]]:
    """The tokens of an attribute with their positions: up to the bracket that closes the first one, or one token."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        yield token[0], token.start()
        depth += _step(token[0])
        if depth <= 0 and text[token.end() : token.end() + 1] != "<":
            return


def _step(token: str) -> int:
    return (token in _OPEN) - (token in _CLOSE)


def place(text: str, position: int) -> str:
    """A place as MLIR writes it."""
    start = text.rfind("\n", 0, position) + 1
    return f"-:{text.count(chr(10), 0, position) + 1}:{position - start + 1}"
