"""Lowers the equations of a region: those that are one StableHLO op as that op, the others as JAX does.

JAX looks an equation up among those lowered before, makes a context for the rule of its primitive, and calls a copy of what the rule
built. Of an equation that is a single op, three quarters of the time go into that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var, jaxprs_in_params, new_jaxpr_eqn
from jax.extend.core.primitives import closed_call_p
from jax.interpreters import mlir

from shardy_py.backends.collective_ops import COLLECTIVES
from shardy_py.backends.inlining import without_calls
from shardy_py.backends.scan_ops import scan
from shardy_py.backends.single_ops import RULES, Value, Writer
from shardy_py.frontends.context import Locations, is_bare, is_lowered_in_place, is_plain
from shardy_py.frontends.expansions import expansion_of
from shardy_py.frontends.transforms import hoisted

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
    """A body that is one equation, the same where it is met again; one of no equations stays as it is."""
    if isinstance(body, tuple):
        return tuple([_wrapped(each, known) for each in body])
    if id(body) not in known:
        known[id(body)] = _one_equation(body, known)
    return known[id(body)]


def _one_equation(body: Any, known: dict[int, Any]) -> Any:
    jaxpr: Any = body.jaxpr if isinstance(body, ClosedJaxpr) else body
    if jaxpr is not body:
        return ClosedJaxpr(_wrapped(jaxpr, known), body.consts)
    if not jaxpr.eqns or getattr(jaxpr, "consts", ()):  # later versions of JAX have one class for both
        return jaxpr
    wanted = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    made = [v for eqn in jaxpr.eqns for v in eqn.outvars if v in wanted]
    arguments, info = [*jaxpr.constvars, *jaxpr.invars], jaxpr.debug_info.with_unknown_names()
    eqns = [_with_bodies(eqn, known) for eqn in jaxpr.eqns]
    inner = jaxpr.replace(eqns=eqns, constvars=[], invars=arguments, outvars=made, debug_info=info)
    return jaxpr.replace(eqns=[new_jaxpr_eqn(arguments, made, equations_p, {"jaxpr": inner}, jaxpr.effects)])


def _lower(context: mlir.LoweringRuleContext, *arguments: Value, jaxpr: Jaxpr) -> list[Value]:
    tokens = _Tokens(context.tokens_in)
    results = _block(Writer(context), jaxpr, arguments, context.name_stack, context.traceback, tokens)
    context.set_tokens_out(tokens.last)
    return results


mlir.register_lowering(equations_p, _lower, cacheable=False)


@dataclass
class _Tokens:
    """What orders effects.

    Attributes:
        last: Those after the last equation.
    """

    last: Any


def _block(writer: Writer, jaxpr: Jaxpr, arguments: Sequence[Value], stack: Any, traceback: Any, tokens: _Tokens) -> list[Value]:
    """The results of the equations of a jaxpr.

    Args:
        writer: Of the block that they are written into.
        jaxpr: The jaxpr, whose bodies are prepared.
        arguments: Its arguments.
        stack: The names around it.
        traceback: Where it stands.
        tokens: Those of effects.
    """
    context = writer.context
    locations = Locations(context.module_context, stack, traceback)
    env: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))

    def read(v: Any) -> Value:
        return writer.literal(v) if isinstance(v, Literal) else env[v]

    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        rule = COLLECTIVES.get(name) or (None if eqn.effects else RULES.get(name))
        if rule is not None and is_plain(eqn):
            made = rule(writer, eqn, [read(v) for v in eqn.invars], locations(eqn))
            if made is not None:
                env[eqn.outvars[0]] = made
                continue
        results: Sequence[Value] | None = None
        if name == "scan":
            results = scan(writer, eqn, [read(v) for v in eqn.invars], locations)
        elif name not in BODIES:
            function = _function(eqn, context.module_context.platforms)
            if function is not None:
                consts = [writer.constant(c, v.aval) for c, v in zip(function.consts, function.written.invars)]
                operands, place = [*consts, *(read(v) for v in eqn.invars)], (locations.stack(eqn), locations.traceback(eqn))
                if function.length <= SHORT or is_lowered_in_place(eqn.primitive):
                    results = _block(writer, function.written, operands, *place, tokens)
                else:
                    results = _alone(writer, function.called, operands, *place, tokens)
        if results is None:
            reads = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
            alone = jaxpr.replace(eqns=[eqn], invars=reads, outvars=eqn.outvars)
            results = _alone(writer, alone, [env[v] for v in reads], stack, traceback, tokens)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _alone(writer: Writer, jaxpr: Jaxpr, arguments: Sequence[Value], stack: Any, traceback: Any, tokens: _Tokens) -> Sequence[Value]:
    """The results of a jaxpr of one equation, which JAX lowers. Arguments are those of `_block`."""
    context = writer.context
    results, tokens.last = mlir.jaxpr_subcomp(
        context.module_context,
        jaxpr,
        stack,
        tokens.last,
        (),
        *arguments,
        dim_var_values=context.dim_var_values,
        const_lowering=context.const_lowering,
        outer_traceback=traceback,
    )
    return results


SHORT = 16
"""Equations of a function that is written out although others alike could call it."""


class _Function(NamedTuple):
    """What JAX traces to lower equations that are alike.

    Attributes:
        consts: Its constants, which are arguments in front of its own in both of these, for JAX shares no function that has any.
        written: Its equations.
        called: A call of it.
        length: How many equations it has.
    """

    consts: Sequence[Any]
    written: Jaxpr
    called: Jaxpr
    length: int


def _function(eqn: JaxprEqn, platforms: Sequence[str]) -> _Function | None:
    """The function by which JAX lowers an equation; None where its rule is not to trace one."""
    if eqn.effects or len(platforms) != 1 or not is_bare(eqn) or any(True for _ in jaxprs_in_params(eqn.params)):
        return None
    found = expansion_of(eqn, platforms[0])
    if found is None:
        return None
    made = _FUNCTIONS.get(found.jaxpr)
    if made is None:
        whole, known = _in_bodies(without_calls(found.jaxpr)), dict[int, Any]()
        closed = hoisted(whole)
        jaxpr = closed.jaxpr
        written = jaxpr.replace(eqns=[_with_bodies(each, known) for each in jaxpr.eqns])
        invars, outvars = (list(map(Var, avals)) for avals in (closed.in_avals, closed.out_avals))
        call = new_jaxpr_eqn(invars, outvars, closed_call_p, {"call_jaxpr": _wrapped(closed, known)}, jaxpr.effects)
        called = jaxpr.replace(eqns=[call], invars=invars, outvars=outvars, debug_info=jaxpr.debug_info.with_unknown_names())
        made = _FUNCTIONS[found.jaxpr] = _Function(whole.consts, written, called, _count(jaxpr))
    return made


_FUNCTIONS: WeakKeyDictionary[ClosedJaxpr, _Function] = WeakKeyDictionary()


def _count(jaxpr: Jaxpr) -> int:
    """How many equations there are, bodies included."""
    return sum(1 + sum(map(_count, jaxprs_in_params(eqn.params))) for eqn in jaxpr.eqns)


def _placeless(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr whose equations do not say where they stand: what is traced once stands for equations in several places."""

    def bare(eqn: JaxprEqn) -> JaxprEqn:
        bodies = {name: _in_bodies(eqn.params[name]) for name in BODIES.get(eqn.primitive.name, ())}
        return eqn.replace(source_info=eqn.source_info.replace(traceback=None), params={**eqn.params, **bodies})

    return jaxpr.replace(eqns=list(map(bare, jaxpr.eqns)))


def _in_bodies(body: Any) -> Any:
    if isinstance(body, tuple):
        return tuple(map(_in_bodies, body))
    jaxpr: Any = body.jaxpr if isinstance(body, ClosedJaxpr) else body
    return _placeless(jaxpr) if jaxpr is body else ClosedJaxpr(_placeless(jaxpr), body.consts)
