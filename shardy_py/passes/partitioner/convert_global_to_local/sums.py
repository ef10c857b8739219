"""Ops over a cut dimension that they sum over: each device has a part of the sum, which an all-reduce must add up."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.dialect.axis import sort_and_merge
from shardy_py.passes.partitioner.convert_global_to_local.emitter import Emitter

_ALL_REDUCE = "sdy.all_reduce"

FULL_RESHARDS = "run sdy-insert-explicit-reshards{enable-full-version=true} before sdy-convert-global-to-local"
"""How to fix a program whose ops do not fit their operands."""


def check_summed(out: Emitter, axes: Sequence[AxisRef], sharding: TensorSharding | None, subject: str, dims: str) -> None:
    """Sees to it that the op's result is used by an all-reduce over some axes alone, if there are any.

    Args:
        out: The op.
        axes: The axes that cut what the op sums over.
        sharding: Over the mesh of the axes.
        subject: What the op is, for the error.
        dims: What the axes cut, for the error.

    Raises:
        ShardyError: If something else uses the result, or the all-reduce is over other axes.
    """
    if not axes or sharding is None:
        return
    uses = out.op.results[0].uses
    if len(uses) != 1 or uses[0][0].name != _ALL_REDUCE:
        raise out.error(f"Expected {subject} to have one user and the user is an {_ALL_REDUCE}.", fix=FULL_RESHARDS)
    mesh = out.world.mesh(sharding)
    reduced = uses[0][0].attributes["reduction_axes"].axes
    if sort_and_merge(axes, mesh) != sort_and_merge(reduced, mesh):
        raise out.error(
            f"The axes of the {_ALL_REDUCE} should match the {dims}.",
            why=f"they are {list(reduced)}, and the dimensions are cut along {list(axes)}",
            fix=FULL_RESHARDS,
        )
