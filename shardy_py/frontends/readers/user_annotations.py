"""The annotation primitives as SDY ops."""

from __future__ import annotations

from jax.extend.core import JaxprEqn

from shardy_py.dialect import DimensionSharding, OpShardingRule, TensorSharding
from shardy_py.frontends.importer import Importer, Scope
from shardy_py.frontends.primitives.avals import type_of_aval
from shardy_py.frontends.readers.common import ReaderTable
from shardy_py.ir import Block, Op
from shardy_py.rules.traits import attributes_of_constraint


def _constraint(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    (x,) = importer.read(eqn, scope, block)
    sharding = _physical(eqn.params["sharding"], x.type.rank)
    attributes = attributes_of_constraint(sharding)
    op = Op("sdy.sharding_constraint", (x,), (x.type,), attributes, location=eqn.source_info, primitive=eqn.params["origin"])
    op.result.sharding = sharding
    importer.append(op, block)
    scope.env[eqn.outvars[0]] = op.result


def _physical(sharding: TensorSharding, rank: int) -> TensorSharding:
    """The sharding of the array that holds PRNG keys: the dimensions they add are replicated."""
    missing = rank - sharding.rank
    return sharding if not missing else sharding.with_dims((*sharding.dims, *(DimensionSharding(),) * missing))


def _group(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    number = importer.group_number(eqn.params["group"])
    for x, out in zip(importer.read(eqn, scope, block), eqn.outvars):
        attributes = {"group_id": number}
        importer.append(
            Op("sdy.sharding_group", (x,), (), attributes, rule_decided=True, location=eqn.source_info, primitive=eqn.primitive.name), block
        )
        scope.env[out] = x


def _barrier(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    (x,) = importer.read(eqn, scope, block)
    attributes = {"allowed_direction": eqn.params["allowed_direction"]}
    op = Op(
        "sdy.propagation_barrier", (x,), (x.type,), attributes, rule_decided=True, location=eqn.source_info, primitive="propagation_barrier"
    )
    importer.append(op, block)
    scope.env[eqn.outvars[0]] = op.result


def _ruled_call(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    like = eqn.params["like_jaxpr"]
    operands = importer.read(eqn, scope, block)
    if like is not None:
        results, inner = importer.body(like, operands, block)
        scope.children[index] = [inner]
    else:
        types = [type_of_aval(v.aval) for v in eqn.outvars]
        rule: OpShardingRule = eqn.params["rule"]
        attributes = {"call_target_name": eqn.params["name"]}
        op = Op(
            "stablehlo.custom_call",
            operands,
            types,
            attributes,
            rule=rule,
            rule_decided=True,
            location=eqn.source_info,
            primitive=eqn.params["name"],
        )
        importer.append(op, block)
        results = op.results
    scope.env.update(zip(eqn.outvars, results))


READERS: ReaderTable = {
    "sdy_sharding_constraint": _constraint,
    "sdy_sharding_group": _group,
    "sdy_propagation_barrier": _barrier,
    "sdy_ruled_call": _ruled_call,
}
