"""How each primitive of JAX is imported, so that none is passed over in silence."""

from __future__ import annotations

from shardy_py.frontends.primitives import TEMPLATES
from shardy_py.frontends.readers import READERS
from shardy_py.frontends.readers.opaque import REASONS

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

READ = {*TEMPLATES, *(name for name in READERS if name not in REASONS), *LOWERED.split(), *COLLECTIVES.split()}
"""Primitives that shardings pass through."""
