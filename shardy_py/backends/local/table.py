"""The local rules and handlers of all primitives."""

from __future__ import annotations

from collections.abc import Mapping

from shardy_py.backends.local import (
    annotations,
    calls,
    dynamic_slicing,
    effects,
    elementwise,
    indexing,
    iota,
    linear_algebra,
    loops,
    misc,
    moves,
    products,
    random_bits,
    reductions,
    ruled_call,
    shapes,
    slicing,
    sorting,
    windows,
)
from shardy_py.ir.tables import merge_tables

LOCAL_RULES = merge_tables(
    (
        dynamic_slicing.LOCAL_RULES,
        elementwise.LOCAL_RULES,
        indexing.LOCAL_RULES,
        iota.LOCAL_RULES,
        linear_algebra.LOCAL_RULES,
        products.LOCAL_RULES,
        random_bits.LOCAL_RULES,
        reductions.LOCAL_RULES,
        misc.LOCAL_RULES,
        moves.LOCAL_RULES,
        shapes.LOCAL_RULES,
        slicing.LOCAL_RULES,
        sorting.LOCAL_RULES,
        windows.LOCAL_RULES,
    )
)
"""Primitive -> builder of its local rule."""

HANDLERS = merge_tables((annotations.HANDLERS, calls.HANDLERS, effects.HANDLERS, loops.HANDLERS, ruled_call.HANDLERS))
"""Primitive -> handler, for equations that hold jaxprs or name shardings."""

_WHOLE: Mapping[str, str] = {
    "is a sparse array's, whose entries lie in no dimension of it": """
        bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices bcoo_spdot_general bcoo_sum_duplicates
        bcoo_todense bcoo_transpose bcsr_dot_general bcsr_extract bcsr_fromdense bcsr_todense coo_fromdense coo_matmat coo_matvec
        coo_todense csr_fromdense csr_matmat csr_matvec csr_todense todense
    """,
    "is a half of a collective, which a region of the user's holds on the way from its start to its end": """
        all_gather_done all_gather_reduced_start all_gather_start all_to_all_done all_to_all_start pbroadcast_done pbroadcast_start
        ppermute_done ppermute_start precv psend psum_done psum_invariant_start psum_start reduce_scatter_done reduce_scatter_start
        unreduced_psum_start unreduced_reduce_scatter_start
    """,
    "acts on references, which have no value to cut": "run_state",
    "asks for another processor": "compute_on",
    "draws from one state for all numbers": "rng_bit_generator",
    "picks what to scatter by a function of the user's": "select_and_scatter",
    "is code that was compiled elsewhere": "call_exported",
    "has blocks that share a scale": "scaled_dot",
    "has no array to cut": "after_all create_token dim_as_value dimension_size shape_assertion",
    "stands for something of JAX's own, on arrays of any kind": """
        assert_consumed_value broadcast_to consume create_linear custom_lin dce_sink empty2 from_edtype pin stage tie to_edtype unpin
    """,
}


def _reasons(groups: Mapping[str, str]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for reason, names in groups.items():
        for name in names.split():
            if name in reasons or name in LOCAL_RULES or name in HANDLERS:
                raise ValueError(f"primitive '{name}' stands in two tables; remove one")
            reasons[name] = reason
    return reasons


RUNS_WHOLE = _reasons(_WHOLE)
"""Primitive without local rule -> why every device runs it on gathered operands; the reason follows the primitive's name."""
