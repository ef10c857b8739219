"""Operations of an op on one device, counted as XLA's HloCostAnalysis counts them, and their time by a roofline.

A multiplication and an addition are two operations; functions such as exp are counted separately, as transcendentals. Ops that only move
data have none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from shardy_py.cost.hardware import Hardware
from shardy_py.cost.liveness.placement import placed_in
from shardy_py.cost.sizes import LocalSizes
from shardy_py.ir import Op
from shardy_py.ir.operation import Operation
from shardy_py.rules.traits import DOTS, ELEMENTWISE

Shape = Sequence[int]
Shapes = Sequence[Shape]
N = TypeVar("N", int, float)

PRODUCTS = DOTS | {"stablehlo.convolution"}
"""Ops that sum over dimensions of two sides."""

_MATH = "atan2 cbrt cosine exponential exponential_minus_one log log_plus_one logistic power rsqrt sine sqrt tan tanh".split()
_CHLO_MATH = "acos acosh asin asinh atan atanh bessel_i1e cosh digamma erf erf_inv erfc lgamma polygamma sinh zeta".split()
TRANSCENDENTALS = frozenset((*(f"stablehlo.{name}" for name in _MATH), *(f"chlo.{name}" for name in _CHLO_MATH)))
"""Pointwise ops that cost more than one operation per element."""

POINTWISE = frozenset(op for op in ELEMENTWISE - TRANSCENDENTALS if not op.startswith(("sdy.", "stablehlo.uniform_"))) | {"stablehlo.map"}
"""Pointwise ops of one operation per element; there is no formula for quantization."""


class Work(NamedTuple):
    """The operations of an op on one device, once; `matrix` is the element type of a matrix product, empty for vector units.

    `host` is the bytes that it moves over the link to the host.
    """

    flops: float = 0.0
    transcendentals: float = 0.0
    matrix: str = ""
    has_formula: bool = True
    host: float = 0.0


class Accessed(NamedTuple):
    """What an op reads from memory and writes to it, once.

    Attributes:
        packed: Elements of fewer than 32 bits that its kernel writes, which the vector units of TPUs pack from wider ones.
        kernels: 1 if it is one. Prices of calibrated hardware count both.
    """

    bytes: float
    packed: float = 0.0
    kernels: int = 0


_NOTHING = Work()
_UNKNOWN = Work(has_formula=False)


def work(op: Operation, operands: Sequence[Shape], results: Sequence[Shape]) -> Work:
    """The operations of an op without regions on pieces of the given shapes.

    Sizes are numbers, or arrays of one length with an entry per layout; the figures of the result are of the same kind.
    """
    name = op.name
    if name in POINTWISE:
        return Work(math.prod(results[0]))
    if name in TRANSCENDENTALS:
        return Work(0.0, math.prod(results[0]))
    count = _COUNTS.get(name)
    if count is not None:
        return count(op, operands, results)
    return _NOTHING if name in MOVEMENT or name.startswith("sdy.") else _UNKNOWN


def work_of(op: Op, sizes: LocalSizes) -> Work:
    """The operations of an op without regions whose values have their final shardings."""
    if placed_in(op):
        return Work(host=sizes.bytes(op.result))
    return work(op, [sizes.shape(v) for v in op.operands], [sizes.shape(v) for v in op.results])


def roofline_seconds(work: Work, accessed: Accessed, hardware: Hardware) -> float:
    """The longest of computing, of moving bytes to and from memory, and of moving them to or from the host.

    Hardware with a `calibration` takes the rates of its compiler for memory, and a fixed time per kernel.

    Example:
        >>> from shardy_py.cost.hardware_table import hardware
        >>> roofline_seconds(Work(2 * 4096**3, matrix="bfloat16"), Accessed(3 * 4096**2 * 2), hardware("h100")) * 989.4e12 == 2 * 4096**3
        True
    """
    if work.matrix:
        computing = work.flops / hardware.matrix_flops(work.matrix)
    else:
        computing = (work.flops + hardware.transcendental_operations * work.transcendentals) / hardware.vector_flops
    if (rates := hardware.calibration) is None:
        busy = larger(computing, accessed.bytes / hardware.hbm_bandwidth)
    else:
        moving = accessed.bytes / rates.bandwidth + accessed.packed * rates.pack_seconds
        busy = larger(computing, moving) + accessed.kernels * rates.kernel_seconds
    return larger(busy, work.host / (hardware.host_bandwidth or math.inf)) if work.host else busy


def larger(a: N, b: N) -> N:
    """The larger of two numbers, or of two arrays place by place."""
    return a * (a >= b) + b * (a < b)


_MOVEMENT = (
    "after_all all_gather all_reduce all_to_all bitcast_convert broadcast_in_dim case collective_broadcast collective_permute "
    "concatenate constant create_token dynamic_slice dynamic_update_slice gather get_tuple_element infeed iota "
    "optimization_barrier outfeed pad partition_id recv reduce_scatter reshape return reverse send slice transpose while"
)
MOVEMENT = frozenset(("func.return", *(f"stablehlo.{name}" for name in _MOVEMENT.split())))
"""Ops that compute nothing."""


def _product(dtype: str, multiplications: float) -> Work:
    return Work((8 if dtype.startswith("complex") else 2) * multiplications, matrix=dtype)


def _dot_general(op: Operation, operands: Shapes, results: Shapes) -> Work:
    summed: Sequence[int] = op.attributes.get("lhs_contracting_dimensions", (op.operands[0].type.rank - 1,))
    return _product(op.operands[0].type.dtype, math.prod(results[0]) * math.prod(operands[0][d] for d in summed))


def _ragged_dot(op: Operation, operands: Shapes, results: Shapes) -> Work:
    """Each row of the left side meets one matrix of the right side."""
    a, free = op.attributes, list(operands[1])
    for dim in (*a["rhs_batching_dimensions"], *a["rhs_contracting_dimensions"], *a["rhs_group_dimensions"]):
        free[dim] = 1
    return _product(op.operands[0].type.dtype, math.prod(operands[0]) * math.prod(free))


def _convolution(op: Operation, operands: Shapes, results: Shapes) -> Work:
    lhs, rhs = (v.type for v in op.operands)
    a = op.attributes
    feature: int = a["kernel_input_feature_dimension"]
    elements = math.prod(results[0]) * operands[1][feature]
    shape = op.results[0].type.shape
    spatial: Iterable[tuple[int, int, int]] = zip(
        a["input_spatial_dimensions"], a["kernel_spatial_dimensions"], a["output_spatial_dimensions"], strict=True
    )
    for s, (i, k, o) in enumerate(spatial):
        n, window = lhs.shape[i], rhs.shape[k]
        low = a["padding"][s][0]
        used = _positions(n, window, shape[o], a["window_strides"][s], low, a["lhs_dilation"][s], a["rhs_dilation"][s])
        elements *= used / max(shape[o], 1)
        elements *= operands[1][k] / max(window, 1)
    return _product(lhs.dtype, elements)


@functools.cache
def _positions(n: int, window: int, out: int, stride: int, low: int, base: int, dilation: int) -> int:
    """Number of pairs of a window and a position in it that read an element of the input, not padding or a hole of a dilation."""
    last = (n - 1) * base
    return sum(1 for w in range(window) for o in range(out) if 0 <= (at := o * stride + w * dilation - low) <= last and at % base == 0)


def _reduce(op: Operation, operands: Shapes, results: Shapes) -> Work:
    return Work(larger(0, math.prod(operands[0]) - math.prod(results[0])) * len(results))


def _reduce_window(op: Operation, operands: Shapes, results: Shapes) -> Work:
    attributes = op.attributes
    per_element = 1.0
    for size, window, stride, padding in zip(
        op.operands[0].type.shape, attributes["window_dimensions"], attributes["window_strides"], attributes["padding"], strict=True
    ):
        cumulative = window == size and stride == 1 and sorted(padding) == [0, size - 1]
        per_element *= 1 + _cumulative_operations(size) / max(size, 1) if cumulative else window
    return Work(math.prod(results[0]) * (per_element - 1) * len(results))


CUMULATIVE_BLOCK = 16
"""Elements that XLA's ReduceWindowRewriter accumulates in one window; sums of such blocks are accumulated in the same way."""


