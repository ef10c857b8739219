"""Facts about equations: of those of one program, and of those of programs before it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardy_py.backends.local.jaxpr_analysis import JaxprAnalysis
from shardy_py.backends.local.table import LOCAL_RULES
from shardy_py.dialect import Mesh

MESH = Mesh((("x", 2), ("y", 4)))


def known_of(f: Any, *args: Any, mesh: Mesh = MESH) -> list[Any]:
    """The facts about each equation: the same object where they are the same."""
    analysis = JaxprAnalysis(LOCAL_RULES, {}, mesh)
    equations = [analysis.equation(eqn) for eqn in jax.make_jaxpr(f)(*args).jaxpr.eqns]
    for equation in equations:
        analysis.local_rule(equation)
    return [equation.cache for equation in equations]


def test_a_program_that_is_read_again_finds_what_is_known() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) @ x

    x = jnp.ones((37, 37))
    first, again = known_of(f, x), known_of(lambda x: f(x), x)
    assert all(a is b and a["local_rule"] is not None for a, b in zip(first, again, strict=True))


def test_another_mesh_or_configuration_is_another_matter() -> None:
    """Ways to run an equation are remembered with its form, and depend on the mesh."""
    x = jnp.ones((41, 41))
    (first,) = known_of(jnp.sin, x)
    (other,) = known_of(jnp.sin, x, mesh=Mesh((("x", 8),)))
    assert first is not other
    with jax.default_matmul_precision("highest"):
        (other,) = known_of(jnp.sin, x)
    assert first is not other


class Table:
    """Something large."""


def reduced() -> tuple[Any, weakref.ref[Table]]:
    table = Table()

    def combined(a: jax.Array, b: jax.Array) -> jax.Array:
        return a + b * (2 + len(vars(table)))

    def f(x: jax.Array) -> jax.Array:
        return lax.reduce(x, np.float32(0), combined, (0,))

    return f, weakref.ref(table)


def test_what_equations_hold_is_not_kept(only_new_garbage: None) -> None:
    """A function among the parameters may hold arrays."""
    f, value = reduced()
    (known,) = known_of(f, jnp.ones(5))
    assert known["local_rule"] is not None
    del f, known
    jax.clear_caches()
    gc.collect()
    assert value() is None
