"""Readers of equations that are more than a list of ops, one module per kind; a primitive named twice is an error."""

from __future__ import annotations

from shardy_py.frontends import annotations as sdy_annotations
from shardy_py.frontends.readers import calls, constraints, control_flow, manual, opaque, scans
from shardy_py.frontends.readers.common import ReaderTable

TABLES = (calls.READERS, constraints.READERS, control_flow.READERS, manual.READERS, opaque.READERS, scans.READERS, sdy_annotations.READERS)


def _merged() -> ReaderTable:
    merged: ReaderTable = {}
    for table in TABLES:
        for name, reader in table.items():
            if name in merged:
                raise ValueError(f"primitive {name!r} has two readers")
            merged[name] = reader
    return merged


READERS: ReaderTable = _merged()
