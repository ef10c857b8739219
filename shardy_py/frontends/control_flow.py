"""Equations that hold other jaxprs: calls, loops, branches, checkpoints and manual regions.

Each reader is named after the lowering rule in JAX that it follows. `REGIONS`, at the foot, is the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from shardy_py.frontends import _tracing
from shardy_py.frontends.inline import named_computation
from shardy_py.frontends.primitives.avals import physical_shape, type_of_aval
from shardy_py.ir import Block, Op, TensorType, Value

if TYPE_CHECKING:
    from shardy_py.frontends.jaxpr import Importer, Scope

RegionReader = Callable[["Importer", int, JaxprEqn, "Scope", Block], None]


def _bind(eqn: JaxprEqn, scope: Scope, results: Sequence[Value]) -> None:
    scope.env.update(zip(eqn.outvars, results, strict=True))


def _call(
    importer: Importer,
    name: str,
    key: Any,
    jaxpr: ClosedJaxpr,
    operands: Sequence[Value],
    eqn: JaxprEqn,
    block: Block,
    around: Callable[[Block, Sequence[Value], bool], Sequence[Value]] | None = None,
) -> tuple[list[Value], Scope]:
    """Appends a named computation with the jaxpr as its body."""
    body = Block([v.type for v in operands])
    op = named_computation(importer.symbol(key, name), operands, [type_of_aval(a) for a in jaxpr.out_avals], body, eqn.source_info, eqn.primitive.name)
    block.append(op)
    arguments = body.arguments if around is None else around(body, body.arguments, True)
    results, scope = importer.body(jaxpr, arguments, body)
    if around is not None:
        results = around(body, results, False)
    body.append(Op("sdy.return", results, (), rule_known=True))
    return op.results, scope


def jit(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_pjit_lowering`: a call, with shardings of arguments and results as constraints inside of the function."""
    params = eqn.params
    jaxpr = params["jaxpr"]
    operands = importer.read(eqn, scope, block)
    around = None
    if any(map(_tracing.is_specified, (*params["in_shardings"], *params["out_shardings"]))):

        def around(body: Block, values: Sequence[Value], entering: bool) -> Sequence[Value]:
            shardings = params["in_shardings"] if entering else params["out_shardings"]
            avals = jaxpr.in_avals if entering else jaxpr.out_avals
            return [importer.constrained(v, a, s, body) for v, a, s in zip(values, avals, shardings, strict=True)]

    results, inner = _call(importer, params["name"], (params["name"], jaxpr), jaxpr, operands, eqn, block, around)
    scope.children[index] = [inner]
    _bind(eqn, scope, results)


