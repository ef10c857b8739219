"""Readers of equations that are more than a list of ops, one module per kind; a primitive named twice is an error."""

from __future__ import annotations

from shardy_py.frontends.readers import calls, constraints, control_flow, manual, opaque
from shardy_py.frontends.readers.common import ReaderTable
from shardy_py.ir.tables import merge_tables

TABLES = (calls.READERS, control_flow.READERS, manual.READERS, opaque.READERS, constraints.READERS)

READERS: ReaderTable = merge_tables(TABLES)
