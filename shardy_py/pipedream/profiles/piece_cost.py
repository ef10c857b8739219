"""The gradient of a function whose pieces are timed, and the seconds of pieces that run on the default device."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Var, jaxpr_as_fun

from shardy_py.pipedream.profiles.pieces import Piece
from shardy_py.pipelines.jaxprs import Atom, is_differentiable, shape_of, struct_of

# Runs of a piece that are timed, of which the fastest counts.
RUNS = 5

_SCOPE = "profile_piece="
_NUMBER = re.compile(re.escape(_SCOPE) + r"(\d+)")


class Seconds(NamedTuple):
    """Seconds of one piece; backward is 0 for a piece without derivatives."""

    forward: float
    backward: float


def gradient_of(traced: ClosedJaxpr, weights: Sequence[bool]) -> ClosedJaxpr | None:
    """Runs a function forward and backward, for gradients of `weights`, or of all inputs where there are none; else None."""
    inputs = traced.jaxpr.invars
    smooth = [i for i, v in enumerate(inputs) if is_differentiable(v)]
    trained = [i for i in smooth if weights[i]]
    gradient = _gradient(jaxpr_as_fun(traced), inputs, trained or smooth, traced.jaxpr.outvars)
    return None if gradient is None else jax.make_jaxpr(gradient[0])(*gradient[1])


def measured(pieces: Sequence[Piece]) -> list[Seconds]:
    """Seconds of every piece on the default device; alike ones are run once."""
    by_text: dict[str, Seconds] = {}
    for piece in pieces:
        if (text := str(piece.program)) not in by_text:
            by_text[text] = _measure(piece.program)
    return [by_text[str(piece.program)] for piece in pieces]


def _measure(program: ClosedJaxpr) -> Seconds:
    function, inputs = jaxpr_as_fun(program), program.jaxpr.invars
    forward = _timed(function, [struct_of(v) for v in inputs])
    both = _gradient(function, inputs, [i for i, v in enumerate(inputs) if is_differentiable(v)], program.jaxpr.outvars)
    return Seconds(forward, 0.0) if both is None else Seconds(forward, max(0.0, _timed(*both) - forward))


def _gradient(
    function: Callable[..., Sequence[Any]], inputs: Sequence[Var], smooth: Sequence[int], outputs: Sequence[Atom]
) -> tuple[Callable[..., Any], list[Any]] | None:
    """A function that runs another forward and backward, and the types of its arguments: inputs, then cotangents.

    The cotangent of a scalar is the constant 1, as in `jax.grad`.
    """
    results = [i for i, v in enumerate(outputs) if is_differentiable(v)]
    if not smooth or not results:
        return None

    def both(*values: Any) -> Any:
        operands, cotangents = list(values[: len(inputs)]), iter(values[len(inputs) :])

        def of_smooth(*chosen: Any) -> list[Any]:
            arguments = list(operands)
            for i, value in zip(smooth, chosen):
                arguments[i] = value
            outputs = function(*arguments)
            return [outputs[i] for i in results]

        forward, pull = jax.vjp(of_smooth, *(operands[i] for i in smooth))
        return forward, pull([next(cotangents) if out.shape else jax.numpy.ones_like(out) for out in forward])

    arrays = [outputs[i] for i in results if shape_of(outputs[i])]
    return both, [*map(struct_of, inputs), *map(struct_of, arrays)]


def _timed(function: Callable[..., Any], structs: Sequence[Any]) -> float:
    arguments = [_filled(struct) for struct in structs]
    run = jax.jit(function).lower(*arguments).compile()
    jax.block_until_ready(run(*arguments))
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        jax.block_until_ready(run(*arguments))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _filled(struct: Any) -> Any:
    if jax.dtypes.issubdtype(struct.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), math.prod(struct.shape)).reshape(struct.shape)
    return jax.numpy.ones(struct.shape, struct.dtype)
