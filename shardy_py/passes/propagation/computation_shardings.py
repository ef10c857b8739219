"""Computations without data-flow edges: their shardings stand on their values while a pass propagates."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from shardy_py.ir import Op, Program
from shardy_py.passes import dataflow
from shardy_py.passes.walk import ops_of


@contextmanager
def shardings_on_values(program: Program) -> Generator[None]:
    """Moves `in_shardings` and `out_shardings` of computations to their block arguments and results, and back afterwards.

    Nothing propagates between the inside and the outside of such a computation, but its block arguments and results take part
    like any other value. Where an edge stands on a value, the edge holds its sharding.
    """
    computations = [op for op in ops_of(program, dataflow.COMPUTATIONS) if not all(map(dataflow.edge_of_owner, dataflow.owners(op)))]
    for op in computations:
        for owner in dataflow.owners(op):
            if dataflow.edge_of_owner(owner) is None:
                owner.sharding = dataflow.get_sharding(owner)
    yield
    for op in computations:
        _to_attributes(op)


def _to_attributes(op: Op) -> None:
    for owner in dataflow.owners(op):
        if dataflow.edge_of_owner(owner) is not None:
            continue
        sharding, owner.sharding = owner.sharding, None
        if sharding is not None and sharding is not dataflow.get_sharding(owner):
            dataflow.set_sharding(owner, sharding)
