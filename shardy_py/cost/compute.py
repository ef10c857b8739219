"""How many operations an op makes on one device, counted as XLA's HloCostAnalysis counts them, and how long a roofline says that takes.

A multiplication and an addition are two operations; functions such as exp are counted apart, as transcendentals. Ops that only move
data make none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from shardy_py.cost.hardware import Hardware
from shardy_py.cost.sizes import LocalSizes
from shardy_py.ir import Op

TRANSCENDENTALS = frozenset(
    (
        *(
            f"stablehlo.{name}"
            for name in (
                "atan2 cbrt cosine exponential exponential_minus_one log log_plus_one logistic power rsqrt sine sqrt tan tanh".split()
            )
        ),
        *(
            f"chlo.{name}"
            for name in "acos acosh asin asinh atan atanh bessel_i1e cosh digamma erf erf_inv erfc lgamma polygamma sinh zeta".split()
        ),
    )
)
"""Pointwise ops that cost more than one operation per element."""

POINTWISE = frozenset(
    (
        *(
            f"stablehlo.{name}"
            for name in (
                "abs add and ceil clamp compare complex convert count_leading_zeros divide floor imag is_finite maximum minimum multiply "
                "negate not or popcnt real reduce_precision remainder round_nearest_afz round_nearest_even select shift_left "
                "shift_right_arithmetic shift_right_logical sign subtract xor map"
            ).split()
        ),
        *(f"chlo.{name}" for name in "conj is_inf is_neg_inf is_pos_inf mulhi next_after square".split()),
    )
)
"""Pointwise ops of one operation per element."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an op computes on one device, once.

    Attributes:
        flops: Operations.
        transcendentals: Elements of functions such as exp.
        matrix: Element type of a matrix product or convolution; empty for what vector units do.
        known: Whether there is a formula for the op.
    """

    flops: float = 0.0
    transcendentals: float = 0.0
    matrix: str = ""
    known: bool = True


_NOTHING = Work()
_UNKNOWN = Work(known=False)


def work_of(op: Op, sizes: LocalSizes) -> Work:
    """What an op without regions computes.

    Args:
        op: The op, its values with their final shardings.
        sizes: What devices have of values.
    """
    name = op.name
    if name in POINTWISE:
        return Work(sizes.elements(op.results[0]))
    if name in TRANSCENDENTALS:
        return Work(0.0, sizes.elements(op.results[0]))
    count = _COUNTS.get(name)
    if count is not None:
        return count(op, sizes)
    return _NOTHING if name in MOVEMENT or name.startswith("sdy.") else _UNKNOWN


def roofline_seconds(work: Work, moved: float, hardware: Hardware) -> float:
    """The longer of computing and of moving bytes to and from memory.

    Args:
        work: What is computed.
        moved: Bytes.
        hardware: On which.

    Example:
        >>> from shardy_py.cost.hardware_table import hardware
        >>> roofline_seconds(Work(2 * 4096**3, matrix="bfloat16"), 3 * 4096**2 * 2, hardware("h100")) * 989.4e12 == 2 * 4096**3
        True
    """
    if work.matrix:
        computing = work.flops / hardware.matrix_flops(work.matrix)
    else:
        computing = (work.flops + hardware.transcendental_operations * work.transcendentals) / hardware.vector_flops
    return max(computing, moved / hardware.hbm_bandwidth)


MOVEMENT = frozenset(
    (
        "func.return",
        *(
            f"stablehlo.{name}"
            for name in (
                "after_all all_gather all_reduce all_to_all bitcast_convert broadcast_in_dim case collective_broadcast collective_permute "
                "concatenate constant create_token dynamic_slice dynamic_update_slice gather get_tuple_element infeed iota "
                "optimization_barrier outfeed pad partition_id recv reduce_scatter reshape return reverse send slice transpose while"
            ).split()
        ),
    )
)
"""Ops that compute nothing."""


def _product(dtype: str, multiplications: float) -> Work:
    return Work((8 if dtype.startswith("complex") else 2) * multiplications, matrix=dtype)


def _dot_general(op: Op, sizes: LocalSizes) -> Work:
    lhs = op.operands[0]
    attributes = op.attributes
    if op.name == "stablehlo.dot":
        pairs = [(lhs.type.rank - 1, 0)]
    else:
        pairs = list(zip(attributes["lhs_contracting_dimensions"], attributes["rhs_contracting_dimensions"], strict=True))
    contracted = math.prod(-(-lhs.type.shape[i] // _common_cut(op, i, j, sizes)) for i, j in pairs)
    return _product(lhs.type.dtype, sizes.elements(op.results[0]) * contracted)


def _common_cut(op: Op, i: int, j: int, sizes: LocalSizes) -> int:
    """Into how many parts a summed dimension is cut where the op runs: by the axes that both sides have and the result does not.

    What only one side has is gathered; under an axis that the result has too, a device computes its part of the result or of the sum, not
    of both.
    """
    lhs, rhs = op.operands[0].sharding, op.operands[1].sharding
    if lhs is None or rhs is None or not lhs.rank or not rhs.rank:  # whole, or whole on one device
        return 1
    mesh = lhs.mesh_in(sizes.meshes)
    result = op.results[0].sharding
    used = {axis.name for axis in result.dim_axes()} if result is not None else set()
    parts = 1
    for a, b in zip(lhs.dims[i].axes, rhs.dims[j].axes):
        if a is not b:
            break
        parts *= 1 if a.name in used else a.size_in(mesh)
    return parts


def _convolution(op: Op, sizes: LocalSizes) -> Work:
    lhs, rhs = op.operands
    (result,) = op.results
    a = op.attributes
    feature = a["kernel_input_feature_dimension"]
    cut = _common_cut(op, a["input_feature_dimension"], feature, sizes) if a["feature_group_count"] == 1 else 1
    features = -(-rhs.type.shape[feature] // cut)
    elements = sizes.elements(result) * features
    shape = result.type.shape
    for s, (i, k, o) in enumerate(
        zip(a["input_spatial_dimensions"], a["kernel_spatial_dimensions"], a["output_spatial_dimensions"], strict=True)
    ):
        n, window = lhs.type.shape[i], rhs.type.shape[k]
        low = a["padding"][s][0]
        used = _positions(n, window, shape[o], a["window_strides"][s], low, a["lhs_dilation"][s], a["rhs_dilation"][s])
        elements *= used / max(shape[o], 1)
        elements /= _common_cut(op, i, k, sizes)
    return _product(lhs.type.dtype, elements)


@functools.cache
def _positions(n: int, window: int, out: int, stride: int, low: int, base: int, dilation: int) -> int:
    """Pairs of a window's place and a position in it that meet an element of the input, not padding nor what dilation puts between."""
    last = (n - 1) * base
    return sum(1 for w in range(window) for o in range(out) if 0 <= (at := o * stride + w * dilation - low) <= last and at % base == 0)


