"""The conversions of ops, by name."""

from __future__ import annotations

from collections.abc import Mapping

from shardy_py.ir.tables import merge_tables
from shardy_py.opt.partitioner.padding import collectives, ops, slicing
from shardy_py.opt.partitioner.padding.padder import Conversion

CONVERSIONS: Mapping[str, Conversion] = merge_tables((collectives.CONVERSIONS, ops.CONVERSIONS, slicing.CONVERSIONS))
"""Ops that are converted in a way of their own; others as `ops.generic` does."""
