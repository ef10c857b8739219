"""Lowers the equations of a region: those that are one StableHLO op as that op, the others as JAX does.

JAX looks an equation up among those lowered before, makes a context for the rule of its primitive, and calls a copy of what the rule
built. Of an equation that is a single op, three quarters of the time go into that.
"""

from __future__ import annotations

from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, new_jaxpr_eqn
from jax.interpreters import mlir

from shardy_py.backends.collective_ops import COLLECTIVES
from shardy_py.backends.scan_ops import scan
from shardy_py.backends.single_ops import RULES, Value, Writer
from shardy_py.frontends.context import Locations, is_plain

BODIES = {"jit": ("jaxpr",), "scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",), "shard_map": ("jaxpr",)}
"""Primitives the bodies of which are lowered in this way as well -> the parameters that hold them."""

equations_p = Primitive("equations")
"""All equations of a jaxpr, `jaxpr`, on its arguments; it is met in lowering only."""
equations_p.multiple_results = True
equations_p.def_effectful_abstract_eval(lambda *_, jaxpr: ([v.aval for v in jaxpr.outvars], jaxpr.effects))


def as_equations(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr the regions of which, manual in all axes of their mesh, are lowered by this file, with the bodies of loops in them.

    Args:
        jaxpr: What is to be lowered next.
    """
    if not any(map(_is_region, jaxpr.eqns)):
        return jaxpr
    known: dict[int, Any] = {}
    return jaxpr.replace(eqns=[_with_bodies(eqn, known) if _is_region(eqn) else eqn for eqn in jaxpr.eqns])


def _is_region(eqn: JaxprEqn) -> bool:
    """Elsewhere values have shardings, which JAX writes down beside ops."""
    if eqn.primitive.name != "shard_map":
        return False
    mesh = eqn.params["mesh"]
    return frozenset(mesh.axis_names) <= {*mesh.manual_axes, *eqn.params["newly_manual_axes"]}


def _with_bodies(eqn: JaxprEqn, known: dict[int, Any]) -> JaxprEqn:
    names = BODIES.get(eqn.primitive.name, ())
    return eqn.replace(params={**eqn.params, **{name: _wrapped(eqn.params[name], known) for name in names}}) if names else eqn


def _wrapped(body: Any, known: dict[int, Any]) -> Any:
    """A body that is one equation, the same where it is met again; one of no equations, or with constants of its own, stays as it is."""
    if isinstance(body, tuple):
        return tuple([_wrapped(each, known) for each in body])
    if id(body) not in known:
        known[id(body)] = _one_equation(body, known)
    return known[id(body)]


def _one_equation(body: Any, known: dict[int, Any]) -> Any:
    jaxpr: Any = body.jaxpr if isinstance(body, ClosedJaxpr) else body
    if jaxpr is not body:  # later versions of JAX have one class for both
        return body if body.consts else ClosedJaxpr(_wrapped(jaxpr, known), [])
    if jaxpr.constvars or not jaxpr.eqns:
        return jaxpr
    wanted = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    made = [v for eqn in jaxpr.eqns for v in eqn.outvars if v in wanted]
    info = jaxpr.debug_info.with_unknown_names()
    inner = jaxpr.replace(eqns=[_with_bodies(eqn, known) for eqn in jaxpr.eqns], outvars=made, debug_info=info)
    return jaxpr.replace(eqns=[new_jaxpr_eqn(list(jaxpr.invars), made, equations_p, {"jaxpr": inner}, jaxpr.effects)])


def _lower(context: mlir.LoweringRuleContext, *arguments: Value, jaxpr: Jaxpr) -> list[Value]:
    writer, module = Writer(context), context.module_context
    env: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
    tokens, locations = context.tokens_in, Locations(module, context.name_stack)
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        rule = COLLECTIVES.get(name) or (None if eqn.effects else RULES.get(name))
        if rule is not None and is_plain(eqn):
            operands = [writer.literal(v) if isinstance(v, Literal) else env[v] for v in eqn.invars]
            made = rule(writer, eqn, operands, locations(eqn))
            if made is not None:
                env[eqn.outvars[0]] = made
                continue
        if name == "scan":
            results = scan(writer, eqn, [writer.literal(v) if isinstance(v, Literal) else env[v] for v in eqn.invars], locations)
            if results is not None:
                env.update(zip(eqn.outvars, results, strict=True))
                continue
        reads = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
        alone = jaxpr.replace(eqns=[eqn], invars=reads, outvars=eqn.outvars)
        results, tokens = mlir.jaxpr_subcomp(
            module,
            alone,
            context.name_stack,
            tokens,
            (),
            *(env[v] for v in reads),
            dim_var_values=context.dim_var_values,
            const_lowering=context.const_lowering,
            outer_traceback=context.traceback,
        )
        env.update(zip(eqn.outvars, results, strict=True))
    context.set_tokens_out(tokens)
    return [env[v] for v in jaxpr.outvars]


mlir.register_lowering(equations_p, _lower, cacheable=False)