def _reduce(op: Op, sizes: LocalSizes) -> Work:
    inputs = len(op.results)
    return Work(max(0, sizes.elements(op.operands[0]) - sizes.elements(op.results[0])) * inputs)


def _reduce_window(op: Op, sizes: LocalSizes) -> Work:
    elements, attributes = sizes.elements(op.results[0]), op.attributes
    per_element = 1.0
    for size, window, stride, padding in zip(
        op.operands[0].type.shape, attributes["window_dimensions"], attributes["window_strides"], attributes["padding"], strict=True
    ):
        cumulative = window == size and stride == 1 and sorted(padding) == [0, size - 1]
        per_element *= 1 + _cumulative_operations(size) / max(size, 1) if cumulative else window
    return Work(elements * (per_element - 1) * len(op.results))


CUMULATIVE_BLOCK = 16
"""Elements that XLA's ReduceWindowRewriter accumulates in one window; sums of such blocks are accumulated in the same way."""


def _cumulative_operations(length: int) -> int:
    """Operations of a cumulative op along a dimension, as XLA rewrites its windows, each of which reaches over the whole dimension."""
    if length <= CUMULATIVE_BLOCK:
        return length * max(0, length - 1)
    blocks = -(-length // CUMULATIVE_BLOCK)  # the last one is padded
    return blocks * CUMULATIVE_BLOCK**2 + _cumulative_operations(blocks)


def _select_and_scatter(op: Op, sizes: LocalSizes) -> Work:
    return Work(sizes.elements(op.operands[1]) * math.prod(op.attributes["window_dimensions"]))


def _scatter(op: Op, sizes: LocalSizes) -> Work:
    return Work(sizes.elements(op.operands[-1]))


def _sort(op: Op, sizes: LocalSizes) -> Work:
    elements = sizes.elements(op.operands[0])
    dimension = op.attributes.get("dimension", op.operands[0].type.rank - 1)
    length = op.operands[0].type.shape[dimension] if op.operands[0].type.rank else 1
    return Work(elements * math.ceil(math.log2(max(length, 2))))


def _cholesky(op: Op, sizes: LocalSizes) -> Work:
    return _factorization(op, sizes, 1 / 3)


def _factorization(op: Op, sizes: LocalSizes, flops: float) -> Work:
    """One whose operations are so many times the longer dimension times the square of the shorter one; LAPACK Working Note 41."""
    matrix = op.operands[0]
    rows, columns = sorted(matrix.type.shape[-2:], reverse=True)
    return Work(flops * math.prod(sizes.shape(matrix)[:-2]) * rows * columns**2, matrix=matrix.type.dtype)


def _triangular_solve(op: Op, sizes: LocalSizes) -> Work:
    triangle = op.operands[0].type
    return Work(sizes.elements(op.operands[1]) * triangle.shape[-1], matrix=triangle.dtype)


def _custom_call(op: Op, sizes: LocalSizes) -> Work:
    count = _CUSTOM.get(op.primitive or "")
    return _UNKNOWN if count is None else count(op, sizes)


def _fft(op: Op, sizes: LocalSizes) -> Work:
    lengths = op.attributes.get("fft_length", op.operands[0].type.shape[-1:])
    elements = max(sizes.elements(op.operands[0]), sizes.elements(op.results[0]))
    return Work(5 * elements * sum(math.log2(max(n, 1)) for n in lengths))


def _random_bits(op: Op, sizes: LocalSizes) -> Work:
    return Work(0.0, sizes.elements(op.results[-1]))


_CUSTOM: dict[str, Callable[[Op, LocalSizes], Work]] = {
    "approx_top_k": _sort,
    "cholesky": _cholesky,
    "geqrf": functools.partial(_factorization, flops=4 / 3),
    "householder_product": functools.partial(_factorization, flops=4 / 3),
    "lu": functools.partial(_factorization, flops=2 / 3),
    "triangular_solve": _triangular_solve,
}
"""JAX primitives that become calls of a library; numbers of operations for square matrices."""

_COUNTS: dict[str, Callable[[Op, LocalSizes], Work]] = {
    "stablehlo.cholesky": _cholesky,
    "stablehlo.convolution": _convolution,
    "stablehlo.custom_call": _custom_call,
    "stablehlo.dot": _dot_general,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.fft": _fft,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.rng_bit_generator": _random_bits,
    "stablehlo.scatter": _scatter,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.sort": _sort,
    "stablehlo.triangular_solve": _triangular_solve,
    "chlo.top_k": _sort,
}
