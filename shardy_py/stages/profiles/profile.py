"""A profile graph from a function that JAX can trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun

from shardy_py.cost.hardware import Hardware
from shardy_py.cost.hardware_table import hardware as hardware_named
from shardy_py.errors import ShardyError
from shardy_py.stages.equation_cost import equation_seconds
from shardy_py.stages.jaxprs import struct_of
from shardy_py.stages.profiles.graph import ProfileGraph, ProfileNode
from shardy_py.stages.profiles.line import Line, Step, line_of
from shardy_py.stages.profiles.piece_cost import Coster
from shardy_py.stages.profiles.shards import Shards, shards_of

GRAINS = ("equation", "scope", "layer")


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

    Args:
        function: From parameters and a batch to the loss, or whatever the forward pass returns; or its jaxpr, whose inputs count as
            one argument each.
        *args: Its arguments, for which `jax.ShapeDtypeStruct` will do; none for a jaxpr.
        by: "equation"; "scope", a run of equations in one `jax.named_scope`; or "layer", one of the outermost scopes in which
            equations differ, or one step of a loop over layers.
        parameters: Which arguments hold parameters.
        hardware: What the modelled times are of, a name of `shardy_py.cost.hardware` or figures of your own.
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
    line = line_of(jax.make_jaxpr(function)(*args), weights)
    if not line.steps:
        raise ShardyError("nothing is computed", where=f"function {getattr(function, '__name__', function)!r}", why="no equation is left")
    shards = shards_of(line, args, mesh, in_shardings) if mesh is not None else Shards({}, {})
    batch = [(v, jax.tree_util.keystr(path)) for v, path, flag in zip(line.invars, paths, weights) if not flag]
    inputs = {v: f"Input{number} {path}" for number, (v, path) in enumerate(batch)}
    return _Grapher(line, inputs, shards, Coster(hardware_named(hardware), measured)).graph(pieces_of(line, by))


def chosen_leaves(args: Sequence[Any], parameters: int | Sequence[int]) -> list[bool]:
    """For every leaf of some arguments, whether it belongs to one that is named.

    Raises:
        ShardyError: If there is no such argument.
    """
    chosen = (parameters,) if isinstance(parameters, int) else tuple(parameters)
    if not all(0 <= number < len(args) for number in chosen):
        raise ShardyError(f"parameters is {parameters}, but there are {len(args)} arguments", where="argument parameters")
    return [number in chosen for number, arg in enumerate(args) for _ in jax.tree_util.tree_leaves(arg)]


@dataclass(frozen=True)
class Piece:
    """Equations that become one node."""

    name: str
    steps: tuple[Step, ...]


def pieces_of(line: Line, by: str) -> list[Piece]:
    """Runs of equations with one name, so that no piece waits for what waits for it."""
    if by == "equation":
        return [Piece(_equation_name(step), (step,)) for step in line.steps]
    shared = _shared_depth({step.scope for step in line.steps if step.scope and not step.layer})
    found: list[tuple[tuple[Any, ...], list[Step]]] = []
    for step in line.steps:
        if by == "scope":
            key = (*step.scope, *step.layer)
        else:
            key = step.layer[:1] or step.scope[shared : shared + 1]
        if not found or found[-1][0] != key:
            found.append((key, []))
        found[-1][1].append(step)
    return [Piece(f"{by}({'/'.join(map(str, key))})", tuple(steps)) for key, steps in found]


def _shared_depth(scopes: set[tuple[str, ...]]) -> int:
    """How many of the outermost scopes are the same everywhere; of a single scope, all but its last part."""
    if len(scopes) < 2:
        return max(0, max(map(len, scopes), default=0) - 1)
    least = min(map(len, scopes))
    return next((i for i in range(least) if len({scope[i] for scope in scopes}) > 1), least)


def _equation_name(step: Step) -> str:
    result = step.eqn.outvars[0].aval.str_short() if step.eqn.outvars else ""
    return f"{step.eqn.primitive.name}({result})"


class _Grapher:
    def __init__(self, line: Line, inputs: Mapping[Var, str], shards: Shards, coster: Coster) -> None:
        self.line, self.inputs, self.shards, self.coster = line, inputs, shards, coster
        self.nodes: list[ProfileNode] = []
        self.edges: list[tuple[str, str]] = []
        # Where a value can be had, by node id.
        self.home: dict[Var, str] = {}
        self.counted: set[Var] = set()
        # Over the whole line, so that the forward pass costs what `plan.cost_analysis` says: pieces alone would not be fused across their
        # boundaries.
        results = [v for v in line.outvars if isinstance(v, Var)]
        self.seconds = dict(zip(line.steps, equation_seconds([step.eqn for step in line.steps], results, coster.hardware), strict=True))

    def graph(self, pieces: Sequence[Piece]) -> ProfileGraph:
        makers = {v: i for i, piece in enumerate(pieces) for step in piece.steps for v in step.eqn.outvars}
        reads = [_reads(piece) for piece in pieces]
        used: dict[Var, None] = {v: None for v in self.line.outvars if isinstance(v, Var)}
        used.update((v, None) for i, vars in enumerate(reads) for v in vars if makers.get(v) != i)
        for v, name in self.inputs.items():
            if v in used:
                self.home[v] = self.add(name, activations=(self.shards.bytes(v),))
        for piece, read in zip(pieces, reads):
            made = [v for step in piece.steps for v in step.eqn.outvars if v in used]
            self.piece(piece, read, made)
        return ProfileGraph(tuple(self.nodes), tuple(self.edges))

    def add(self, description: str, *operands: str, **figures: Any) -> str:
        id = f"node{len(self.nodes) + 1}"
        self.nodes.append(ProfileNode(id, description, **figures))
        self.edges += [(operand, id) for operand in dict.fromkeys(operands)]
        return id

    def piece(self, piece: Piece, read: Sequence[Var], made: Sequence[Var]) -> None:
        weights = [v for v in read if v not in self.home and v not in self.counted]
        self.counted.update(weights)
        forward, backward = self.coster.seconds(_closed(piece, read, made))
        modelled = math.fsum(self.seconds[step] for step in piece.steps)
        if not self.coster.measured:
            forward = modelled
        share = math.fsum(self.seconds[step] / self.workers(step) for step in piece.steps) / modelled if modelled else 1.0
        sizes = tuple(self.shards.bytes(v) for v in made)
        id = self.add(
            piece.name,
            *(self.home[v] for v in read if v in self.home),
            forward_ms=forward * share * 1e3,
            backward_ms=backward * share * 1e3,
            activations=sizes or (0.0,),
            parameter_bytes=math.fsum(self.shards.bytes(v) for v in weights),
        )
        for k, v in enumerate(made):
            self.home[v] = id if len(made) == 1 else self.add(f"__getitem__({k})", id, activations=(sizes[k],))

    def workers(self, step: Step) -> int:
        """How many devices share the work of an equation."""
        return self.shards.workers(step.eqn) if self.shards.parts else 1


def _reads(piece: Piece) -> list[Var]:
    """What a piece reads but does not make, in the order of its first use."""
    inside = {v for step in piece.steps for v in step.eqn.outvars}
    read = (v for step in piece.steps for v in step.eqn.invars if not isinstance(v, Literal))
    return [v for v in dict.fromkeys(read) if v not in inside]


def _closed(piece: Piece, read: Sequence[Var], made: Sequence[Var]) -> ClosedJaxpr:
    effects: set[Any] = set().union(*(step.eqn.effects for step in piece.steps))
    empty: Jaxpr = jax.make_jaxpr(lambda: ())().jaxpr
    eqns = [step.eqn for step in piece.steps]
    return ClosedJaxpr(empty.replace(invars=list(read), outvars=list(made), eqns=eqns, effects=effects), ())
