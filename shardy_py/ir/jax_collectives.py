"""The JAX primitives in which devices exchange data, each with its kind of collective. There is no other list of them."""

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
"""Primitive -> kind of collective."""
