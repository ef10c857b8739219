"""Errors of pipelined runs."""

from __future__ import annotations

from jax.extend import source_info_util
from jax.extend.core import JaxprEqn

from shardy_py.errors import ShardyError


class PipelineError(ShardyError):
    """A function that cannot run as the requested pipeline.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> try:
        ...     sp.pipeline(lambda w, x: jnp.sum(w * jnp.sort(x)), num_stages=2, num_microbatches=2)(jnp.ones(4), jnp.ones(4))
        ... except sp.pipelines.PipelineError as error:
        ...     print(error.what)
        sort runs along the examples of float32[4]
    """


def place(eqn: JaxprEqn) -> str:
    """`dot_general at model.py:12 (loss)`."""
    return f"{eqn.primitive.name} at {source_info_util.summarize(eqn.source_info)}"
