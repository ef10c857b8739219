"""Derives the program of a microbatch of one example.

Traced on one example a function is another program, for JAX broadcasts a dimension of size 1 otherwise. So it is traced on two examples
and on three, and every size in it that differs is continued to one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from shardy_py.pipelines.errors import PipelineError, place
from shardy_py.pipelines.flatten import FlatEquation, FlatStep
from shardy_py.pipelines.jaxprs import shape_of


def on_one_example(two: FlatStep, three: FlatStep) -> FlatStep:
    """The flat program on one example; raises PipelineError if that on three differs in more than sizes."""
    env = _Continued()
    invars = env.variables(two.invars, three.invars)
    consts = dict(
        zip(env.variables(list(two.consts), list(three.consts)), (env.constant(a, b) for a, b in _pairs(two.consts, three.consts)))
    )
    if len(two.nodes) != len(three.nodes):
        raise _not_alike("its end")
    nodes = [FlatEquation(env.equation(a.eqn, b.eqn), a.backward, a.marker) for a, b in zip(two.nodes, three.nodes)]
    outvars = [env.atom(a, b) for a, b in zip(two.outvars, three.outvars)]
    return FlatStep(tuple(invars), tuple(outvars), tuple(nodes), consts)


def _pairs(a: dict[Var, Any], b: dict[Var, Any]) -> list[tuple[Any, Any]]:
    return list(zip(a.values(), b.values()))


def _not_alike(where: str) -> PipelineError:
    return PipelineError(
        "the function is another one on two examples than on three", where=where, why="it reads the size of its batch",
        fix="do not branch or loop on the number of examples, or use fewer microbatches",
    )  # fmt: skip


class _Continued:
    def __init__(self) -> None:
        self.one: dict[Var, Var] = {}

    def variables(self, two: Sequence[Var], three: Sequence[Var]) -> list[Var]:
        variables = []
        for a, b in zip(two, three):
            shape = tuple(_size(m, n) for m, n in zip(shape_of(a), shape_of(b)))
            self.one[a] = Var(a.aval if shape == shape_of(a) else a.aval.update(shape=shape))  # pyright: ignore[reportAttributeAccessIssue]
            variables.append(self.one[a])
        return variables

    def atom(self, a: Any, b: Any) -> Any:
        if not isinstance(a, Literal):
            return self.one[a]
        if np.array_equal(np.asarray(a.val), np.asarray(b.val), equal_nan=np.issubdtype(np.asarray(a.val).dtype, np.inexact)):
            return a
        value = 2 * np.asarray(a.val) - np.asarray(b.val)
        return Literal(value.astype(np.asarray(a.val).dtype)[()], a.aval)

    def constant(self, a: Any, b: Any) -> Any:
        """A captured array that has a row per example keeps its first."""
        if np.shape(a) == np.shape(b):
            return a
        (axis,) = (d for d, (m, n) in enumerate(zip(np.shape(a), np.shape(b))) if m != n)
        return jax.lax.slice_in_dim(jax.numpy.asarray(a), 0, _size(np.shape(a)[axis], np.shape(b)[axis]), axis=axis)

    def equation(self, a: Any, b: Any) -> Any:
        if a.primitive is not b.primitive or len(a.outvars) != len(b.outvars):
            raise _not_alike(place(a))
        params = {name: self.parameter(value, b.params[name], functools.partial(place, a)) for name, value in a.params.items()}
        invars = [self.atom(v, w) for v, w in zip(a.invars, b.invars)]
        return a.replace(invars=invars, outvars=self.variables(a.outvars, b.outvars), params=params)

    def parameter(self, a: Any, b: Any, where: Any) -> Any:
        """A parameter on one example: sizes continued, all else as it is."""
        if isinstance(a, ClosedJaxpr):
            return ClosedJaxpr(self.inner(a.jaxpr, b.jaxpr, where), [self.constant(m, n) for m, n in zip(a.consts, b.consts)])
        if isinstance(a, Jaxpr):
            return self.inner(a, b, where)
        if isinstance(a, int | np.integer) and not isinstance(a, bool) and isinstance(b, int | np.integer):
            return _size(int(a), int(b)) if a != b else a
        if type(a) is tuple and type(b) is tuple and len(a) == len(b):
            return tuple(self.parameter(m, n, where) for m, n in zip(a, b))
        if callable(a) or a is b or a == b:
            return a
        raise _not_alike(where())

    def inner(self, a: Jaxpr, b: Jaxpr, where: Any) -> Jaxpr:
        if len(a.eqns) != len(b.eqns):
            raise _not_alike(where())
        body = _Continued()
        constvars = body.variables(a.constvars, b.constvars)
        invars = body.variables(a.invars, b.invars)
        eqns = [body.equation(m, n) for m, n in zip(a.eqns, b.eqns)]
        return a.replace(constvars=constvars, invars=invars, eqns=eqns, outvars=[body.atom(m, n) for m, n in zip(a.outvars, b.outvars)])


def _size(two: int, three: int) -> int:
    return 2 * two - three
