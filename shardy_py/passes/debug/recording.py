"""Runs passes with the debug attributes switched on."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from shardy_py.ir import Program
from shardy_py.passes.debug.propagation_edges import write_edges
from shardy_py.passes.debug.sharding_origins import ShardingOrigins
from shardy_py.passes.propagation.log import Log

SHARDING_ORIGINS = "note for each axis where it comes from"
PROPAGATION_EDGES = "note each step of the propagation"


@contextmanager
def recording(program: Program, log: Log | None, *, sharding_origins: bool, propagation_edges: bool) -> Generator[Log | None]:
    """Gives a log for a pass to write to, None where nobody wants one, and sets the debug attributes from it afterwards."""
    if not sharding_origins and not propagation_edges:
        yield log
        return
    origins = ShardingOrigins(program) if sharding_origins else None
    steps: Log = []
    yield steps
    if origins is not None:
        origins.follow(steps)
        origins.write()
    if propagation_edges:
        write_edges(program, steps)
    if log is not None:
        log += steps
