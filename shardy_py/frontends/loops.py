"""How the equations of loops divide their operands."""

from __future__ import annotations

from shardy_py.frontends._jax import scan_counts as scan_counts
