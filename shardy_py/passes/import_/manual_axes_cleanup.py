"""States the manual axes of every manual computation in mesh order, and in every sharding of its operands and results."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect import AxisRef, Mesh, TensorSharding
from shardy_py.dialect.axis import set_difference, sort_and_merge
from shardy_py.errors import ShardyError
from shardy_py.ir import Op, Program, TensorType, Value
from shardy_py.passes.base import Pass
from shardy_py.passes.dataflow import MANUAL_COMPUTATION
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import ops_of


@dataclass(frozen=True, kw_only=True)
class ManualAxesCleanup(Pass):
    """Sorts manual axes and states them in every sharding of the computation."""

    name = "sdy-manual-axes-cleanup"

    def run(self, program: Program, log: Log | None = None) -> None:
        """Sorts manual axes, and adds those that an in or out sharding does not use to its replicated axes.

        A sharding on an empty mesh gets the mesh that the others have; all refer to that mesh in the same way. Raises ShardyError if a
        computation has manual axes and a body, but nothing to say which mesh they belong to.

        Source: Shardy's manual_axes_cleanup.cc.
        """
        for op in ops_of(program, (MANUAL_COMPUTATION,)):
            _clean(op, program.meshes)


def _clean(op: Op, meshes: dict[str, Mesh]) -> None:
    manual: tuple[str, ...] = tuple(op.attributes.get("manual_axes") or ())
    if not manual:
        return
    ins, outs = op.attributes.get("in_shardings") or (), op.attributes.get("out_shardings") or ()
    present = [sharding for sharding in (*ins, *outs) if not sharding.mesh_in(meshes).is_empty]
    if not present:
        if not ins and not outs and len(op.regions[0].ops) <= 1:
            op.attributes = {**op.attributes, "manual_axes": ()}
            return
        if not ins and not outs:
            raise ShardyError(
                "op has manual_axes when there are no in/out shardings and the body is not empty",
                where=f"sdy.manual_computation with manual axes {', '.join(manual)}",
                fix="state the sharding of at least one operand or result, or remove the manual axes",
            )
        return
    name = present[0].mesh
    mesh = present[0].mesh_in(meshes)
    manual = tuple(sorted(manual, key=mesh.axis_index))
    axes = tuple(map(AxisRef, manual))

    def complete(value: Value, sharding: TensorSharding) -> TensorSharding:
        if not isinstance(value.type, TensorType):
            return sharding
        missing = set_difference(axes, sharding.all_axes(), mesh)
        replicated = sort_and_merge((*sharding.replicated, *missing), mesh) if missing else sharding.replicated
        return TensorSharding(name, sharding.dims, replicated, sharding.unreduced)

    op.attributes = {
        **op.attributes,
        "manual_axes": manual,
        "in_shardings": tuple(map(complete, op.operands, ins)),
        "out_shardings": tuple(map(complete, op.results, outs)),
    }
