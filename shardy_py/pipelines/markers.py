"""Marking stages: by hand with `stage`, or by something that divides a function."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax

from shardy_py.pipelines.errors import PipelineError
from shardy_py.pipelines.flatten import MARKER

_NAME = re.compile(r"[A-Za-z0-9_.\- ]+")


@runtime_checkable
class Marking(Protocol):
    """What divides a function into stages: `sp.pipedream.Partition`, and a graph with stage ids."""

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        ...

    @property
    def replication(self) -> tuple[int, ...]:
        """The number of machines of each stage."""
        ...

    def marked(self, function: Callable[..., Any], parameters: int | Sequence[int] = 0) -> Callable[..., Any]:
        """The function with its stages marked."""
        ...


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
            f"{name!r} is not a valid name of a stage", where="sp.stage(name)", why="a name has letters, digits, '_', '-', '.' and spaces",
            fix='write sp.stage("encoder")',
        )  # fmt: skip
    with jax.named_scope(MARKER + name):
        yield


def marker_of(number: int) -> str:
    """The name that a stage of a partition is marked with."""
    return f"stage{number}"
