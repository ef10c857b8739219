"""Stored plans as files; gzip where the name ends with `.gz`."""

from __future__ import annotations

import gzip
import os
import zlib

from shardy_py.files import write_file
from shardy_py.plan.store.checks import StoreError
from shardy_py.plan.store.document import P, read_plan

MOST_BYTES = 1 << 30
"""A text of more bytes is not read: a small file can be made to unpack without end."""

_GZIP = b"\x1f\x8b"


def save_text(document: str, path: str | os.PathLike[str]) -> None:
    """Writes a text, gzip for a path ending in `.gz`: equal texts give equal bytes, atomically. Raises OSError if it cannot."""
    content = document.encode("utf-8")
    if os.fsdecode(path).endswith(".gz"):
        content = gzip.compress(content, compresslevel=6, mtime=0)
    write_file(path, content)


def load_bytes(path: str | os.PathLike[str]) -> bytes:
    """The text that `save_text` wrote. Raises OSError if it cannot be read, StoreError if damaged or longer than `MOST_BYTES`."""
    with open(path, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if content.startswith(_GZIP):
        content = _decompressed(content)
    if len(content) > MOST_BYTES:
        raise StoreError(f"a text of more than {MOST_BYTES} bytes", where=str(path))
    return content


def _decompressed(content: bytes) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    try:
        data = decompressor.decompress(content, MOST_BYTES + 1)
    except zlib.error as error:
        raise StoreError(f"the gzip file is damaged: {error}") from None
    if not decompressor.eof and len(data) <= MOST_BYTES:
        raise StoreError("the gzip file is cut short")
    return data


def load_plan(path: str | os.PathLike[str], kind: type[P]) -> P:
    """A plan from a file that `Plan.save` wrote. Raises OSError if it cannot be read, StoreError if it is not a plan of this version."""
    try:
        return read_plan(load_bytes(path), kind)
    except StoreError as error:
        error.at(os.fspath(path))
        raise
