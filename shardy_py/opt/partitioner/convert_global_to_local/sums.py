"""Ops over a cut dimension that they sum over: each device has a part of the sum, which must be added up."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import AxisRef, TensorSharding
from shardy_py.dialect.axis import sort_and_merge
from shardy_py.ir import Op
from shardy_py.opt.partitioner.convert_global_to_local.emitter import Emitter
from shardy_py.opt.partitioner.convert_global_to_local.groups import flat

_ALL_REDUCE = "sdy.all_reduce"
_REDUCE_SCATTER = "sdy.reduce_scatter"

FULL_RESHARDS = "run sdy-insert-explicit-reshards{enable-full-version=true} before sdy-convert-global-to-local"
"""The advice for a program whose ops do not fit their operands."""


def check_summed(out: Emitter, axes: Sequence[AxisRef], sharding: TensorSharding | None, subject: str, dims: str) -> None:
    """Raises ShardyError unless every use of the op's result is an all-reduce or reduce-scatter over the axes that cut what it sums."""
    if not axes or sharding is None:
        return
    users = [user for user, _ in out.op.results[0].uses]
    if not users or any(user.name not in (_ALL_REDUCE, _REDUCE_SCATTER) for user in users):
        raise out.error(f"Expected {subject} to have one user and the user is an {_ALL_REDUCE}.", fix=FULL_RESHARDS)
    mesh = out.world.mesh(sharding)
    for user in users:
        reduced = _reduced_axes(user)
        if sort_and_merge(axes, mesh) != sort_and_merge(reduced, mesh):
            raise out.error(
                f"The axes of the {user.name} should match the {dims}.",
                why=f"they are {list(reduced)}, and the dimensions are cut along {list(axes)}",
                fix=FULL_RESHARDS,
            )


def _reduced_axes(op: Op) -> Sequence[AxisRef]:
    if op.name == _ALL_REDUCE:
        return op.attributes["reduction_axes"].axes
    return flat([listed.axes for listed in op.attributes["reduce_scatter_axes"].lists])
