"""Names in MLIR's syntax."""

from __future__ import annotations

import re

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
