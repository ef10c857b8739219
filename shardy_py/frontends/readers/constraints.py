"""Equations that say where values are to live: constraints, reshards, device_put, barriers, and our own annotation primitives."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import JaxprEqn
from jax.sharding import NamedSharding

from shardy_py.cost.liveness.placement import placement
from shardy_py.dialect import DimensionSharding, TensorSharding
from shardy_py.frontends.importer import Importer, Scope
from shardy_py.frontends.primitives.avals import type_of_aval
from shardy_py.frontends.readers.common import ReaderTable, barrier, bind, bind_body
from shardy_py.ir import Block


def optimization_barrier(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """One barrier for all operands."""
    bind(eqn, scope, barrier(importer, importer.read(eqn, scope, block), eqn, block).results)


def sharding_constraint(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_sharding_constraint_hlo_lowering`; unconstrained dimensions are open."""
    (value,) = importer.read(eqn, scope, block)
    sharding = eqn.params["sharding"]
    bind(eqn, scope, [importer.constrained(value, eqn.invars[0].aval, sharding, block, eqn)])


def reshard(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_reshard_hlo_lowering`, which is a constraint on Explicit axes only."""
    bind(eqn, scope, importer.read(eqn, scope, block))


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
            value = importer.op("stablehlo.custom_call", (value,), (value.type,), eqn, block, attributes).result
        results.append(value)
    bind(eqn, scope, results)


_KINDS: dict[Any, str] = {jax.memory.Space.Host: "pinned_host", jax.memory.Space.Device: "device"}
"""Memory space of a type -> the kind that JAX takes for it."""


def _constraint(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    (x,) = importer.read(eqn, scope, block)
    sharding = _physical(eqn.params["sharding"], x.type.rank)
    scope.env[eqn.outvars[0]] = importer.sharding_constraint(x, sharding, block, eqn, eqn.params["origin"])


def _physical(sharding: TensorSharding, rank: int) -> TensorSharding:
    """The sharding of the array that holds PRNG keys: the dimensions they add are replicated."""
    missing = rank - sharding.rank
    return sharding if not missing else sharding.with_dims((*sharding.dims, *(DimensionSharding(),) * missing))


def _group(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    number = importer.group_number(eqn.params.get("group"))  # JAX's shard_alike has a group of its own
    for x, out in zip(importer.read(eqn, scope, block), eqn.outvars):
        importer.op("sdy.sharding_group", (x,), (), eqn, block, {"group_id": number}, rule_decided=True)
        scope.env[out] = x


def _barrier(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    (x,) = importer.read(eqn, scope, block)
    attributes = {"allowed_direction": eqn.params["allowed_direction"]}
    name = "propagation_barrier"
    scope.env[eqn.outvars[0]] = importer.op(
        f"sdy.{name}", (x,), (x.type,), eqn, block, attributes, rule_decided=True, primitive=name
    ).result


def _ruled_call(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    like = eqn.params["like_jaxpr"]
    operands = importer.read(eqn, scope, block)
    if like is not None:
        bind_body(index, eqn, scope, importer.body(like, operands, block))
        return
    types, name = [type_of_aval(v.aval) for v in eqn.outvars], eqn.params["name"]
    attributes = {"call_target_name": name}
    op = importer.op("stablehlo.custom_call", operands, types, eqn, block, attributes, rule_decided=True, primitive=name)
    op.rule = eqn.params["rule"]
    bind(eqn, scope, op.results)


READERS: ReaderTable = {
    "device_put": device_put,
    "optimization_barrier": optimization_barrier,
    "reshard": reshard,
    "shard_alike": _group,
    "sharding_constraint": sharding_constraint,
    "sdy_sharding_constraint": _constraint,
    "sdy_sharding_group": _group,
    "sdy_propagation_barrier": _barrier,
    "sdy_ruled_call": _ruled_call,
}
