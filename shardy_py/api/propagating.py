"""Imports a jaxpr and propagates its known shardings to all values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr

from shardy_py.api.meshes import MESH_NAME, MeshView
from shardy_py.api.options import Options
from shardy_py.dialect import DimensionSharding, TensorSharding
from shardy_py.frontends.context import is_extended_dtype
from shardy_py.frontends.jaxpr import Imported, from_jaxpr
from shardy_py.frontends.primitives.avals import physical_shape
from shardy_py.ir import Value
from shardy_py.passes.import_.sharding_group_import import GROUP
from shardy_py.passes.pipelines import PlanPipeline
from shardy_py.passes.propagation.log import Step
from shardy_py.plan.timings import Timings


def import_and_propagate(
    jaxpr: ClosedJaxpr,
    view: MeshView,
    options: Options,
    inputs: Sequence[TensorSharding | None],
    outputs: Sequence[TensorSharding | None],
    timings: Timings | None = None,
    log: list[Step] | None = None,
    names: Sequence[str] | None = None,
    groups: dict[int, list[Value]] | None = None,
) -> Imported:
    """A propagated jaxpr as a program; the members of sharding groups, which it has no ops of, are written to `groups`."""
    timings = Timings() if timings is None else timings
    with timings.step("read"):
        imported = from_jaxpr(
            jaxpr,
            mesh=view.dialect_mesh,
            in_shardings=[physical_sharding(s, v.aval) for s, v in zip(inputs, jaxpr.jaxpr.invars, strict=True)],
            out_shardings=[physical_sharding(s, v.aval) for s, v in zip(outputs, jaxpr.jaxpr.outvars, strict=True)],
            argument_names=names,
            rules=options.rule_table or None,
            platform=options.platform_of(view.user_mesh),
            devices=view.expected,
        )
    if groups is not None:
        for op in imported.program.walk():
            if op.name == GROUP:
                groups.setdefault(op.attributes["group_id"], []).append(op.operands[0])
    with timings.step("propagate"):
        PlanPipeline(
            propagation_strategy=options.strategy,
            conservative_propagation=options.conservative,
            run_op_priority_propagation=options.op_priority,
        ).run(imported.program, log)
    return imported


def physical_sharding(sharding: TensorSharding | None, aval: Any) -> TensorSharding | None:
    """The sharding of the array that holds a value; PRNG keys have further dimensions, replicated."""
    if sharding is None or not is_extended_dtype(aval.dtype):
        return sharding
    extra = len(physical_shape(aval)) - sharding.rank
    return sharding.with_dims((*sharding.dims, *(DimensionSharding(),) * extra))


def decided(sharding: TensorSharding | None, rank: int) -> TensorSharding:
    """A planned sharding as annotations say it: every dimension closed, without those that PRNG keys add."""
    planned = TensorSharding.closed(MESH_NAME, rank) if sharding is None else sharding
    return planned.with_dims(planned.dims[:rank]).closed_like().with_mesh(MESH_NAME)
