"""Properties of ops that passes ask for instead of comparing names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardy_py.dialect import PropagationDirection, TensorSharding
from shardy_py.ir.verifier import TERMINATORS as TERMINATORS

if TYPE_CHECKING:
    from shardy_py.ir.core import Op

UNCONSTRAINED = "unconstrained_dims"
"""The attribute of a constraint that has the dimensions that its user leaves open."""

CONSTANTS = frozenset(("sdy.constant", "stablehlo.constant"))

DOTS = frozenset(("stablehlo.dot", "stablehlo.dot_general"))
"""Matrix products."""

CONSTRAINTS = frozenset(("sdy.sharding_constraint", "sdy.reshard"))
"""Ops that set the sharding of their operand."""

ELEMENTWISE = frozenset(
    [
        *(
            f"stablehlo.{name}"
            for name in (
                "abs add and atan2 cbrt ceil clamp compare complex convert cosine count_leading_zeros divide exponential"
                " exponential_minus_one floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not or popcnt"
                " power real reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left"
                " shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh uniform_dequantize uniform_quantize xor"
            ).split()
        ),
        *(
            f"chlo.{name}"
            for name in (
                "acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma erf erf_inv erfc is_inf is_neg_inf is_pos_inf lgamma mulhi"
                " next_after polygamma sinh square zeta"
            ).split()
        ),
        "sdy.propagation_barrier",
        "sdy.reshard",
        "sdy.sharding_constraint",
    ]
)
"""Ops with MLIR's `Elementwise` or StableHLO's `BroadcastingElementwise` trait; `bitcast_convert` is one where no shape changes.

A CHLO op is many StableHLO ops once it is legalised. It stands as one that takes an operand twice where these use it more than once;
see `frontends/lowered.py`."""

PASS_THROUGH = frozenset(("sdy.data_flow_edge", "sdy.func_data_flow_edge", "stablehlo.reshape", "stablehlo.transpose"))
"""Ops besides the elementwise ones that propagate both ways in the first two rounds of op-priority propagation."""

PASS_THROUGH_FORWARD = frozenset(("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"))
"""Ops that propagate only forward in these rounds."""

PASS_THROUGH_TARGETS = frozenset(("MoveToDevice", "MoveToHost"))
"""Custom call targets that propagate both ways in these rounds."""

PURE = frozenset(
    [
        *ELEMENTWISE.difference(("sdy.sharding_constraint",)),
        *PASS_THROUGH_FORWARD,
        *CONSTANTS,
        *(
            f"stablehlo.{name}"
            for name in (
                "after_all batch_norm_grad batch_norm_inference batch_norm_training bitcast_convert broadcast broadcast_in_dim case"
                " cholesky concatenate convolution create_token dot dot_general dynamic_broadcast_in_dim dynamic_conv dynamic_gather"
                " dynamic_iota dynamic_pad dynamic_reshape einsum fft gather get_dimension_size get_tuple_element if iota map"
                " optimization_barrier pad partition_id real_dynamic_slice reduce reduce_window replica_id reshape reverse"
                " rng_bit_generator scatter select_and_scatter set_dimension_size slice sort torch_index_select transpose"
                " triangular_solve tuple unary_einsum while"
            ).split()
        ),
        "sdy.all_to_all",
        "sdy.manual_computation",
        "sdy.named_computation",
    ]
)
"""Ops without effects of their own; they can still hold ops that have some."""


def is_elementwise(op_name: str) -> bool:
    """Whether an op treats each position by itself; see `ELEMENTWISE` for `bitcast_convert`."""
    return op_name in ELEMENTWISE


def is_constraint(op: Op) -> bool:
    """Whether an op is a `with_sharding_constraint` of the user's; others come from types, arguments and results."""
    return op.name in CONSTRAINTS and op.primitive == "sharding_constraint"


def attributes_of_constraint(sharding: TensorSharding) -> dict[str, Any] | None:
    """The attributes of a constraint: the dimensions that the user leaves open, which its sharding tells no more once it is closed."""
    dims = tuple(dim for dim, entry in enumerate(sharding.dims) if not entry.is_closed and not entry.axes)
    return {UNCONSTRAINED: dims} if dims else None


def is_pure(op: Op) -> bool:
    """Whether an op without uses is dead: its results are its only effect."""
    name = op.name
    if name == "stablehlo.custom_call":
        return not op.attributes.get("has_side_effect", False)
    if name not in PURE and not name.startswith("chlo."):
        return False
    return not op.regions or all(is_pure(inner) or inner.name in TERMINATORS for region in op.regions for inner in region.ops)


def pass_through_direction(op: Op) -> PropagationDirection:
    """The direction in which an op propagates in the first two rounds of op-priority propagation."""
    name = op.name
    if name in ELEMENTWISE or name in PASS_THROUGH:
        return PropagationDirection.BOTH
    if name in PASS_THROUGH_FORWARD:
        return PropagationDirection.FORWARD
    if name == "stablehlo.custom_call" and op.attributes["call_target_name"] in PASS_THROUGH_TARGETS:
        return PropagationDirection.BOTH
    if name == "stablehlo.bitcast_convert" and op.operands[0].type.shape == op.results[0].type.shape:
        return PropagationDirection.BOTH
    return PropagationDirection.NONE
