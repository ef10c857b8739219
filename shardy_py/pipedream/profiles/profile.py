"""A profile graph from a function that JAX can trace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, jaxpr_as_fun

from shardy_py.api import auto_shard
from shardy_py.backends.local.jaxpr_rewriting import Rewritten, copy_equations, rewrite_by_name
from shardy_py.backends.local.passes import optimize_region
from shardy_py.cost.hardware import Hardware
from shardy_py.cost.hardware_table import hardware as hardware_named
from shardy_py.errors import ShardyError
from shardy_py.frontends.jaxpr import from_equations, lowered
from shardy_py.frontends.locations import name_stack_of
from shardy_py.ir import Op
from shardy_py.pipedream.profiles.graph import ProfileGraph, ProfileNode
from shardy_py.pipedream.profiles.line import GRAINS, LinePiece, chosen_leaves, line_of, numbered, numbers_in, pieces_of
from shardy_py.pipelines.cost import op_seconds
from shardy_py.pipelines.flatten import FlatEquation, FlatStep
from shardy_py.pipelines.jaxprs import (
    Atom,
    bytes_of,
    closed,
    closed_jaxpr,
    dtype_of,
    is_differentiable,
    is_extended_dtype,
    shape_of,
    struct_of,
)


def attributed(traced: ClosedJaxpr, steps: Sequence[FlatEquation], hardware: Hardware) -> dict[FlatEquation, float]:
    """Modelled seconds of the steps of a numbered function: there, or of what they became in a transformation of it such as a gradient."""
    taken_from: dict[tuple[int, ...], list[FlatEquation]] = {}  # numbers of an equation and those around it -> the steps that it became
    for step in steps:
        numbers = tuple(number for stack in step.stacks for number in numbers_in(stack))
        for end in range(len(numbers) + 1):
            taken_from.setdefault(numbers[:end], []).append(step)
    seconds = dict.fromkeys(steps, 0.0)
    for op, took in _executed_ops(traced, hardware):
        source: tuple[int, ...] = ()
        for number in _source_of(op):
            source = (*source, number) if (*source, number) in taken_from else source
        for step in taken_from[source]:
            seconds[step] += took / len(taken_from[source])
    return seconds


def _executed_ops(traced: ClosedJaxpr, hardware: Hardware) -> Iterator[tuple[Op, float]]:
    """The ops that one device executes for a jaxpr, with the seconds of each, all trips together: as `plan.cost_analysis` has them.

    The jaxpr is put in order as for a region. It is not planned, for it may name meshes of more devices.
    """
    jaxpr = optimize_region(_without_calls(lowered(traced).jaxpr), {}, "gpu")
    program, _ = from_equations(jaxpr.eqns, [v for v in jaxpr.outvars if isinstance(v, Var)])
    return op_seconds(program, hardware)


def _without_calls(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr with the equations of calls in their place, in bodies too, as a region has them."""
    return rewrite_by_name(jaxpr, {}, dict.fromkeys(("jit", "remat2"), _in_place))


def _in_place(call: JaxprEqn, _: Mapping[str, int]) -> Rewritten | None:
    """The equations of a call; None for those that a backward pass computes again, which are not merged with what they repeat."""
    body = closed(call.params["jaxpr"])
    if body.consts or call.params.get("differentiated"):
        return None
    return copy_equations(_without_calls(body.jaxpr), call, call.invars)


def _source_of(op: Op) -> tuple[int, ...]:
    """The numbers of the equations that an op stands in, outermost first."""
    numbers: list[int] = []
    inner: object = op
    while isinstance(inner, Op):
        numbers[:0] = numbers_in(name_stack_of(inner.location))
        inner = None if inner.block is None else inner.block.parent
    return tuple(numbers)


# Runs of a piece that are timed, of which the fastest counts.
RUNS = 5


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


def measured_seconds(pieces: Sequence[LinePiece]) -> list[Seconds]:
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


