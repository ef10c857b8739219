"""Marking stages: by hand with `stage`, or by a partition of a profile with `marked`."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import Literal, Var

from shardy_py.frontends.leaves import Leaves, trace_leaves
from shardy_py.stages.partitions.division import divide
from shardy_py.stages.partitions.result import Partition
from shardy_py.stages.profiles.graph import ProfileGraph
from shardy_py.stages.run.errors import PipelineError
from shardy_py.stages.run.flat import MARKER, Node
from shardy_py.stages.run.programs import evaluate

_NAME = re.compile(r"[A-Za-z0-9_.\- ]+")


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Marks the equations traced inside as one stage of `sp.pipeline`; a context manager and a decorator.

    It is a `jax.named_scope`, so that it survives `jax.grad`, `jax.checkpoint`, `jax.vmap` and `jax.jit` and does nothing anywhere else.
    Stages come in the order in which they are met first. Equations without a mark go with those that they read; before the first mark,
    with those that read them.

    Args:
        name: Letters, digits, `_`, `-`, `.` and spaces.

    Raises:
        PipelineError: The name has other characters.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> @sp.stage("encoder")
        ... def encoder(w, x):
        ...     return jnp.tanh(x @ w)
        >>> with sp.stage("decoder"):
        ...     y = jnp.ones((2, 2)) @ jnp.ones((2, 2))
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PipelineError(
            f"{name!r} is no name of a stage", where="sp.stage(name)", why="letters, digits, '_', '-', '.' and spaces make a name",
            fix='write sp.stage("encoder")',
        )  # fmt: skip
    with jax.named_scope(MARKER + name):
        yield


def marked(function: Callable[..., Any], partition: Partition | ProfileGraph, *, parameters: int | Sequence[int] = 0) -> Callable[..., Any]:
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
        >>> partition = sp.stages.partition(sp.stages.profile(loss, w, x), machines=[1])
        >>> def step(w, x):
        ...     value, gradients = jax.value_and_grad(sp.stages.marked(loss, partition))(w, x)
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
            with stage(marker_of(number)):
                evaluate([Node(eqn, False, None) for eqn, where in zip(jaxpr.eqns, stages) if where == number], env)
        leaves = [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]
        _, result = trace_leaves(function, *map(Leaves.of, args))
        return result.outline.filled(leaves).tree()

    return run


def marker_of(number: int) -> str:
    """The name that a stage of a partition is marked with."""
    return f"stage{number}"
