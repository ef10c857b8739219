"""Loops, branches and references; of a scan, the while loop that `_scan_impl` in JAX traces to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jax.extend.core import JaxprEqn

from shardy_py.frontends import _jax
from shardy_py.frontends.importer import Importer, Scope
from shardy_py.frontends.inline import is_splat
from shardy_py.frontends.loops import scan_as_loop
from shardy_py.frontends.primitives.avals import type_of_aval
from shardy_py.frontends.readers.common import ReaderTable, bind, bind_body, returning
from shardy_py.ir import Block, Op, TensorType, Value
from shardy_py.passes.dataflow import NAMED_COMPUTATION


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
    op = importer.op("stablehlo.case", (which,), types, eqn, block, {}, regions, rule_decided=True)
    scopes = []
    for region, branch in zip(regions, branches):
        results, inner = importer.body(branch, operands, region)
        returning(region, results, "stablehlo.return")
        scopes.append(inner)
    scope.children[index] = scopes
    bind(eqn, scope, op.results)


def _kept_branches(
    importer: Importer, which: Value, branches: Sequence[Any], platforms: Sequence[Any], eqn: JaxprEqn, block: Block
) -> tuple[Value, list[Any]]:
    """Of branches per platform only the one lowered for stays, behind a case that renumbers the index."""
    index = next(i for i, names in enumerate(platforms) if names is None or importer.platform in names)
    regions = [Block() for _ in branches]
    types = (TensorType((), "int32"),)
    op = importer.op("stablehlo.case", (which,), types, eqn, block, {}, regions, rule_decided=True)
    for region in regions:
        returning(region, (importer.scalar(0, "int32", region, eqn),), "stablehlo.return")
    return op.result, [branches[index]]


def while_loop(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_while_lowering`: constants of predicate and body are carried; a batched predicate is reduced and masks the carry."""
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_jaxpr, body_jaxpr = params["cond_jaxpr"], params["body_jaxpr"]
    operands = importer.read(eqn, scope, block)
    types = [v.type for v in operands]
    cond_block, body_block = Block(types), Block(types)
    op = importer.op("stablehlo.while", operands, types, eqn, block, {}, (cond_block, body_block), rule_decided=True)
    predicate_aval = cond_jaxpr.out_avals[0]

    x, z = cond_block.arguments[:n_cond], cond_block.arguments[n_cond + n_body :]
    (predicate,), cond_scope = importer.body(cond_jaxpr, [*x, *z], cond_block)
    if predicate_aval.shape:
        predicate = _any(importer, predicate, cond_block)
    returning(cond_block, (predicate,), "stablehlo.return")

    x, y, z = body_block.arguments[:n_cond], body_block.arguments[n_cond : n_cond + n_body], body_block.arguments[n_cond + n_body :]
    new, body_scope = importer.body(body_jaxpr, [*y, *z], body_block)
    scope.children[index] = [cond_scope, body_scope]
    if predicate_aval.shape:
        (predicate,), second_cond_scope = importer.body(cond_jaxpr, [*x, *z], body_block)
        scope.children[index].append(second_cond_scope)
        new = [_masked(importer, predicate, a, b, body_block) for a, b in zip(new, z, strict=True)]
    returning(body_block, [*x, *y, *new], "stablehlo.return")
    bind(eqn, scope, op.results[n_cond + n_body :])


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
    bind_body(index, eqn, scope, importer.body(_jax.without_references(eqn), importer.read(eqn, scope, block), block))


def platform_index(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """The number of the platform lowered for, a constant."""
    platforms = eqn.params["platforms"]
    which = next(i for i, names in enumerate(platforms) if names is None or importer.platform in names)
    bind(eqn, scope, [importer.scalar(which, "int32", block, eqn)])


def scan(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """The while loop that JAX traces to; the scopes of the body are the equation's children."""
    traced = scan_as_loop(eqn)
    operands = importer.read(eqn, scope, block)
    start = len(block.ops)
    results, loop = importer.body(traced.jaxpr, operands, block)
    for op in itertools.chain.from_iterable(op.walk() for op in block.ops[start:]):
        if id(op.location) in traced.source_info_ids:  # the shardings of a `jit` in the body have none
            op.location = eqn.source_info
            op.primitive = op.primitive if op.name == NAMED_COMPUTATION else "scan"
    for op in block.ops[start:]:
        if is_splat(op, op.operands):  # a stack of results in front of the loop, which nothing writes yet
            op.name, op.attributes = "sdy.constant", {"value": 0}
            op.drop_uses()
            op.operands, op.rule, op.rule_decided = [], None, True
    body = eqn.params["jaxpr"].jaxpr
    bodies = [s for s in loop.walk() if s.jaxpr is body]
    scope.children[index] = bodies or [loop] if eqn.params["length"] else []  # a body that never runs is not there
    bind(eqn, scope, results)


READERS: ReaderTable = {
    "cond": cond,
    "platform_index": platform_index,
    "run_state": run_state,
    "while": while_loop,
    "scan": scan,
}
