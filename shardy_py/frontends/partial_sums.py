"""Sums over devices that are not taken yet, as a dimension of their own."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

partial_sums_p = Primitive("partial_sums")
"""One operand; the result has a dimension of size `parts` in front, along which it sums up to the operand."""


def partial_sums(x: Any, parts: int) -> Any:
    """An array that sums up to `x` along its first dimension.

    Where that dimension is sharded over axes over which `x` is a sum, every device keeps its own part under `lowering="shard_map"`, so
    that sums of such arrays need one all-reduce in the end. Anywhere else the first part is `x` and the others are zeros.
    """
    return partial_sums_p.bind(x, parts=parts)


def _abstract(x: Any, *, parts: int) -> ShapedArray:
    return ShapedArray((parts, *x.shape), x.dtype)


def first_of(x: Any, parts: int) -> Any:
    """`x` in front of zeros."""
    widths = [(0, parts - 1, 0), *((0, 0, 0) for _ in x.shape)]
    return lax.pad(lax.expand_dims(x, (0,)), jax.numpy.zeros((), x.dtype), widths)


partial_sums_p.def_abstract_eval(_abstract)
partial_sums_p.def_impl(lambda x, *, parts: first_of(x, parts))
mlir.register_lowering(partial_sums_p, mlir.lower_fun(first_of, multiple_results=False))
