"""From a partition of a profile back to the equations of the function that was profiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from shardy_py.errors import ShardyError
from shardy_py.frontends.leaves import Leaves, trace_leaves
from shardy_py.pipedream.profiles.line import GRAINS, chosen_leaves, line_of, pieces_of, row_equations
from shardy_py.pipelines import markers
from shardy_py.pipelines.flatten import FlatEquation, FlatStep
from shardy_py.pipelines.programs import evaluate


class DivisionError(ShardyError):
    """A partition of another function."""


def divide(
    function: Callable[..., Any], partition: markers.Marking, *args: Any, parameters: int | Sequence[int] = 0
) -> tuple[ClosedJaxpr, list[int]]:
    """The equations of a function, calls and loops over layers taken apart, and the stage of each by a partition of its profile.

    Equations come stage by stage. The batch may be of another size than in the profile, as long as the same equations come of it.

    Args:
        function: The function that was profiled.
        partition: A partition of its profile, by whatever grain, or the graph with stage ids.
        *args: Arguments, for which `jax.ShapeDtypeStruct` will do.
        parameters: Which of them hold parameters, as for `profile`.

    Returns:
        A jaxpr and its stages, as `convert_jaxpr` takes them.

    Raises:
        DivisionError: If the partition is of another function, or a node has no stage.

    Example:
        >>> import jax.numpy as jnp
        >>> from shardy_py.pipedream import partition, profile
        >>> def loss(w, x):
        ...     return jnp.mean(jnp.tanh(x @ w["up"]) @ w["down"])
        >>> w, x = {"up": jnp.ones((8, 64)), "down": jnp.ones((64, 8))}, jnp.ones((4, 8))
        >>> divided = partition(profile(loss, w, x, by="equation"), machines=[2], mode="exact", straight=True)
        >>> traced, stages = divide(loss, divided, w, x)
        >>> [(eqn.primitive.name, stage) for eqn, stage in zip(traced.jaxpr.eqns, stages)]
        [('dot_general', 0), ('tanh', 0), ('dot_general', 1), ('reduce_sum', 1), ('div', 1)]
    """
    if not isinstance(partition, markers.Marking):
        raise TypeError(f"divide takes what `partition` gives, or a graph with stage ids, not {type(partition).__name__}")
    traced = jax.make_jaxpr(function)(*args)
    line = line_of(traced, chosen_leaves(args, parameters))
    stage_of = _stages(line, getattr(partition, "graph", partition), getattr(function, "__name__", repr(function)))
    readers: dict[Var, int] = {}
    for step, stage in zip(line.nodes, stage_of):
        for v in step.eqn.invars:
            if not isinstance(v, Literal) and v in line.rows:
                readers[v] = min(stage, readers.get(v, stage))
    placed: list[tuple[int, JaxprEqn]] = []
    for row, stage in readers.items():
        whole, number = line.rows[row]
        placed += [(stage, eqn) for eqn in row_equations(row, whole, number)]
    placed += [(stage, step.eqn) for step, stage in zip(line.nodes, stage_of)]
    # No stage is given values by a later one, so that the order within each is all there is to keep.
    placed.sort(key=lambda pair: pair[0])
    jaxpr = traced.jaxpr.replace(
        constvars=list(line.consts), invars=list(line.invars), outvars=list(line.outvars), eqns=[eqn for _, eqn in placed]
    )
    return ClosedJaxpr(jaxpr, list(line.consts.values())), [stage for stage, _ in placed]


def marked(function: Callable[..., Any], partition: markers.Marking, *, parameters: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function with the stages of a partition of its profile marked, as `sp.stage` marks them.

    Anywhere but in `sp.pipeline` it does what the function does, with calls and loops over layers taken apart.

    Args:
        function: The function that was profiled: from parameters and a batch to whatever the forward pass returns.
        partition: A partition of its profile, by whatever grain, or the graph with stage ids.
        parameters: Which arguments hold parameters, as for `profile`.

    Raises:
        DivisionError: On a call, if the partition is of another function.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> def loss(w, x):
        ...     return jnp.mean(jnp.tanh(x @ w["up"]) @ w["down"])
        >>> w, x = {"up": jnp.ones((8, 64)), "down": jnp.ones((64, 8))}, jnp.ones((4, 8))
        >>> partition = sp.pipedream.partition(sp.pipedream.profile(loss, w, x), machines=[1])
        >>> def step(w, x):
        ...     value, gradients = jax.value_and_grad(sp.pipedream.marked(loss, partition))(w, x)
        ...     return jax.tree.map(lambda a, g: a - 0.1 * g, w, gradients), value
        >>> state, value = sp.pipeline(step, num_microbatches=2)(w, x)
        >>> bool(jnp.allclose(value, loss(w, x)))
        True
    """

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        closed, stages = divide(function, partition, *args, parameters=parameters)
        jaxpr = closed.jaxpr
        env: dict[Var, Any] = dict(zip(jaxpr.constvars, closed.consts))
        env.update(zip(jaxpr.invars, jax.tree.leaves(args)))
        for number in sorted(set(stages)):
            with markers.stage(markers.marker_of(number)):
                evaluate([FlatEquation(eqn) for eqn, where in zip(jaxpr.eqns, stages) if where == number], env)
        leaves = [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]
        _, result = trace_leaves(function, *map(Leaves.of, args))
        return Leaves(result.outline, leaves).tree()

    return run


def _stages(line: FlatStep, graph: Any, name: str) -> list[int]:
    """The stage of every step."""
    if not graph.num_stages:
        raise DivisionError("no node has a stage", where=f"a profile of {len(graph.nodes)} nodes", fix="partition it first")
    nodes = [node for node in graph.nodes if not node.is_input and not node.description.startswith("__getitem__(")]
    for by in GRAINS:
        pieces = pieces_of(line, by)
        # The types in the names of equations depend on the size of the batch.
        if [_kind(piece.name, by) for piece in pieces] == [_kind(node.description, by) for node in nodes]:
            stages = {id(step): node.stage for piece, node in zip(pieces, nodes) for step in piece.steps}
            stages_of_steps = [stages[id(step)] for step in line.nodes]
            assert None not in stages_of_steps
            return [stage for stage in stages_of_steps if stage is not None]
    raise DivisionError(
        f"the partition is not one of {name}", where=f"a profile with {len(nodes)} nodes",
        why=f"the function has {len(line.nodes)} equations, in {len(pieces_of(line, 'layer'))} layers, with other names",
        fix="profile this function with arguments that differ from these in the size of the batch alone, and partition that",
    )  # fmt: skip


def _kind(description: str, by: str) -> str:
    return description.partition("(")[0] if by == "equation" else description
