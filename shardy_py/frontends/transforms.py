"""Transformations of jaxprs: what `jax.jvp`, `jax.linearize`, `jax.linear_transpose` and `jax.vmap` do to a function, done to a jaxpr.

They are what the rules of JAX's own call primitives are made of. Equal arguments give the same object while it lives, so what is cached
by a jaxpr is found again. New equations are of no mesh, whatever `jax.set_mesh` says where the transformation happens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import jax
from jax.experimental import jet
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import ad, partial_eval

from shardy_py.frontends import _jax
from shardy_py.frontends._jax import abstract_argument as abstract_argument
from shardy_py.frontends._jax import axes_bound as axes_bound
from shardy_py.frontends._jax import backward_pass, checked_call, close_over_nothing, trace_context
from shardy_py.frontends._jax import checkpoint_rule as checkpoint_rule
from shardy_py.frontends._jax import register_checks as register_checks
from shardy_py.frontends._jax import shard_map_equation as shard_map_equation
from shardy_py.frontends._jax import traced_locally as traced_locally
from shardy_py.frontends.jaxpr_cache import with_jaxpr
from shardy_py.frontends.jaxprs import equations
from shardy_py.frontends.mesh_context import no_mesh

P = ParamSpec("P")
R = TypeVar("R")


def _of_no_mesh(transformation: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(transformation)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with no_mesh():
            return transformation(*args, **kwargs)

    return call


jvp_jaxpr = _of_no_mesh(_jax.jvp_jaxpr)
split_jaxpr = _of_no_mesh(_jax.split_jaxpr)
batch_jaxpr = _of_no_mesh(_jax.batch_jaxpr)


def hoisted(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr with its constants as leading inputs; unchanged if it has none."""
    if not jaxpr.consts:
        return jaxpr
    if jaxpr not in _HOISTED:
        _HOISTED[jaxpr] = close_over_nothing(jaxpr)
    return _HOISTED[jaxpr]


_HOISTED: WeakKeyDictionary[ClosedJaxpr, ClosedJaxpr] = WeakKeyDictionary()


@_of_no_mesh
def transpose_jaxpr(jaxpr: ClosedJaxpr, linear: Sequence[bool], nonzero: Sequence[bool]) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """The transpose of a jaxpr in its linear inputs, as `jax.linear_transpose`.

    Returns:
        A jaxpr from the other inputs and the nonzero cotangents to the cotangents of linear inputs, and which of those are not zero: only
        they are results.
    """
    return _transposed(jaxpr, tuple(linear), tuple(nonzero), trace_context())


@with_jaxpr
def _transposed(
    jaxpr: ClosedJaxpr, linear: tuple[bool, ...], nonzero: tuple[bool, ...], context: Hashable
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    nonzero_results: list[tuple[bool, ...]] = []
    # Without what has no cotangent: loops are not transposed where a result of theirs is dropped, nor in JAX where one has none.
    used, _ = partial_eval.dce_jaxpr(jaxpr.jaxpr, nonzero, instantiate=True)
    needed = ClosedJaxpr(used, jaxpr.consts)

    def transposed(rest: list[Any], cotangents: list[Any]) -> list[Any]:
        primal = iter(rest)
        inputs = [ad.UndefinedPrimal(aval) if is_linear else next(primal) for aval, is_linear in zip(jaxpr.in_avals, linear)]
        results = backward_pass(needed, inputs, cotangents)
        results = [result for result, is_linear in zip(results, linear) if is_linear]
        nonzero_results.append(tuple(type(result) is not ad.Zero for result in results))
        return [result for result in results if type(result) is not ad.Zero]

    rest = [abstract_argument(aval) for aval, is_linear in zip(jaxpr.in_avals, linear) if not is_linear]
    cotangents = [abstract_argument(aval.to_ct_aval()) for aval, nz in zip(jaxpr.out_avals, nonzero) if nz]
    return jax.make_jaxpr(transposed)(rest, cotangents), nonzero_results[-1]


@_of_no_mesh
def checked_jaxpr(
    jaxpr: ClosedJaxpr, context: tuple[Any, ...], error: Any, enabled: Any, args: Sequence[Any]
) -> tuple[ClosedJaxpr, list[Any], Any]:
    """A jaxpr with checks, as `jax.experimental.checkify.checkify`.

    Returns:
        A jaxpr from the leaves of an error and the arguments to the leaves of an error and the results, the leaves of the error so far, and
        the structure of error and results.
    """
    leaves, tree = jax.tree.flatten(error)
    (call,) = jax.make_jaxpr(jax.jit(jaxpr_as_fun(jaxpr)))(*map(abstract_argument, jaxpr.in_avals)).jaxpr.eqns

    def run(leaves: Sequence[Any], args: Sequence[Any]) -> Any:
        return checked_call(context, tree.unflatten(leaves), enabled, args, call.params)

    traced, shape = jax.make_jaxpr(run, return_shape=True)(leaves, list(args))
    return traced, leaves, jax.tree.structure(shape)


@_of_no_mesh
def jet_jaxpr(jaxpr: ClosedJaxpr, primals: Sequence[Any], series: Sequence[Sequence[Any]]) -> tuple[ClosedJaxpr, Any]:
    """A jaxpr on truncated Taylor polynomials, and the structure of its results, as `jax.experimental.jet.jet(factorial_scaled=False)`."""

    def run(primals: Sequence[Any], series: Sequence[Sequence[Any]]) -> Any:
        return jet.jet(jaxpr_as_fun(jaxpr), primals, series, factorial_scaled=False)

    traced, shape = jax.make_jaxpr(run, return_shape=True)(tuple(primals), tuple(map(list, series)))
    return traced, jax.tree.structure(shape)


@with_jaxpr
def used_part(jaxpr: ClosedJaxpr, used: tuple[bool, ...]) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """The part of a jaxpr that some of its results need, with the inputs it reads; the jaxpr itself where that is nearly all of it.

    Leaving a few equations out is not worth another jaxpr: XLA removes dead code anyway, and every jaxpr has a plan of its own.
    """
    part, inputs = partial_eval.dce_jaxpr(jaxpr.jaxpr, used)
    kept, whole = (sum(1 for _ in equations(each)) for each in (part, jaxpr.jaxpr))
    if all(inputs) and part.effects == jaxpr.effects and whole - kept <= NEGLIGIBLE * whole:
        return jaxpr, tuple(inputs)
    return ClosedJaxpr(part, ()), tuple(inputs)


NEGLIGIBLE = 0.01
"""The share of the equations of a jaxpr below which it is not taken apart."""


def with_inputs(jaxpr: ClosedJaxpr, kept: Sequence[bool]) -> ClosedJaxpr:
    """A jaxpr of the constants and inputs that are kept; results may not need the others."""
    whole = hoisted(jaxpr)
    if all(kept):
        return whole
    part, _ = partial_eval.dce_jaxpr(whole.jaxpr, (True,) * len(whole.out_avals))
    invars = [v for v, keep in zip(whole.jaxpr.invars, kept, strict=True) if keep]
    return ClosedJaxpr(part.replace(invars=invars, debug_info=part.debug_info.with_unknown_names()), ())
