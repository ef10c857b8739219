"""Texts of single attributes, as MLIR prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from shardy_py.frontends._jax import ir


def attribute_text(op: ir.OpView, name: str) -> str:
    """The text of one attribute, also where jaxlib has no class for it, as for elements of complex numbers."""
    try:
        return str(op.attributes[name])
    except TypeError:
        text = str(op.operation.get_asm(print_generic_op_form=True))
        start = re.search(rf"[<{{ ]{re.escape(name)} = ", text)
        if start is None:
            raise
        return next(split_entries(text[start.end() :]))


def split_entries(text: str) -> Iterator[str]:
    """Splits at commas outside of brackets and strings, up to the first bracket that closes what is open around the text.

    Example:
        >>> list(split_entries('array<i64: 1, 2>, "a,b" }>'))
        ['array<i64: 1, 2>', '"a,b"']
    """
    depth = start = 0
    for token in _TOKEN.finditer(text):
        found = token[0]
        if found in _OPEN:
            depth += 1
        elif found in _CLOSE:
            depth -= 1
            if depth < 0:
                yield text[start : token.start()].strip()
                return
        elif found == "," and depth == 0:
            yield text[start : token.start()].strip()
            start = token.end()
    if text[start:].strip():
        yield text[start:].strip()


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|->|[<>(){}\[\],]')
_OPEN = frozenset("<({[")
_CLOSE = frozenset(">)}]")
