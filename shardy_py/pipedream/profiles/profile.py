"""A profile graph from a function that JAX can trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Var, jaxpr_as_fun

from shardy_py.cost.hardware import Hardware
from shardy_py.cost.hardware_table import hardware as hardware_named
from shardy_py.errors import ShardyError
from shardy_py.pipedream.profiles.attribution import Attribution
from shardy_py.pipedream.profiles.graph import ProfileGraph, ProfileNode
from shardy_py.pipedream.profiles.line import Line, Step, chosen_leaves, line_of
from shardy_py.pipedream.profiles.numbering import numbered
from shardy_py.pipedream.profiles.piece_cost import Seconds, gradient_of
from shardy_py.pipedream.profiles.piece_cost import measured as measured_seconds
from shardy_py.pipedream.profiles.pieces import GRAINS, Piece, pieces_of
from shardy_py.pipedream.profiles.shards import Shards, shards_of
from shardy_py.pipelines.jaxprs import struct_of


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

    Modelled times add up to those of `plan.cost_analysis` of the function and of its value and gradient, on one device. A loop over layers
    costs what it costs as a loop, with the residuals that it stacks for its backward pass, and each layer has an equal share; so does
    what `jax.checkpoint` computes again.

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
    if not line.steps:
        raise ShardyError("nothing is computed", where=f"function {getattr(function, '__name__', function)!r}", why="no equation is left")
    shards = shards_of(line, args, mesh, in_shardings) if mesh is not None else Shards({}, {})
    batch = [(v, jax.tree_util.keystr(path)) for v, path, flag in zip(line.invars, paths, weights) if not flag]
    inputs = {v: f"Input{number} {path}" for number, (v, path) in enumerate(batch)}
    pieces = pieces_of(line, by)
    attribution, machine = Attribution(line.steps), hardware_named(hardware)
    forward = attribution.seconds(traced, machine)
    if measured:
        seconds = measured_seconds(pieces)
    else:
        gradient = gradient_of(traced, weights)
        seconds = _modelled(pieces, forward, forward if gradient is None else attribution.seconds(gradient, machine))
    return _Grapher(line, inputs, shards, forward).graph(pieces, seconds)


def _modelled(pieces: Sequence[Piece], forward: Mapping[Step, float], both: Mapping[Step, float]) -> list[Seconds]:
    """Seconds of pieces by those of their steps, forward and in both passes."""
    seconds: list[Seconds] = []
    for piece in pieces:
        alone, together = (math.fsum(of[step] for step in piece.steps) for of in (forward, both))
        seconds.append(Seconds(alone, max(0.0, together - alone)))
    return seconds


class _Grapher:
    def __init__(self, line: Line, inputs: Mapping[Var, str], shards: Shards, step_seconds: Mapping[Step, float]) -> None:
        self.line, self.inputs, self.shards, self.step_seconds = line, inputs, shards, step_seconds
        self.nodes: list[ProfileNode] = []
        self.edges: list[tuple[str, str]] = []
        # Where a value can be had, by node id.
        self.node_of: dict[Var, str] = {}
        self.counted: set[Var] = set()

    def graph(self, pieces: Sequence[Piece], seconds: Sequence[Seconds]) -> ProfileGraph:
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

    def piece(self, piece: Piece, seconds: Seconds) -> None:
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

    def share(self, piece: Piece) -> float:
        """The part of the work of a piece that each device has."""
        whole = math.fsum(self.step_seconds[step] for step in piece.steps)
        if not self.shards.parts or not whole:
            return 1.0
        return math.fsum(self.step_seconds[step] / self.shards.workers(step.eqn) for step in piece.steps) / whole
