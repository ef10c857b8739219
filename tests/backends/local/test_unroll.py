"""Scans that are written out as JAX's lowering writes them out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from shardy_py.backends.local.unroll import unroll_scans

W = np.arange(3, dtype=np.float32)


def a_sum(c, y):
    return (c[0] * 0.5 + y * W, c[1] + 1), (c[0], y.sum())


def nothing_stacked(c, y):
    return (c[0] + y, 3), None


def a_carry_that_becomes_a_literal(c, y):
    return (c[0] + 2 * y, 3), (c[1], 1.0)


def an_idle_carry(c, y):
    return (c[0], c[1] + 1), y * 2


BODIES = [a_sum, nothing_stacked, a_carry_that_becomes_a_literal, an_idle_carry]


def scans(closed: ClosedJaxpr) -> list[tuple[int, int]]:
    return [(eqn.params["length"], eqn.params["unroll"]) for eqn in closed.jaxpr.eqns if eqn.primitive.name == "scan"]


def written_out(body, length: int, unroll: int, reverse: bool) -> tuple[ClosedJaxpr, list, list]:
    x = np.random.default_rng(length).normal(size=(length, 3)).astype(np.float32)
    first = (jnp.ones(3), 2)

    def fun(c, x):
        return lax.scan(body, c, x, unroll=unroll, reverse=reverse)

    closed = jax.make_jaxpr(fun)(first, x)
    made = ClosedJaxpr(unroll_scans(closed.jaxpr, {}), closed.consts)
    return made, jaxpr_as_fun(made)(*jax.tree.leaves((first, x))), jax.tree.leaves(fun(first, x))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    ("length", "unroll", "left"),
    [(6, 2, [(3, 1)]), (7, 3, [(2, 1)]), (5, 4, [(1, 1)]), (5, 5, []), (5, 9, []), (1, 1, []), (6, 1, [(6, 1)])],
)
def test_as_many_copies_as_are_asked_for(body, length: int, unroll: int, left: list, reverse: bool) -> None:
    made, ours, theirs = written_out(body, length, unroll, reverse)
    assert scans(made) == left
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_names_are_those_of_the_body() -> None:
    def body(c, y):
        with jax.named_scope("inner"):
            return c + y, c * y

    @jax.named_scope("outer")
    def fun(c, x):
        return lax.scan(body, c, x, unroll=2)

    closed = jax.make_jaxpr(fun)(1.0, np.ones(5, np.float32))
    made = unroll_scans(closed.jaxpr, {})
    (loop,) = [eqn for eqn in made.eqns if eqn.primitive.name == "scan"]
    inside = {str(eqn.source_info.name_stack) for eqn in loop.params["jaxpr"].jaxpr.eqns if eqn.primitive.name == "mul"}
    outside = {str(eqn.source_info.name_stack) for eqn in made.eqns if eqn.primitive.name == "mul"}
    assert (inside, outside) == ({"inner"}, {"outer/inner"})