@dataclass(frozen=True)
class Shards:
    """The axes, with their sizes, that shard each value."""

    axes: Mapping[Var, Mapping[str, int]]

    def bytes(self, v: Var) -> float:
        """Bytes of a value on one device."""
        return float(-(-bytes_of(v) // math.prod(self.axes.get(v, {}).values())))

    def workers(self, eqn: JaxprEqn) -> int:
        """Number of devices that share the work of an equation: those of all axes that cut an operand or a result."""
        sizes: dict[str, int] = {}
        for v in (*eqn.invars, *eqn.outvars):
            if isinstance(v, Var):
                sizes.update(self.axes.get(v, {}))
        return math.prod(sizes.values())


def shards_of(line: FlatStep, args: Sequence[Any], mesh: Any, in_shardings: Any) -> Shards:
    """Plans a function with all of its values as results, and reads off how each lies."""
    values = [v for step in line.nodes for v in step.eqn.outvars if not is_extended_dtype(dtype_of(v))]
    results = [*line.rows, *values]
    inputs = [*line.invars, *line.consts, *line.rows]
    run = jaxpr_as_fun(closed_jaxpr([step.eqn for step in line.nodes], inputs, results))

    def everything(*arguments: Any) -> list[Any]:
        env = dict(zip(line.invars, jax.tree_util.tree_leaves(arguments)))
        env.update(line.consts)
        for row, (whole, step) in line.rows.items():
            env[row] = env[whole][step]
        return run(*(env[v] for v in inputs))

    plan = auto_shard(everything, mesh=mesh, in_shardings=in_shardings).plan(*args)
    axes: dict[Var, dict[str, int]] = {}
    for v, planned in (*zip(line.invars, plan.inputs), *zip(results, plan.outputs)):
        if planned.sharding is not None:
            axes[v] = {str(axis): axis.size_in(plan.mesh) for dim in planned.sharding.dims for axis in dim.axes}
    return Shards(axes)


def profile(
    function: Callable[..., Any] | ClosedJaxpr,
    *args: Any,
    by: str = "layer",
    parameters: int | Sequence[int] = 0,
    hardware: str | Hardware = "h100",
    measured: bool = False,
    mesh: Any = None,
    in_shardings: Any = None,
) -> ProfileGraph:
    """Profiles the forward and backward pass of a function, equation by equation or in larger pieces.

    Calls are taken apart, and so are loops over layers: each step of a `scan` that reads rows of parameters is a layer of its
    own. Functions with a derivative rule (`custom_vjp`) stay whole. A piece with several results has a `__getitem__(k)` node
    for each, so that a cut sends only what is used behind it. Parameters belong to the first piece that uses them.

    Modelled times add up to the times in `plan.cost_analysis` of the function and of its value and gradient, on one device. A loop over
    layers costs what it costs as a loop, with the residuals that it stacks for its backward pass, and each layer has an equal share; so
    does what `jax.checkpoint` computes again.

    Args:
        function: From parameters and a batch to the loss, or whatever the forward pass returns; or its jaxpr, whose inputs count as
            one argument each.
        *args: Its arguments, for which `jax.ShapeDtypeStruct` will do; none for a jaxpr.
        by: "equation"; "scope", a run of equations in one `jax.named_scope`; or "layer", one of the outermost scopes in which
            equations differ, or one step of a loop over layers.
        parameters: Which arguments hold parameters.
        hardware: The hardware of modelled times, a name of `shardy_py.cost.hardware` or figures of your own.
        measured: Whether to run every distinct piece on the default device instead, once for each signature.
        mesh: Mesh of the devices of one stage. Sizes are then what one device holds, and times are divided by the devices that
            share the work, after the shardings have been propagated.
        in_shardings: Shardings of the arguments, as `auto_shard` takes them.

    Returns:
        The profile: times in milliseconds, bytes of results that other pieces use, bytes of parameters. Arguments that are not
        parameters are nodes described as `Input...`.

    Raises:
        ShardyError: If an argument is out of range, or nothing is computed.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def loss(params, x):
        ...     x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params)
        ...     return x.sum()
        >>> graph = profile(loss, jnp.ones((3, 64, 64)), jnp.ones((8, 64)))
        >>> [(node.description, node.parameter_bytes) for node in graph.nodes]
        [('Input0 [1]', 0.0), ('layer(0)', 16384.0), ('layer(1)', 16384.0), ('layer(2)', 16384.0), ('layer()', 0.0)]
    """
    if by not in GRAINS:
        raise ShardyError(f"cannot profile by {by!r}", where="argument by", fix=f"use one of {', '.join(map(repr, GRAINS))}")
    if isinstance(function, ClosedJaxpr):
        args = args or tuple(map(struct_of, function.jaxpr.invars))
        function = jaxpr_as_fun(function)
    weights = chosen_leaves(args, parameters)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(args)[0]]
    traced = numbered(jax.make_jaxpr(function)(*args))
    line = line_of(traced, weights)
    if not line.nodes:
        raise ShardyError("nothing is computed", where=f"function {getattr(function, '__name__', function)!r}", why="no equation is left")
    shards = shards_of(line, args, mesh, in_shardings) if mesh is not None else Shards({})
    batch = [(v, jax.tree_util.keystr(path)) for v, path, flag in zip(line.invars, paths, weights) if not flag]
    inputs = {v: f"Input{number} {path}" for number, (v, path) in enumerate(batch)}
    pieces = pieces_of(line, by)
    machine = hardware_named(hardware)
    forward = attributed(traced, line.nodes, machine)
    if measured:
        seconds = measured_seconds(pieces)
    else:
        gradient = gradient_of(traced, weights)
        seconds = _modelled(pieces, forward, forward if gradient is None else attributed(gradient, line.nodes, machine))
    return _Grapher(line, inputs, shards, forward).graph(pieces, seconds)


def _modelled(pieces: Sequence[LinePiece], forward: Mapping[FlatEquation, float], both: Mapping[FlatEquation, float]) -> list[Seconds]:
    """Seconds of pieces from the seconds of their steps, forward and in both passes."""
    seconds: list[Seconds] = []
    for piece in pieces:
        alone, together = (math.fsum(of[step] for step in piece.steps) for of in (forward, both))
        seconds.append(Seconds(alone, max(0.0, together - alone)))
    return seconds


class _Grapher:
    def __init__(self, line: FlatStep, inputs: Mapping[Var, str], shards: Shards, step_seconds: Mapping[FlatEquation, float]) -> None:
        self.line, self.inputs, self.shards, self.step_seconds = line, inputs, shards, step_seconds
        self.nodes: list[ProfileNode] = []
        self.edges: list[tuple[str, str]] = []
        # Where a value can be had, by node id.
        self.node_of: dict[Var, str] = {}
        self.counted: set[Var] = set()

    def graph(self, pieces: Sequence[LinePiece], seconds: Sequence[Seconds]) -> ProfileGraph:
        """The profile of these pieces, with their seconds on one device."""
        used = {v for v in self.line.outvars if isinstance(v, Var)}.union(*(piece.inputs for piece in pieces))
        for v, name in self.inputs.items():
            if v in used:
                self.node_of[v] = self.add(name, activations=(self.shards.bytes(v),))
        for piece, alone in zip(pieces, seconds, strict=True):
            share = self.share(piece)
            self.piece(piece, Seconds(alone.forward * share, alone.backward * share))
        return ProfileGraph(tuple(self.nodes), tuple(self.edges))

    def add(self, description: str, *operands: str, **figures: Any) -> str:
        id = f"node{len(self.nodes) + 1}"
        self.nodes.append(ProfileNode(id, description, **figures))
        self.edges += [(operand, id) for operand in dict.fromkeys(operands)]
        return id

    def piece(self, piece: LinePiece, seconds: Seconds) -> None:
        parameters = [v for v in piece.inputs if v not in self.node_of and v not in self.counted]
        self.counted.update(parameters)
        sizes = tuple(self.shards.bytes(v) for v in piece.results)
        id = self.add(
            piece.name,
            *(self.node_of[v] for v in piece.inputs if v in self.node_of),
            forward_ms=seconds.forward * 1e3,
            backward_ms=seconds.backward * 1e3,
            activations=sizes or (0.0,),
            parameter_bytes=math.fsum(self.shards.bytes(v) for v in parameters),
        )
        for k, v in enumerate(piece.results):
            self.node_of[v] = id if len(piece.results) == 1 else self.add(f"__getitem__({k})", id, activations=(sizes[k],))

    def share(self, piece: LinePiece) -> float:
        """The part of the work of a piece that each device has."""
        whole = math.fsum(self.step_seconds[step] for step in piece.steps)
        if not self.shards.axes or not whole:
            return 1.0
        return math.fsum(self.step_seconds[step] / self.shards.workers(step.eqn) for step in piece.steps) / whole
