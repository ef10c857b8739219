"""The table of all JAX primitives and how they are imported, so that none is passed over in silence."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple


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


NATIVE = """
    abs acos acosh add add_any agreed all_gather all_gather_invariant all_gather_reduced all_to_all and asin asinh atan atan2 atanh
    bessel_i1e bitcast_convert_type broadcast_in_dim cbrt ceil clamp clz complex concatenate conj conv_general_dilated
    convert_element_type copy cos cosh digamma div dot_general dynamic_slice dynamic_update_slice empty empty2 eq eq_to erf
    erf_inv erfc exp exp2 expm1 fft floor from_edtype gather ge gt imag integer_pow iota iota_2x32_shape is_finite le le_to
    lgamma log log1p logistic lt lt_to max min mul multiple_of name ne neg nextafter not or pad pbroadcast pmax pmin
    polygamma population_count pow ppermute preduced psum psum_invariant pvary random_clone random_unwrap random_wrap real
    reduce reduce_and reduce_max reduce_min reduce_or reduce_precision reduce_prod reduce_scatter reduce_sum reduce_window
    reduce_window_max reduce_window_min reduce_window_sum reduce_xor reduced_vary_cast reduced_vary_cast_p rem reshape rev
    round rsqrt scatter scatter-add scatter-max scatter-min scatter-mul scatter-sub select_and_scatter select_n shift_left
    shift_right_arithmetic shift_right_logical sign sin sinh slice sort split sqrt square squeeze stack stage stop_gradient
    sub tan tanh tile to_edtype top_k transpose unreduced_psum unreduced_reduce_scatter unstack vary_unreduced_cast
    vary_unreduced_cast_p xor zeta
"""

REGION = """
    axis_index call closed_call compute_on cond custom_jvp_call custom_linear_solve custom_vjp_call custom_vmap_call device_put jit
    linear_call optimization_barrier partitioned_call platform_index remat2 remat_opt reshard run_state scan sdy_propagation_barrier
    sdy_ruled_call sdy_sharding_constraint sdy_sharding_group shard_alike shard_map sharding_constraint while xla_metadata_call
"""

LOWERED = """
    after_all approx_top_k argmax argmin assert_consumed_value bcoo_dot_general bcoo_dot_general_sampled bcoo_extract
    bcoo_fromdense bcoo_sort_indices bcoo_spdot_general bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general
    bcsr_extract bcsr_fromdense bcsr_todense bessel_i0e broadcast_to call_exported cholesky cholesky_update consume
    coo_fromdense coo_matmat coo_matvec coo_todense create_linear create_token csr_fromdense csr_matmat csr_matvec
    csr_todense cumlogsumexp cummax cummin cumprod cumsum custom_fusion custom_lin dce_sink dim_as_value dimension_size eig
    eigh fusible geqp3 geqrf hessenberg householder_product igamma igamma_grad_a igammac layout_constraint log2 lu
    lu_pivots_to_permutation mulhi one_minus_square ormqr partial_sums philox2x32 philox4x32 pin polynomial qr
    ragged_dot_general random_bits random_fold_in random_gamma random_seed random_split reciprocal
    regularized_incomplete_beta relayout rng_bit_generator rng_uniform scaled_dot schur select_and_gather_add
    select_and_scatter_add shape_assertion svd symmetric_product threefry2x32 threefry4x32 tie todense triangular_solve
    tridiagonal tridiagonal_solve unpin with_memory_space_constraint xla_metadata_value
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


def _entries(groups: Iterable[tuple[Entry, str]]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for entry, names in groups:
        for name in names.split():
            if name in entries:
                raise ValueError(f"primitive '{name}' is in the table twice; remove it from one of the groups")
            entries[name] = entry
    return entries


ENTRIES: Mapping[str, Entry] = _entries(
    (
        (Entry(Kind.NATIVE), NATIVE),
        (Entry(Kind.REGION), REGION),
        (Entry(Kind.LOWERED), LOWERED),
        (Entry(Kind.LOWERED), COLLECTIVES),
        *((Entry(Kind.OPAQUE, reason), names) for reason, names in OPAQUE.items()),
    )
)
"""Primitive name -> how it is read."""
