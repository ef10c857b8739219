"""Marking stages by hand."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import jax

from shardy_py.stages.run.errors import PipelineError
from shardy_py.stages.run.flat import MARKER

_NAME = re.compile(r"[A-Za-z0-9_.\- ]+")


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Marks what is traced inside as one stage of `sp.pipeline`; a context manager and a decorator.

    It is a `jax.named_scope`, so that it survives `jax.grad`, `jax.checkpoint`, `jax.vmap` and `jax.jit` and does nothing anywhere else.
    Stages come in the order in which they are met first. What is not marked goes with what it reads; before the first mark, with what
    reads it.

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
