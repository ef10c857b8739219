"""Transformations of jaxprs: what `jax.jvp`, `jax.linearize`, `jax.linear_transpose` and `jax.vmap` do to a function, done to a jaxpr.

They are what the rules of JAX's own call primitives are made of. Equal arguments give the same object while it lives, so what is cached
by a jaxpr is found again.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jax
from jax.extend.core import ClosedJaxpr
from jax.interpreters import ad, partial_eval
from jax.sharding import AbstractMesh

from shardy_py.frontends._jax import abstract_argument, backward_pass, close_over_nothing, trace_context
from shardy_py.frontends._jax import batch_jaxpr as batch_jaxpr
from shardy_py.frontends._jax import checkpoint_rule as checkpoint_rule
from shardy_py.frontends._jax import jvp_jaxpr as jvp_jaxpr
from shardy_py.frontends._jax import split_jaxpr as split_jaxpr


def hoisted(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr with its constants as first inputs; itself where it has none."""
    if not jaxpr.consts:
        return jaxpr
    if jaxpr not in _HOISTED:
        _HOISTED[jaxpr] = close_over_nothing(jaxpr)
    return _HOISTED[jaxpr]


_HOISTED: WeakKeyDictionary[ClosedJaxpr, ClosedJaxpr] = WeakKeyDictionary()


def transpose_jaxpr(jaxpr: ClosedJaxpr, linear: Sequence[bool], nonzero: Sequence[bool]) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """The transpose of a jaxpr in its linear inputs, as `jax.linear_transpose`.

    Args:
        jaxpr: What to transpose.
        linear: Which inputs it is linear in.
        nonzero: Which results have a cotangent that is not zero.

    Returns:
        A jaxpr from the other inputs and the nonzero cotangents to the cotangents of linear inputs, and which of those are not zero: only
        they are results.
    """
    return _transposed(jaxpr, tuple(linear), tuple(nonzero), trace_context())


@functools.lru_cache(maxsize=1024)
def _transposed(
    jaxpr: ClosedJaxpr, linear: tuple[bool, ...], nonzero: tuple[bool, ...], context: Hashable
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    made: list[tuple[bool, ...]] = []

    def transposed(rest: list[Any], cotangents: list[Any]) -> list[Any]:
        given, known = iter(cotangents), iter(rest)
        seeds = [next(given) if nz else ad.Zero(aval.to_ct_aval()) for aval, nz in zip(jaxpr.out_avals, nonzero)]
        inputs = [ad.UndefinedPrimal(aval) if is_linear else next(known) for aval, is_linear in zip(jaxpr.in_avals, linear)]
        results = backward_pass(jaxpr, inputs, seeds)
        results = [result for result, is_linear in zip(results, linear) if is_linear]
        made.append(tuple(type(result) is not ad.Zero for result in results))
        return [result for result in results if type(result) is not ad.Zero]

    rest = [abstract_argument(aval) for aval, is_linear in zip(jaxpr.in_avals, linear) if not is_linear]
    cotangents = [abstract_argument(aval.to_ct_aval()) for aval, nz in zip(jaxpr.out_avals, nonzero) if nz]
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        return jax.make_jaxpr(transposed)(rest, cotangents), made[-1]


@functools.lru_cache(maxsize=1024)
def used_part(jaxpr: ClosedJaxpr, used: tuple[bool, ...]) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """The part of a jaxpr that some of its results need, and which inputs that part has; the jaxpr itself where that is all of it.

    Args:
        jaxpr: Without constants.
        used: Which results.
    """
    part, inputs = partial_eval.dce_jaxpr(jaxpr.jaxpr, used)
    if all(used) and all(inputs) and len(part.eqns) == len(jaxpr.eqns):
        return jaxpr, tuple(inputs)
    return ClosedJaxpr(part, ()), tuple(inputs)
