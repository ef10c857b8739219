"""What a piece of a traced function costs, forward and backward: by a model of some hardware, or measured where it runs.

Pieces with the same signature, which is their printed jaxpr, are costed once: identical layers, most of all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Var, jaxpr_as_fun

from shardy_py.cost.hardware import Hardware
from shardy_py.stages.equation_cost import jaxpr_seconds
from shardy_py.stages.jaxprs import struct_of

# Runs of a piece that are timed, of which the fastest counts, and how many before them to warm up.
RUNS = 5


class Coster:
    """Seconds of pieces, remembered by signature.

    Args:
        hardware: What the model is of.
        measured: Whether to run pieces on the default device instead.
    """

    def __init__(self, hardware: Hardware, measured: bool) -> None:
        self.hardware, self.measured = hardware, measured
        self._known: dict[str, tuple[float, float]] = {}

    @property
    def signatures(self) -> int:
        """How many pieces were costed."""
        return len(self._known)

    def seconds(self, piece: ClosedJaxpr) -> tuple[float, float]:
        """Forward and backward seconds of a piece; backward 0 where there is nothing to differentiate."""
        key = str(piece)
        if key not in self._known:
            self._known[key] = self._measure(piece) if self.measured else self._model(piece)
        return self._known[key]

    def _model(self, piece: ClosedJaxpr) -> tuple[float, float]:
        forward = jaxpr_seconds(piece.jaxpr, self.hardware)
        both = backward_of(piece)
        if both is None:
            return forward, 0.0
        function, structs = both
        whole = jaxpr_seconds(jax.make_jaxpr(function)(*structs).jaxpr, self.hardware)
        return forward, max(0.0, whole - forward)

    def _measure(self, piece: ClosedJaxpr) -> tuple[float, float]:
        forward = _timed(jaxpr_as_fun(piece), [struct_of(v) for v in piece.jaxpr.invars])
        both = backward_of(piece)
        return (forward, 0.0) if both is None else (forward, max(0.0, _timed(*both) - forward))


def backward_of(piece: ClosedJaxpr) -> tuple[Callable[..., Any], list[Any]] | None:
    """A function that runs a piece forward and backward, and the types of its arguments: inputs, then cotangents."""
    function = jaxpr_as_fun(piece)
    inputs = [struct_of(v) for v in piece.jaxpr.invars]
    smooth = [i for i, v in enumerate(piece.jaxpr.invars) if _is_smooth(v)]
    results = [i for i, v in enumerate(piece.jaxpr.outvars) if _is_smooth(v)]
    if not smooth or not results:
        return None

    def both(*values: Any) -> Any:
        given, cotangents = list(values[: len(inputs)]), values[len(inputs) :]

        def of_smooth(*chosen: Any) -> list[Any]:
            arguments = list(given)
            for i, value in zip(smooth, chosen):
                arguments[i] = value
            out = function(*arguments)
            return [out[i] for i in results]

        out, pull = jax.vjp(of_smooth, *(given[i] for i in smooth))
        return out, pull(list(cotangents))

    return both, [*inputs, *(struct_of(piece.jaxpr.outvars[i]) for i in results)]


def _timed(function: Callable[..., Any], structs: Sequence[Any]) -> float:
    arguments = [_filled(struct) for struct in structs]
    run = jax.jit(function).lower(*arguments).compile()
    jax.block_until_ready(run(*arguments))
    taken = []
    for _ in range(RUNS):
        start = time.perf_counter()
        jax.block_until_ready(run(*arguments))
        taken.append(time.perf_counter() - start)
    return min(taken)


def _filled(struct: Any) -> Any:
    if jax.dtypes.issubdtype(struct.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), math.prod(struct.shape)).reshape(struct.shape)
    return jax.numpy.ones(struct.shape, struct.dtype)


def _is_smooth(v: Any) -> bool:
    return isinstance(v, Var) and jax.numpy.issubdtype(struct_of(v).dtype, jax.numpy.inexact)
