"""The table of all JAX primitives and how they are imported, so that none is passed over in silence."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shardy_py.frontends.primitives import TEMPLATES
from shardy_py.frontends.readers import READERS


class Kind(enum.Enum):
    """Ways in which equations of a primitive become ops."""

    NATIVE = "a template in this package writes the ops"
    REGION = "a module of `frontends/readers` reads it: it holds other jaxprs, or says something about shardings"
    LOWERED = "`lower_fragment` reads what JAX's own lowering rule gives"
    OPAQUE = "one op that no sharding passes through"


class Entry(NamedTuple):
    """A primitive's line in the table; `reason` says why an opaque one is opaque."""

    kind: Kind
    reason: str = ""


LOWERED = """
    acos acosh after_all approx_top_k argmax argmin asin asinh assert_consumed_value atan atanh bcoo_dot_general bcoo_dot_general_sampled
    bcoo_extract bcoo_fromdense bcoo_sort_indices bcoo_spdot_general bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general
    bcsr_extract bcsr_fromdense bcsr_todense bessel_i0e bessel_i1e broadcast_to call_exported cbrt cholesky cholesky_update clz conj
    consume coo_fromdense coo_matmat coo_matvec coo_todense cosh create_linear create_token csr_fromdense csr_matmat csr_matvec
    csr_todense cumlogsumexp cummax cummin cumprod cumsum custom_fusion custom_lin dce_sink digamma dim_as_value dimension_size eig eigh
    eq_to erf erf_inv erfc exp2 fft fusible gather geqp3 geqrf hessenberg householder_product igamma igamma_grad_a igammac iota_2x32_shape
    layout_constraint le_to lgamma log2 logistic lt_to lu lu_pivots_to_permutation mulhi nextafter one_minus_square ormqr partial_sums
    philox2x32 philox4x32 pin polygamma polynomial population_count pow qr ragged_dot_general random_bits random_fold_in random_gamma
    random_seed random_split reciprocal reduce reduce_window reduce_window_max reduce_window_min reduce_window_sum
    regularized_incomplete_beta relayout rng_bit_generator rng_uniform round scaled_dot scatter scatter-add scatter-max scatter-min
    scatter-mul scatter-sub schur select_and_gather_add select_and_scatter select_and_scatter_add shape_assertion sign sinh sort stack svd
    symmetric_product tan threefry2x32 threefry4x32 tie tile todense top_k triangular_solve tridiagonal tridiagonal_solve unpin unstack
    with_memory_space_constraint xla_metadata_value zeta
"""

COLLECTIVES = """
    all_gather_done all_gather_reduced_start all_gather_start all_to_all_done all_to_all_start pbroadcast_done
    pbroadcast_dynamic pbroadcast_start ppermute_done ppermute_start precv psend psum_done psum_invariant_start psum_start
    ragged_all_to_all reduce_scatter_done reduce_scatter_start unreduced_pmax unreduced_pmin unreduced_psum_start
    unreduced_reduce_scatter_start
"""
"""Read through JAX's own lowering too, inside the manual computation that binds their axes."""

OPAQUE: Mapping[str, str] = {
    "is a GPU kernel of cuDNN, and jaxlib has no rule for its custom call either.": """
        cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd
        dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper
        dot_product_attention_fwd dot_product_attention_fwd_wrapper fused_call rnn_bwd rnn_fwd scaled_matmul
        scaled_matmul_wrapper
    """,
    "calls back into Python, and jaxlib has no rule for callbacks either.": """
        buffer_callback check debug_callback debug_print inspect_sharding io_callback pure_callback
    """,
    "is a kernel or a call whose inside is not traced; give it a rule with `sharding_rule`.": """
        composite core_map custom_partitioning ffi_call mosaic_gpu_p mpmd_map pallas_call tpu_custom_call
    """,
    "is a sparse kernel of one platform, and jaxlib has no rule for its custom call either.": """
        coo_spmm coo_spmv csr_spmm csr_spmv spsolve
    """,
    "acts on a reference, which has no value to shard until JAX discharges it.": """
        accum_grad_in_ref addupdate empty_ref free_ref freeze get get_global masked_load masked_swap new_ref run_scoped swap
    """,
    "only stands inside Pallas kernels, which are not looked into.": """
        bitcast delay einshape_lo max_contiguous num_programs program_id remove_memory_space roll semaphore_read semaphore_signal
        semaphore_wait
    """,
    "works on boxes and logs that live while Python traces, not on arrays.": """
        box_get box_set log_extend log_read new_box new_log
    """,
    "is expanded by JAX before a jaxpr is lowered.": """
        call_hi_primitive call_hi_primitive_linearized custom_jvp_call_jaxpr eval_jaxpr jaxpr_call zeros_like
    """,
    "moves data between the processes of a job and needs their devices.": """
        global_array_to_host_local_array host_local_array_to_global_array
    """,
    "marks code that is never reached.": """
        unreachable
    """,
}
"""Reason -> primitives; the reason follows the name of the primitive."""


def _entries(groups: Iterable[tuple[Entry, Iterable[str]]]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for entry, names in groups:
        for name in names:
            if name in entries:
                raise ValueError(f"primitive '{name}' is in the table twice; remove it from one of the groups")
            entries[name] = entry
    return entries


_UNREAD = {name for names in OPAQUE.values() for name in names.split()}

ENTRIES: Mapping[str, Entry] = _entries(
    (
        (Entry(Kind.NATIVE), TEMPLATES),
        (Entry(Kind.REGION), [name for name in READERS if name not in _UNREAD]),
        (Entry(Kind.LOWERED), f"{LOWERED} {COLLECTIVES}".split()),
        *((Entry(Kind.OPAQUE, reason), names.split()) for reason, names in OPAQUE.items()),
    )
)
"""Primitive name -> how it is read."""
