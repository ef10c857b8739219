"""JAX primitives of manual axes: those in which devices exchange data, and casts between types that name these axes."""

from __future__ import annotations

from collections.abc import Mapping

COLLECTIVE_KINDS: Mapping[str, str] = {
    "all_gather": "all_gather",
    "all_gather_invariant": "all_gather",
    "all_to_all": "all_to_all",
    "pmax": "all_reduce",
    "pmin": "all_reduce",
    "pmul": "all_reduce",
    "ppermute": "collective_permute",
    "psum": "all_reduce",
    "psum_invariant": "all_reduce",
    "reduce_scatter": "reduce_scatter",
}
"""Primitive in which devices exchange data -> kind of collective."""

PSUMS = ("psum", "psum_invariant", "unreduced_psum")
"""Sums over manual axes; they differ in the types of their results."""

CASTS = ("preduced", "pvary", "reduced_vary_cast", "reduced_vary_cast_p", "vary_unreduced_cast", "vary_unreduced_cast_p")
"""Casts that only change how a type names manual axes; the names without `_p` are those of jax 0.12."""
