"""Loops, branches and references; of a scan, the while loop that `_scan_impl` in JAX traces to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jax.extend.core import JaxprEqn

from shardy_py.frontends import _jax
from shardy_py.frontends.importer import Importer, Scope
from shardy_py.frontends.inline import named_computation
from shardy_py.frontends.jaxprs import open_jaxpr
from shardy_py.frontends.loops import ScanStyle, scan_as_loop, scan_counts, scan_style
from shardy_py.frontends.primitives.avals import is_extended, type_of_aval
from shardy_py.frontends.readers.calls import call
from shardy_py.frontends.readers.common import ReaderTable, bind
from shardy_py.ir import Block, Op, TensorType, Type, Value


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


def scan(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """Written down or traced; the scopes of the body are the equation's children."""
    written = not importer.typed and eqn.params["unroll"] == 1 and eqn.params["length"] > 0  # JAX writes no loop that never runs
    style = scan_style() if written else None
    n_consts, n_carry = scan_counts(eqn)
    stacked = (*eqn.invars[n_consts + n_carry :], *eqn.outvars[n_carry:])
    if style is None or any(is_extended(v.aval) for v in stacked):
        _traced(importer, index, eqn, scope, block)
        return
    loop = _LoopReader(importer, eqn, style)
    results, inner = loop.append(importer.read(eqn, scope, block), block)
    scope.children[index] = [inner]
    bind(eqn, scope, results)


