"""Local rule of Fourier transforms."""

from __future__ import annotations

import math

from jax.experimental.layout import Layout, with_layout_constraint

from shardy_py.backends.local.local_rule import Array, Builder, Equation, LocalContext, LocalRule, make_rule


def fft(equation: Equation) -> LocalRule | None:
    """Dimensions that are not transformed pass through; transformed ones are whole."""
    (shape,), (out,) = equation.shapes, equation.result_shapes
    count = len(shape) - len(equation.params["fft_lengths"])
    rank = range(count)
    transformed = range(count, len(shape))
    sizes = [*shape, *out[count:]]
    results = [*rank, *range(len(shape), len(sizes))]
    rule = make_rule(sizes, [range(len(shape))], [results], whole=range(count, len(sizes)))
    length = math.prod(shape[d] for d in transformed)
    weight = 0.02 * length * max(1, length.bit_length()) / max(1, math.prod(sizes[count:]))
    return LocalRule(rule, _run, uneven=frozenset(rank), linear=((0,),), weight=weight)


def _run(local: LocalContext, arrays: list) -> list:
    """The transform; on CPU, of an array in row-major order.

    XLA on CPU transforms no other order, and yet puts arrays in another one where a later dimension is gathered before or behind. Other
    compilers choose layouts that they can transform, and that for TPU takes no such wish of complex numbers.
    """
    if local.platform != "cpu":
        return local.bind(*arrays)
    (x,) = arrays
    (y,) = local.bind(row_major(x))
    return [row_major(y)]


def row_major(x: Array) -> Array:
    """The array, constrained to row-major order in memory."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim)))) if x.ndim > 1 else x


LOCAL_RULES: dict[str, Builder] = {"fft": fft}
"""Primitive -> builder of its local rule."""
