"""Loops, branches and references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import JaxprEqn

from shardy_py.frontends import _jax
from shardy_py.frontends.importer import Importer, Scope
from shardy_py.frontends.primitives.avals import type_of_aval
from shardy_py.frontends.readers.common import ReaderTable, bind
from shardy_py.ir import Block, Op, TensorType, Value


def cond(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_cond_lowering`: a case whose branches capture the operands."""
    params = eqn.params
    branches = params["branches"]
    which, *operands = importer.read(eqn, scope, block)
    platforms = params.get("branches_platforms")
    if platforms is not None:
        which, branches = _kept_branches(importer, which, branches, platforms, eqn, block)
    regions = [Block() for _ in branches]
    types = [type_of_aval(v.aval) for v in eqn.outvars]
    op = Op("stablehlo.case", (which,), types, {}, regions, rule_decided=True, location=eqn.source_info, primitive="cond")
    block.append(op)
    scopes = []
    for region, branch in zip(regions, branches):
        results, inner = importer.body(branch, operands, region)
        region.append(Op("stablehlo.return", results, (), rule_decided=True))
        scopes.append(inner)
    scope.children[index] = scopes
    importer.bind(eqn, op.results, scope, block)


def _kept_branches(
    importer: Importer, which: Value, branches: Sequence[Any], platforms: Sequence[Any], eqn: JaxprEqn, block: Block
) -> tuple[Value, list[Any]]:
    """Of branches per platform only the one lowered for stays, behind a case that renumbers the index."""
    index = next(i for i, names in enumerate(platforms) if names is None or importer.platform in names)
    regions = [Block() for _ in branches]
    types = (TensorType((), "int32"),)
    op = Op("stablehlo.case", (which,), types, {}, regions, rule_decided=True, location=eqn.source_info, primitive="cond")
    block.append(op)
    for region in regions:
        region.append(Op("stablehlo.return", (importer.scalar(0, "int32", region, eqn),), (), rule_decided=True))
    return op.result, [branches[index]]


def while_loop(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_while_lowering`: constants of predicate and body are carried; a batched predicate is reduced and masks the carry."""
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_jaxpr, body_jaxpr = params["cond_jaxpr"], params["body_jaxpr"]
    operands = importer.read(eqn, scope, block)
    types = [v.type for v in operands]
    cond_block, body_block = Block(types), Block(types)
    op = Op(
        "stablehlo.while", operands, types, {}, (cond_block, body_block), rule_decided=True, location=eqn.source_info, primitive="while"
    )
    block.append(op)
    predicate_aval = cond_jaxpr.out_avals[0]

    x, z = cond_block.arguments[:n_cond], cond_block.arguments[n_cond + n_body :]
    (predicate,), cond_scope = importer.body(cond_jaxpr, [*x, *z], cond_block)
    if predicate_aval.shape:
        predicate = _any(importer, predicate, cond_block)
    cond_block.append(Op("stablehlo.return", (predicate,), (), rule_decided=True))

    x, y, z = body_block.arguments[:n_cond], body_block.arguments[n_cond : n_cond + n_body], body_block.arguments[n_cond + n_body :]
    new, body_scope = importer.body(body_jaxpr, [*y, *z], body_block)
    scope.children[index] = [cond_scope, body_scope]
    if predicate_aval.shape:
        (predicate,), second_cond_scope = importer.body(cond_jaxpr, [*x, *z], body_block)
        scope.children[index].append(second_cond_scope)
        new = [_masked(importer, predicate, a, b, body_block) for a, b in zip(new, z, strict=True)]
    body_block.append(Op("stablehlo.return", [*x, *y, *new], (), rule_decided=True))
    importer.bind(eqn, op.results[n_cond + n_body :], scope, block)


def _any(importer: Importer, predicate: Value, block: Block) -> Value:
    start = Op("sdy.constant", (), (TensorType((), "bool"),), {"value": False}, rule_decided=True)
    block.append(start)
    axes = tuple(range(predicate.type.rank))
    op = Op("stablehlo.reduce", (predicate, start.result), (TensorType((), "bool"),), {"dimensions": axes, "body": "stablehlo.or"})
    return importer.append(op, block).result


def _masked(importer: Importer, predicate: Value, new: Value, old: Value, block: Block) -> Value:
    attributes = {"broadcast_dimensions": tuple(range(predicate.type.rank))}
    wide = importer.append(Op("stablehlo.broadcast_in_dim", (predicate,), (TensorType(new.type.shape, "bool"),), attributes), block).result
    return importer.append(Op("stablehlo.select", (wide, new, old), (new.type,)), block).result


def run_state(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """References become values first, as `_run_state_impl` does."""
    traced = _jax.without_references(eqn)
    results, inner = importer.body(traced, importer.read(eqn, scope, block), block)
    scope.children[index] = [inner]
    bind(eqn, scope, results)


def platform_index(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """The number of the platform lowered for, a constant."""
    platforms = eqn.params["platforms"]
    which = next(i for i, names in enumerate(platforms) if names is None or importer.platform in names)
    bind(eqn, scope, [importer.scalar(which, "int32", block, eqn)])


READERS: ReaderTable = {
    "cond": cond,
    "platform_index": platform_index,
    "run_state": run_state,
    "while": while_loop,
}
