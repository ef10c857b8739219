"""Equations that say where values are to live: constraints, reshards, device_put, barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax.extend.core import JaxprEqn

from shardy_py.frontends.readers.common import ReaderTable, barrier, bind
from shardy_py.ir import Block, Op

if TYPE_CHECKING:
    from shardy_py.frontends.jaxpr import Importer, Scope


def optimization_barrier(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """One barrier for all operands."""
    importer.bind(eqn, barrier(importer, importer.read(eqn, scope, block), eqn, block).results, scope, block)


def sharding_constraint(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_sharding_constraint_hlo_lowering`; unconstrained dimensions are open."""
    (value,) = importer.read(eqn, scope, block)
    sharding = eqn.params["sharding"]
    bind(eqn, scope, [importer.constrained(value, eqn.invars[0].aval, sharding, block, eqn)])


def shard_alike(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """Two values of one sharding group: a custom call each, as JAX lowers it even with Shardy."""
    results = []
    for value in importer.read(eqn, scope, block):
        attributes = {"call_target_name": "Sharding", "has_side_effect": True}
        op = Op("stablehlo.custom_call", (value,), (value.type,), attributes, location=eqn.source_info, primitive="shard_alike")
        results.append(importer.append(op, block).result)
    bind(eqn, scope, results)


def reshard(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_reshard_hlo_lowering`: a constraint where the mesh has explicit axes, else nothing."""
    importer.bind(eqn, importer.read(eqn, scope, block), scope, block)


def device_put(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_tpu_gpu_device_put_lowering` and its CPU twin: a constraint where a sharding is given, else nothing."""
    results = []
    for value, var, device in zip(importer.read(eqn, scope, block), eqn.invars, eqn.params["devices"], strict=True):
        if hasattr(device, "spec") and hasattr(device, "mesh"):
            value = importer.constrained(value, var.aval, device, block, eqn)
        results.append(value)
    bind(eqn, scope, results)


READERS: ReaderTable = {
    "device_put": device_put,
    "optimization_barrier": optimization_barrier,
    "reshard": reshard,
    "shard_alike": shard_alike,
    "sharding_constraint": sharding_constraint,
}
