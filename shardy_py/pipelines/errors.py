"""Errors of pipelined runs."""

from __future__ import annotations

from jax.extend import source_info_util
from jax.extend.core import JaxprEqn

from shardy_py.errors import ShardyError


class PipelineError(ShardyError):
    """A function that cannot run as the requested pipeline."""


def place(eqn: JaxprEqn) -> str:
    """`dot_general at model.py:12 (loss)`."""
    return f"{eqn.primitive.name} at {source_info_util.summarize(eqn.source_info)}"