def _cumulative_operations(length: int) -> int:
    """Operations of a cumulative op along a dimension, as XLA rewrites its windows, each of which reaches over the whole dimension."""
    if length <= CUMULATIVE_BLOCK:
        return length * max(0, length - 1)
    blocks = -(-length // CUMULATIVE_BLOCK)  # the last one is padded
    return blocks * CUMULATIVE_BLOCK**2 + _cumulative_operations(blocks)


def _select_and_scatter(op: Operation, operands: Shapes, results: Shapes) -> Work:
    return Work(math.prod(operands[1]) * math.prod(op.attributes["window_dimensions"]))


def _scatter(op: Operation, operands: Shapes, results: Shapes) -> Work:
    return Work(math.prod(operands[-1]))


def _sort(op: Operation, operands: Shapes, results: Shapes) -> Work:
    sorted_type = op.operands[0].type
    dimension: int = op.attributes.get("dimension", sorted_type.rank - 1)
    length = sorted_type.shape[dimension] if sorted_type.rank else 1
    return Work(math.prod(operands[0]) * math.ceil(math.log2(max(length, 2))))


def _factorization(op: Operation, operands: Shapes, results: Shapes, flops: float) -> Work:
    """One whose operations are so many times the longer dimension times the square of the shorter one; LAPACK Working Note 41."""
    matrix = op.operands[0].type
    if matrix.rank < 2:  # on GPUs the pivots of an LU decomposition become a permutation by a call of its own
        return Work(math.prod(results[0]))
    rows, columns = sorted(matrix.shape[-2:], reverse=True)
    return Work(flops * math.prod(operands[0][:-2]) * rows * columns**2, matrix=matrix.dtype)


def _triangular_solve(op: Operation, operands: Shapes, results: Shapes) -> Work:
    triangle = op.operands[0].type
    return Work(math.prod(operands[1]) * triangle.shape[-1], matrix=triangle.dtype)


def _custom_call(op: Operation, operands: Shapes, results: Shapes) -> Work:
    count = _CUSTOM.get(op.primitive or "")
    return _UNKNOWN if count is None else count(op, operands, results)


def _fft(op: Operation, operands: Shapes, results: Shapes) -> Work:
    lengths = op.attributes.get("fft_length", op.operands[0].type.shape[-1:])
    elements = larger(math.prod(operands[0]), math.prod(results[0]))
    return Work(5 * elements * sum(math.log2(max(n, 1)) for n in lengths))


def _random_bits(op: Operation, operands: Shapes, results: Shapes) -> Work:
    return Work(0.0, math.prod(results[-1]))


_CUSTOM: dict[str, Callable[[Operation, Shapes, Shapes], Work]] = {
    "approx_top_k": _sort,
    "cholesky": functools.partial(_factorization, flops=1 / 3),
    "geqrf": functools.partial(_factorization, flops=4 / 3),
    "householder_product": functools.partial(_factorization, flops=4 / 3),
    "lu": functools.partial(_factorization, flops=2 / 3),
    "triangular_solve": _triangular_solve,
}
"""JAX primitives that become calls of a library; numbers of operations for square matrices."""

_COUNTS: dict[str, Callable[[Operation, Shapes, Shapes], Work]] = {
    "chlo.ragged_dot": _ragged_dot,
    "stablehlo.cholesky": _CUSTOM["cholesky"],
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
