"""Runs passes with the debug attributes switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Op, Program, Value
from shardy_py.passes.debug.propagation_edges import write_edges
from shardy_py.passes.debug.sharding_origins import ShardingOrigins
from shardy_py.passes.propagation.log import Step
from shardy_py.passes.walk import Record


@contextmanager
def recording(program: Program, *, sharding_origins: bool, propagation_edges: bool) -> Iterator[list[Step] | None]:
    """Gives a log for a pass to write to, and sets the debug attributes from it afterwards.

    Args:
        program: What the pass runs on.
        sharding_origins: Whether `sdy.sharding_origins` is set.
        propagation_edges: Whether `sdy.propagation_edges` is set.

    Yields:
        The log; None where no attribute is wanted.
    """
    if not sharding_origins and not propagation_edges:
        yield None
        return
    origins = ShardingOrigins(program) if sharding_origins else None
    log: list[Step] = []
    yield log
    if origins is not None:
        origins.follow(log)
        origins.write()
    if propagation_edges:
        write_edges(program, log)


def recorder(log: list[Step] | None) -> Record | None:
    """What writes a change that is no step of the propagation to a log."""
    if log is None:
        return None

    def record(value: Value, old: TensorSharding | None, new: TensorSharding | None, why: str, op: Op | None) -> None:
        log.append(Step(value, old, new, op, (), (), why, 0, -1))

    return record
