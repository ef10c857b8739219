"""Equations that say where values are to live: constraints, reshards, device_put, barriers."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import JaxprEqn
from jax.sharding import NamedSharding

from shardy_py.cost.liveness.placement import placement
from shardy_py.frontends.importer import Importer, Scope
from shardy_py.frontends.readers.common import ReaderTable, barrier, bind
from shardy_py.ir import Block, Op


def optimization_barrier(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """One barrier for all operands."""
    importer.bind(eqn, barrier(importer, importer.read(eqn, scope, block), eqn, block).results, scope, block)


def sharding_constraint(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_sharding_constraint_hlo_lowering`; unconstrained dimensions are open."""
    (value,) = importer.read(eqn, scope, block)
    sharding = eqn.params["sharding"]
    bind(eqn, scope, [importer.constrained(value, eqn.invars[0].aval, sharding, block, eqn)])


def shard_alike(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_group_shard`: a sharding group of its own for the two values."""
    values = importer.read(eqn, scope, block)
    attributes = {"group_id": importer.group_number(None)}
    for value in values:
        block.append(
            Op("sdy.sharding_group", (value,), (), attributes, rule_decided=True, location=eqn.source_info, primitive="shard_alike")
        )
    bind(eqn, scope, values)


def reshard(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_reshard_hlo_lowering`: a constraint where the mesh has explicit axes, else nothing."""
    importer.bind(eqn, importer.read(eqn, scope, block), scope, block)


def device_put(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_common_device_put_lowering`, and on other platforms than CPU `_tpu_gpu_device_put_lowering` to and from host memory."""
    results = []
    for value, var, out, device in zip(importer.read(eqn, scope, block), eqn.invars, eqn.outvars, eqn.params["devices"], strict=True):
        spaces = [getattr(v.aval, "memory_space", None) for v in (var, out)]
        kind = device.memory_kind if isinstance(device, NamedSharding) else _KINDS.get(spaces[1])
        if importer.platform != "cpu" and jax.memory.Space.Host in spaces:
            if isinstance(device, NamedSharding):
                value = importer.constrained(value, var.aval, device, block, eqn)
            attributes = {"call_target_name": "annotate_device_placement", "has_side_effect": True, **placement(kind or "device")}
            op = Op("stablehlo.custom_call", (value,), (value.type,), attributes, location=eqn.source_info, primitive="device_put")
            value = importer.append(op, block).result
        results.append(value)
    bind(eqn, scope, results)


_KINDS: dict[Any, str] = {jax.memory.Space.Host: "pinned_host", jax.memory.Space.Device: "device"}
"""Memory space of a type -> the kind that JAX takes for it."""


READERS: ReaderTable = {
    "device_put": device_put,
    "optimization_barrier": optimization_barrier,
    "reshard": reshard,
    "shard_alike": shard_alike,
    "sharding_constraint": sharding_constraint,
}
