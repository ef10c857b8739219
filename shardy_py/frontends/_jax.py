"""The one place that touches parts of JAX and jaxlib that are private or differ between versions."""

from __future__ import annotations

from jax.interpreters import mlir as _mlir
from jaxlib.mlir import ir as ir
from jaxlib.mlir.dialects import stablehlo as stablehlo


def make_context(*, allow_unregistered: bool = False) -> ir.Context:
    """An MLIR context that knows the dialects JAX emits: func, stablehlo, chlo, mhlo and sdy.

    Args:
        allow_unregistered: Whether text may hold ops of dialects that jaxlib does not ship.
    """
    context = _mlir.make_ir_context()
    context.allow_unregistered_dialects = allow_unregistered
    return context