def core_call(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`core_call_lowering`: a call named after the primitive."""
    jaxpr = eqn.params["call_jaxpr"]
    if not isinstance(jaxpr, ClosedJaxpr):
        jaxpr = ClosedJaxpr(jaxpr, ())
    name = "core_call" if eqn.primitive.name == "call" else "closed_call"
    key = object() if jaxpr.consts else (name, jaxpr.jaxpr)
    results, inner = _call(importer, name, key, jaxpr, importer.read(eqn, scope, block), eqn, block)
    scope.children[index] = [inner]
    _bind(eqn, scope, results)


def compute_on(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_compute_on_lowering`: a call, then a placement of each result."""
    jaxpr = eqn.params["jaxpr"]
    results, inner = _call(importer, "compute_on", ("compute_on", jaxpr.jaxpr), jaxpr, importer.read(eqn, scope, block), eqn, block)
    scope.children[index] = [inner]
    placed = [importer.append(Op("stablehlo.custom_call", (v,), (v.type,), dict(_PLACEMENT), location=eqn.source_info), block).result for v in results]
    _bind(eqn, scope, placed)


_PLACEMENT = {"call_target_name": "annotate_device_placement", "has_side_effect": True}

_JAXPR_PARAMETERS = ("call_jaxpr", "call", "callee", "fwd_jaxpr", "jaxpr")


def inlined(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_custom_jvp_vjp_call_lowering` and primitives whose lowering evaluates their jaxpr: the ops stand in the caller."""
    jaxpr = next(eqn.params[name] for name in _JAXPR_PARAMETERS if name in eqn.params)
    results, inner = importer.body(jaxpr, importer.read(eqn, scope, block), block)
    scope.children[index] = [inner]
    _bind(eqn, scope, results)


def linear_solve(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_custom_linear_solve_impl`: only the solving jaxpr, on its own constants and the right-hand sides."""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    operands = importer.read(eqn, scope, block)
    start = lengths.matvec + lengths.vecmat
    arguments = [*operands[start : start + lengths.solve], *operands[start + lengths.solve + lengths.transpose_solve :]]
    results, inner = importer.body(jaxprs.solve, arguments, block)
    scope.children[index] = [inner]
    _bind(eqn, scope, results)


def remat(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_remat_lowering`: inlined, behind a barrier where it is differentiated and must not be merged with the original."""
    params = eqn.params
    operands = importer.read(eqn, scope, block)
    guarded = params["prevent_cse"]
    if isinstance(guarded, bool):
        guarded = (guarded,) * len(operands)
    if params["differentiated"] and any(guarded):
        behind = [v for v, g in zip(operands, guarded, strict=True) if g]
        barrier = _barrier(importer, behind, eqn, block)
        fresh = iter(barrier.results)
        operands = [next(fresh) if g else v for v, g in zip(operands, guarded)]
    results, inner = importer.body(params["jaxpr"], operands, block)
    scope.children[index] = [inner]
    _bind(eqn, scope, results)


def _barrier(importer: Importer, values: Sequence[Value], eqn: JaxprEqn, block: Block) -> Op:
    op = Op("stablehlo.optimization_barrier", values, [v.type for v in values], location=eqn.source_info, primitive=eqn.primitive.name)
    return importer.append(op, block)


def optimization_barrier(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """One barrier for all operands."""
    _bind(eqn, scope, _barrier(importer, importer.read(eqn, scope, block), eqn, block).results)


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
    op = Op("stablehlo.case", (which,), types, {}, regions, rule_known=True, location=eqn.source_info, primitive="cond")
    block.append(op)
    scopes = []
    for region, branch in zip(regions, branches):
        results, inner = importer.body(branch, operands, region)
        region.append(Op("stablehlo.return", results, (), rule_known=True))
        scopes.append(inner)
    scope.children[index] = scopes
    _bind(eqn, scope, op.results)


def _kept_branches(
    importer: Importer, which: Value, branches: Sequence[Any], platforms: Sequence[Any], eqn: JaxprEqn, block: Block
) -> tuple[Value, list[Any]]:
    """Of branches per platform only the one lowered for stays, behind a case that renumbers the index."""
    kept = next(i for i, names in enumerate(platforms) if names is None or importer.platform in names)
    regions = [Block() for _ in branches]
    op = Op("stablehlo.case", (which,), (TensorType((), "int32"),), {}, regions, rule_known=True, location=eqn.source_info, primitive="cond")
    block.append(op)
    for region in regions:
        zero = Op("sdy.constant", (), (TensorType((), "int32"),), {"value": 0}, rule_known=True)
        region.append(zero)
        region.append(Op("stablehlo.return", zero.results, (), rule_known=True))
    return op.result, [branches[kept]]


def while_loop(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_while_lowering`: constants of predicate and body are carried; a batched predicate is reduced and masks the carry."""
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_jaxpr, body_jaxpr = params["cond_jaxpr"], params["body_jaxpr"]
    operands = importer.read(eqn, scope, block)
    types = [v.type for v in operands]
    cond_block, body_block = Block(types), Block(types)
    op = Op("stablehlo.while", operands, types, {}, (cond_block, body_block), rule_known=True, location=eqn.source_info, primitive="while")
    block.append(op)
    predicate_aval = cond_jaxpr.out_avals[0]

    x, z = cond_block.arguments[:n_cond], cond_block.arguments[n_cond + n_body :]
    (predicate,), cond_scope = importer.body(cond_jaxpr, [*x, *z], cond_block)
    if predicate_aval.shape:
        predicate = _any(importer, predicate, cond_block)
    cond_block.append(Op("stablehlo.return", (predicate,), (), rule_known=True))

    x, y, z = body_block.arguments[:n_cond], body_block.arguments[n_cond : n_cond + n_body], body_block.arguments[n_cond + n_body :]
    new, body_scope = importer.body(body_jaxpr, [*y, *z], body_block)
    scope.children[index] = [cond_scope, body_scope]
    if predicate_aval.shape:
        (predicate,), again = importer.body(cond_jaxpr, [*x, *z], body_block)
        scope.children[index].append(again)
        new = [_masked(importer, predicate, a, b, body_block) for a, b in zip(new, z, strict=True)]
    body_block.append(Op("stablehlo.return", [*x, *y, *new], (), rule_known=True))
    _bind(eqn, scope, op.results[n_cond + n_body :])


def _any(importer: Importer, predicate: Value, block: Block) -> Value:
    start = Op("sdy.constant", (), (TensorType((), "bool"),), {"value": False}, rule_known=True)
    block.append(start)
    axes = tuple(range(predicate.type.rank))
    op = Op("stablehlo.reduce", (predicate, start.result), (TensorType((), "bool"),), {"dimensions": axes, "body": "stablehlo.or"})
    return importer.append(op, block).result


def _masked(importer: Importer, predicate: Value, new: Value, old: Value, block: Block) -> Value:
    attributes = {"broadcast_dimensions": tuple(range(predicate.type.rank))}
    wide = importer.append(Op("stablehlo.broadcast_in_dim", (predicate,), (TensorType(new.type.shape, "bool"),), attributes), block).result
    return importer.append(Op("stablehlo.select", (wide, new, old), (new.type,)), block).result


def scan(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """The while loop that `_scan_impl` traces to; the scopes of the body are this equation's children."""
    traced = _tracing.scan_as_loop(eqn)
    results, loop = importer.body(traced, importer.read(eqn, scope, block), block)
    body = eqn.params["jaxpr"].jaxpr
    scope.children[index] = [s for s in _scopes(loop) if s.jaxpr is body] or [loop]
    _bind(eqn, scope, results)


def _scopes(scope: Scope) -> list[Scope]:
    found = [scope]
    for children in scope.children.values():
        for child in children:
            found.extend(_scopes(child))
    return found


def run_state(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """References become values first, as `_run_state_impl` does."""
    traced = _tracing.without_references(eqn)
    results, inner = importer.body(traced, importer.read(eqn, scope, block), block)
    scope.children[index] = [inner]
    _bind(eqn, scope, results)


def composite(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_composite_lowering`: an op whose decomposition is not looked into."""
    attributes = {"name": eqn.params["name"]}
    _opaque(importer, "stablehlo.composite", attributes, eqn, scope, block)


def _opaque(importer: Importer, name: str, attributes: dict[str, Any], eqn: JaxprEqn, scope: Scope, block: Block) -> Op:
    operands = importer.read(eqn, scope, block)
    types = [type_of_aval(v.aval) for v in eqn.outvars]
    op = Op(name, operands, types, attributes, location=eqn.source_info, primitive=eqn.primitive.name)
    importer.append(op, block)
    importer.report_unknown(op, eqn)
    _bind(eqn, scope, op.results)
    return op


def callback(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`emit_python_callback`: a custom call that nothing propagates through."""
    effect = eqn.primitive.name != "pure_callback"
    _opaque(importer, "stablehlo.custom_call", {"call_target_name": f"xla_ffi_python_{importer.platform}_callback", "has_side_effect": effect}, eqn, scope, block)


def custom_call(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """A kernel that JAX can only lower for the platform it runs on: a custom call named after it."""
    target = str(eqn.params.get("target_name") or eqn.primitive.name)
    _opaque(importer, "stablehlo.custom_call", {"call_target_name": target}, eqn, scope, block)


def custom_partitioning(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_custom_partitioning_lowering_rule`: a custom call with the rule that the user gave."""
    if importer.all_manual:
        inlined(importer, index, eqn, scope, block)
        return
    operands = importer.read(eqn, scope, block)
    types = [type_of_aval(v.aval) for v in eqn.outvars]
    rule = _tracing.custom_partitioning_rule(eqn, importer.meshes.main)
    attributes = {"call_target_name": "CustomSPMDPartitioning"}
    op = Op("stablehlo.custom_call", operands, types, attributes, location=eqn.source_info, primitive=eqn.primitive.name)
    if rule is not None:
        op.rule, op.rule_known = rule, True
    importer.append(op, block)
    if rule is None:
        importer.report("no-rule", eqn, "custom_partitioning without sharding_rule: shardings stop there; give it a sharding_rule.")
    _bind(eqn, scope, op.results)


def sharding_constraint(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_sharding_constraint_hlo_lowering`; unconstrained dimensions are open."""
    (value,) = importer.read(eqn, scope, block)
    sharding = eqn.params["sharding"]
    _bind(eqn, scope, [importer.constrained(value, eqn.invars[0].aval, sharding, block, eqn)])


def shard_alike(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """Two values of one sharding group: a custom call each, as JAX lowers it even with Shardy."""
    results = []
    for value in importer.read(eqn, scope, block):
        attributes = {"call_target_name": "Sharding", "has_side_effect": True}
        op = Op("stablehlo.custom_call", (value,), (value.type,), attributes, location=eqn.source_info, primitive="shard_alike")
        results.append(importer.append(op, block).result)
    _bind(eqn, scope, results)


def reshard(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_reshard_hlo_lowering`: a constraint where the mesh has explicit axes, else nothing."""
    (value,) = importer.read(eqn, scope, block)
    aval = eqn.outvars[0].aval
    if _tracing.has_explicit_axes(aval):
        value = importer.explicit(value, aval, block, eqn)
    _bind(eqn, scope, [value])


def device_put(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_tpu_gpu_device_put_lowering` and its CPU twin: a constraint where a sharding is given, else nothing."""
    results = []
    for value, var, device in zip(importer.read(eqn, scope, block), eqn.invars, eqn.params["devices"], strict=True):
        if hasattr(device, "spec") and hasattr(device, "mesh"):
            value = importer.constrained(value, var.aval, device, block, eqn)
        results.append(value)
    _bind(eqn, scope, results)


def platform_index(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """The number of the platform lowered for, a constant."""
    platforms = eqn.params["platforms"]
    which = next(i for i, names in enumerate(platforms) if names is None or importer.platform in names)
    op = Op("sdy.constant", (), (TensorType((), "int32"),), {"value": which}, rule_known=True, location=eqn.source_info, primitive="platform_index")
    block.append(op)
    _bind(eqn, scope, op.results)


def shard_map(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_shard_map_lowering_shardy`: a manual computation over the axes that become manual."""
    params = eqn.params
    mesh, jaxpr = params["mesh"], params["jaxpr"]
    operands = importer.read(eqn, scope, block)
    names = tuple(a for a in mesh.axis_names if a in params["newly_manual_axes"])
    outer = importer.manual
    importer.manual = _tracing.ManualContext(mesh, frozenset(names) | frozenset(mesh.manual_axes))
    try:
        if all(mesh.shape[a] == 1 for a in names):
            results, inner = importer.body(jaxpr, operands, block)
        else:
            results, inner = _manual_computation(importer, names, outer, operands, eqn, block)
    finally:
        importer.manual = outer
    scope.children[index] = [inner]
    _bind(eqn, scope, results)


def _manual_computation(
    importer: Importer, names: tuple[str, ...], outer: Any, operands: Sequence[Value], eqn: JaxprEqn, block: Block
) -> tuple[list[Value], Scope]:
    params = eqn.params
    mesh, jaxpr = params["mesh"], params["jaxpr"]
    partial = len(names) < len(mesh.axis_names)

    def shardings(variables: Sequence[Any], specs: Sequence[Any]) -> tuple[Any, ...]:
        found = []
        for v, spec in zip(variables, specs, strict=True):
            sharding = _tracing.manual_sharding(mesh, spec, outer, v.aval)
            found.append(importer.meshes.sharding(sharding, len(physical_shape(v.aval)), open_dimensions=partial))
        return tuple(found)

    body = Block([type_of_aval(v.aval) for v in jaxpr.invars])
    attributes = {
        "in_shardings": shardings(eqn.invars, params["in_specs"]),
        "out_shardings": shardings(eqn.outvars, params["out_specs"]),
        "manual_axes": names,
    }
    types = [type_of_aval(v.aval) for v in eqn.outvars]
    op = Op("sdy.manual_computation", operands, types, attributes, (body,), rule_known=True, location=eqn.source_info, primitive="shard_map")
    block.append(op)
    results, inner = importer.body(jaxpr if isinstance(jaxpr, Jaxpr) else jaxpr.jaxpr, body.arguments, body)
    body.append(Op("sdy.return", results, (), rule_known=True))
    return op.results, inner


REGIONS: dict[str, RegionReader] = {
    "call": core_call,
    "closed_call": core_call,
    "composite": composite,
    "compute_on": compute_on,
    "cond": cond,
    "custom_jvp_call": inlined,
    "custom_linear_solve": linear_solve,
    "custom_partitioning": custom_partitioning,
    "custom_vjp_call": inlined,
    "custom_vmap_call": inlined,
    "debug_callback": callback,
    "debug_print": callback,
    "device_put": device_put,
    "ffi_call": custom_call,
    "io_callback": callback,
    "jit": jit,
    "linear_call": inlined,
    "optimization_barrier": optimization_barrier,
    "pallas_call": custom_call,
    "platform_index": platform_index,
    "pure_callback": callback,
    "remat2": remat,
    "remat_opt": inlined,
    "reshard": reshard,
    "run_state": run_state,
    "scan": scan,
    "shard_alike": shard_alike,
    "shard_map": shard_map,
    "sharding_constraint": sharding_constraint,
    "while": while_loop,
    "xla_metadata_call": inlined,
}
