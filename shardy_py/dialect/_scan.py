"""Names as SDY text has them, and a cursor over it: MLIR's tokens, and errors that point at the place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from shardy_py.errors import DialectError, ParseError

T = TypeVar("T")

_SPACE = re.compile(r"(?:[ \t\r\n]|//[^\n]*)*")
_KEYWORD = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[0-9]+(?P<fraction>\.[0-9]*(?:[eE][-+]?[0-9]+)?)?")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-9a-fA-F]{2}|.)", re.DOTALL)
_SIMPLE_ESCAPES = {b'"': b'"', b"\\": b"\\", b"n": b"\n", b"t": b"\t"}
_INT64 = 1 << 63


class Scanner:
    """Reads tokens from a text, left to right; white space and comments before `position` are skipped already."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self._skip(0)

    def fail(self, what: str, position: int | None = None, fix: str | None = None) -> NoReturn:
        """Raises a ParseError at a position, by default at the next token."""
        raise ParseError(what, self.text, self.position if position is None else position, fix=fix)

    def at(self, token: str) -> bool:
        """Whether the next token is this punctuation."""
        return self.text.startswith(token, self.position)

    def accept(self, token: str) -> bool:
        """Steps over this punctuation if it comes next, and says whether it did."""
        if not self.text.startswith(token, self.position):
            return False
        self._skip(self.position + len(token))
        return True

    def expect(self, token: str) -> None:
        """Steps over this punctuation."""
        if not self.accept(token):
            self.fail(f"expected '{token}'")

    def keyword(self) -> str | None:
        """An identifier, or None if something else comes next."""
        match = _KEYWORD.match(self.text, self.position)
        if match is None:
            return None
        self._skip(match.end())
        return match.group()

    def accept_keyword(self, word: str) -> bool:
        """Steps over this identifier if it comes next, and says whether it did."""
        match = _KEYWORD.match(self.text, self.position)
        if match is None or match.group() != word:
            return False
        self._skip(match.end())
        return True

    def string(self) -> str:
        """The value of a string literal."""
        start = self.position
        if not self.at('"'):
            self.fail("expected string")
        match = _STRING.match(self.text, start)
        if match is None:
            self.fail("expected '\"' in string literal", len(self.text[start:].split("\n", 1)[0]) + start)
        self._skip(match.end())
        body = match.group(1)
        if "\\" not in body:
            return body
        raw = _ESCAPE.sub(lambda escape: self._unescaped(escape, start), body.encode("utf-8", "surrogateescape"))
        return raw.decode("utf-8", "surrogateescape")

    def integer(self) -> int:
        """A decimal or hexadecimal integer of 64 bits, possibly negative."""
        start = self.position
        negative = self.accept("-")
        match = _NUMBER.match(self.text, self.position)
        if match is None or match.group("fraction"):
            self.fail("expected integer value")
        value = int(match.group(), 0 if match.group().startswith("0x") else 10)
        value = -value if negative else value
        if not -_INT64 <= value < _INT64:
            self.fail("integer value too large", start)
        self._skip(match.end())
        return value

    def symbol(self) -> str:
        """The name in `@name` or `@"name"`."""
        start = self.position
        self.expect("@")
        if self.position == start + 1:
            if self.at('"'):
                name = self.string()
                return name or self.fail("expected a name in '@\"\"'", start)
            name = self.keyword()
            if name is not None:
                return name
        self.fail("@ identifier expected to start with letter or '_'", start + 1)

    def listed(self, opening: str, closing: str, item: Callable[[], T], *, may_be_empty: bool = True) -> tuple[T, ...]:
        """Items with commas between them, in brackets."""
        self.expect(opening)
        if may_be_empty and self.accept(closing):
            return ()
        items = [item()]
        while self.accept(","):
            items.append(item())
        self.expect(closing)
        return tuple(items)

    def make(self, position: int, build: Callable[[], T]) -> T:
        """Builds a value; what it says is wrong with its parts becomes an error at `position`."""
        try:
            return build()
        except DialectError as error:
            raise ParseError(error.what, self.text, position, fix=error.fix) from None

    def end(self) -> None:
        """Checks that nothing follows."""
        if self.position < len(self.text):
            self.fail(f"found trailing characters: '{self.text[self.position :]}'")

    def _skip(self, position: int) -> None:
        match = _SPACE.match(self.text, position)
        self.position = match.end() if match else position

    def _unescaped(self, escape: re.Match[bytes], start: int) -> bytes:
        code = escape.group(1)
        if len(code) == 2:
            return bytes([int(code, 16)])
        if code not in _SIMPLE_ESCAPES:
            self.fail("unknown escape in string literal", start, fix=r"use \n, \t, \\, \" or two hexadecimal digits after the backslash")
        return _SIMPLE_ESCAPES[code]


_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*\Z", re.ASCII)


def quoted(name: str) -> str:
    r"""A string literal: bytes that are not printable ASCII, and `"`, become `\XX`."""
    if name.isascii() and name.isprintable() and '"' not in name and "\\" not in name:
        return f'"{name}"'
    return '"' + "".join(map(_escaped, name.encode("utf-8", "surrogateescape"))) + '"'


def symbol(name: str) -> str:
    """A symbol reference: `@mesh`, or `@"my mesh"` where the name is not an identifier."""
    return "@" + (name if _BARE.match(name) else quoted(name))


def _escaped(byte: int) -> str:
    if byte == 0x5C:
        return "\\\\"
    return chr(byte) if 0x20 <= byte < 0x7F and byte != 0x22 else f"\\{byte:02X}"
