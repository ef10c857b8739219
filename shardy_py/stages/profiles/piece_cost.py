"""Seconds of the pieces of a function: by a model of some hardware, or measured where it runs.

The model is that of `plan.cost_analysis`, of the function and its gradient as a whole. The equations of every piece are counted as a
compiler fuses them with those of others, so that the pieces together take what the function takes.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var, jaxpr_as_fun

from shardy_py.cost.hardware import Hardware
from shardy_py.stages.equation_cost import equation_seconds
from shardy_py.stages.flatten import Flattener
from shardy_py.stages.jaxprs import Atom, is_differentiable, live, struct_of
from shardy_py.stages.profiles.line import Line, Step
from shardy_py.stages.profiles.pieces import Piece

# Runs of a piece that are timed, of which the fastest counts.
RUNS = 5

_SCOPE = "profile_piece="
_NUMBER = re.compile(re.escape(_SCOPE) + r"(\d+)")


class Seconds(NamedTuple):
    """Seconds of one piece; backward 0 where there is nothing to differentiate."""

    forward: float
    backward: float


def step_seconds(line: Line, hardware: Hardware) -> dict[Step, float]:
    """Modelled seconds of every equation of a forward pass."""
    results = [v for v in line.outvars if isinstance(v, Var)]
    return dict(zip(line.steps, equation_seconds([step.eqn for step in line.steps], results, hardware), strict=True))


def modelled(line: Line, pieces: Sequence[Piece], forward: Sequence[float], weights: Sequence[bool], hardware: Hardware) -> list[Seconds]:
    """Modelled seconds of every piece.

    Args:
        line: The function.
        pieces: Its pieces.
        forward: For every piece, modelled seconds of its forward pass.
        weights: For every input, whether it holds parameters. Gradients are those of parameters, or of all inputs where none does.
        hardware: The hardware.
    """
    inputs = [*line.invars, *line.consts, *line.slices]
    trained = {v for v, flag in zip(line.invars, weights) if flag} | line.slices.keys()
    smooth = [i for i, v in enumerate(inputs) if v in trained and is_differentiable(v)]
    smooth = smooth or [i for i, v in enumerate(line.invars) if is_differentiable(v)]
    # Alike pieces are one jitted function, which JAX differentiates once.
    by_text: dict[str, Callable[..., Any]] = {}
    calls = [by_text.setdefault(str(piece.program), jax.jit(jaxpr_as_fun(piece.program))) for piece in pieces]

    def run(*values: Any) -> list[Any]:
        env: dict[Var, Any] = dict(zip(inputs, values))
        for number, (piece, call) in enumerate(zip(pieces, calls)):
            with jax.named_scope(f"{_SCOPE}{number}"):
                env.update(zip(piece.results, call(*(env[v] for v in piece.inputs))))
        return [env[v] if isinstance(v, Var) else v.val for v in line.outvars]

    gradient = _gradient(run, inputs, smooth, line.outvars)
    if gradient is None:
        return [Seconds(seconds, 0.0) for seconds in forward]
    function, structs = gradient
    traced = jax.make_jaxpr(function)(*structs)
    flattener = _PieceFlattener()
    outputs = flattener.inline(traced.jaxpr, traced.consts, traced.jaxpr.invars, 0)
    steps = live(flattener.steps, outputs)
    both = [0.0] * len(pieces)
    for step, seconds in zip(steps, equation_seconds([step.eqn for step in steps], [v for v in outputs if isinstance(v, Var)], hardware)):
        both[step.piece] += seconds
    return [Seconds(seconds, max(0.0, together - seconds)) for seconds, together in zip(forward, both)]


class _Step(NamedTuple):
    eqn: JaxprEqn
    piece: int


class _PieceFlattener(Flattener[int]):
    """Keeps the number of the piece that an equation, or one that it is the derivative of, belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[_Step] = []

    def origin_of(self, eqn: JaxprEqn, outer: int) -> int:
        numbers = _NUMBER.findall(str(eqn.source_info.name_stack))
        return int(numbers[-1]) if numbers else outer

    def emit(self, eqn: JaxprEqn, origin: int) -> None:
        self.steps.append(_Step(eqn, origin))

    def are_layers(self, xs: Sequence[Atom]) -> bool:
        return False


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

    Args:
        function: The function.
        inputs: Its arguments.
        smooth: The positions of those to differentiate by.
        outputs: Its results.
    """
    results = [i for i, v in enumerate(outputs) if is_differentiable(v)]
    if not smooth or not results:
        return None

    def both(*values: Any) -> Any:
        operands, cotangents = list(values[: len(inputs)]), values[len(inputs) :]

        def of_smooth(*chosen: Any) -> list[Any]:
            arguments = list(operands)
            for i, value in zip(smooth, chosen):
                arguments[i] = value
            outputs = function(*arguments)
            return [outputs[i] for i in results]

        forward, pull = jax.vjp(of_smooth, *(operands[i] for i in smooth))
        return forward, pull(list(cotangents))

    return both, [*map(struct_of, inputs), *(struct_of(outputs[i]) for i in results)]


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