def _traced(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    traced = scan_as_loop(eqn)
    operands = importer.read(eqn, scope, block)
    start = len(block.ops)
    results, loop = importer.body(traced.jaxpr, operands, block)
    for op in itertools.chain.from_iterable(op.walk() for op in block.ops[start:]):
        if op.location is None or id(op.location) in traced.source_info_ids:
            op.location = eqn.source_info
    body = eqn.params["jaxpr"].jaxpr
    bodies = [s for s in _scopes(loop) if s.jaxpr is body]
    scope.children[index] = bodies or [loop] if eqn.params["length"] else []  # a body that never runs is not there
    bind(eqn, scope, results)


def _scopes(scope: Scope) -> list[Scope]:
    scopes = [scope]
    for children in scope.children.values():
        for child in children:
            scopes.extend(_scopes(child))
    return scopes


class _LoopReader:
    """Writes one loop: `xs`, constants, counter, carry and stacked results are carried, in this order."""

    def __init__(self, importer: Importer, eqn: JaxprEqn, style: ScanStyle) -> None:
        self.importer = importer
        self.eqn = eqn
        self.style = style
        self.length = int(eqn.params["length"])
        self.counter = TensorType((), style.counter)
        self.predicate = TensorType((), "bool")

    def append(self, operands: Sequence[Value], block: Block) -> tuple[list[Value], Scope]:
        """Appends the loop to a block; returns its results and the scope of its body."""
        n_consts, n_carry = scan_counts(self.eqn)
        consts, carry, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
        stacked = [self.importer.splat(type_of_aval(v.aval), 0, block, self.eqn) for v in self.eqn.outvars[n_carry:]]
        start = self.scalar(0, block)
        initial = [*xs, *consts, start, *carry, *stacked]
        types = [v.type for v in initial]
        regions = Block(types), Block(types)
        loop = Op("stablehlo.while", initial, types, {}, regions, rule_decided=True, location=self.eqn.source_info, primitive="scan")
        block.append(loop)
        n = len(xs) + n_consts
        self.condition(regions[0].arguments[n], regions[0])
        inner = self.body(regions[1], len(xs), n_consts, n_carry)
        return loop.results[n + 1 :], inner

    def scalar(self, value: int, block: Block) -> Value:
        return self.importer.scalar(value, self.style.counter, block, self.eqn)

    def op(self, name: str, operands: Sequence[Value], type_: Type, block: Block, **attributes: object) -> Value:
        op = Op(name, operands, (type_,), attributes or None, location=self.eqn.source_info, primitive="scan")
        return self.importer.append(op, block).result

    def end(self, name: str, values: Sequence[Value], block: Block) -> None:
        block.append(Op(name, values, (), rule_decided=True, location=self.eqn.source_info))

    def condition(self, counter: Value, block: Block) -> None:
        limit = self.scalar(self.length, block)
        self.end("stablehlo.return", [self.op("stablehlo.compare", (counter, limit), self.predicate, block)], block)

    def body(self, block: Block, n_xs: int, n_consts: int, n_carry: int) -> Scope:
        n = n_xs + n_consts
        arguments = block.arguments
        xs, consts, counter = arguments[:n_xs], arguments[n_xs:n], arguments[n]
        carry, stacked = arguments[n + 1 : n + 1 + n_carry], arguments[n + 1 + n_carry :]
        here = counter
        if self.eqn.params["reverse"]:
            last = self.op("stablehlo.subtract", (self.scalar(self.length, block), counter), self.counter, block)
            here = self.op("stablehlo.subtract", (last, self.scalar(1, block)), self.counter, block)
        elements = [self.element(x, here, block) for x in xs]
        jaxpr = self.eqn.params["jaxpr"]
        operands = [*consts, *carry, *elements]
        if self.style.calls_body:
            key = ("closed_call", open_jaxpr(jaxpr)) if not jaxpr.consts else object()
            results, inner = call(self.importer, "closed_call", key, jaxpr, operands, self.eqn, block)
            block.ops[-1].primitive = "closed_call"
        else:
            results, inner = self.importer.body(jaxpr, operands, block)
        updated = [self.store(s, y, here, block) for s, y in zip(stacked, results[n_carry:], strict=True)]
        following = self.op("stablehlo.add", (counter, self.scalar(1, block)), self.counter, block)
        self.end("stablehlo.return", [*xs, *consts, following, *results[:n_carry], *updated], block)
        return inner

    def function(self, name: str, operands: Sequence[Value], type_: Type, block: Block) -> tuple[Op, Block]:
        body = Block([v.type for v in operands])
        symbol = self.importer.symbol((name, *(v.type for v in operands)), name)
        op = named_computation(symbol, operands, (type_,), body, self.eqn.source_info, "jit")
        block.append(op)
        return op, body

    def element(self, x: Value, here: Value, block: Block) -> Value:
        """`dynamic_index_in_dim` along the leading dimension."""
        shape, dtype = x.type.shape, x.type.dtype
        op, body = self.function("dynamic_index_in_dim", (x, here), TensorType(shape[1:], dtype), block)
        array, start = body.arguments
        sizes = (1, *shape[1:])
        starts = [start, *(self.scalar(0, body) for _ in shape[1:])]
        part = self.op("stablehlo.dynamic_slice", (array, *starts), TensorType(sizes, dtype), body, slice_sizes=sizes)
        self.end("sdy.return", [self.op("stablehlo.reshape", (part,), op.result.type, body)], body)
        return op.result

    def store(self, stacked: Value, y: Value, here: Value, block: Block) -> Value:
        """`dynamic_update_index_in_dim` along the leading dimension."""
        op, body = self.function("dynamic_update_index_in_dim", (stacked, y, here), stacked.type, block)
        array, update, start = body.arguments
        wide = TensorType((1, *y.type.shape), y.type.dtype)
        update = self.op("stablehlo.broadcast_in_dim", (update,), wide, body, broadcast_dimensions=tuple(range(1, wide.rank)))
        starts = [start, *(self.scalar(0, body) for _ in y.type.shape)]
        self.end("sdy.return", [self.op("stablehlo.dynamic_update_slice", (array, update, *starts), stacked.type, body)], body)
        return op.result


READERS: ReaderTable = {
    "cond": cond,
    "platform_index": platform_index,
    "run_state": run_state,
    "while": while_loop,
    "scan": scan,
}
