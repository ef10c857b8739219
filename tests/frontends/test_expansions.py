"""Functions by which JAX lowers primitives, traced once for many equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core import JaxprEqn
from jax.extend.random import threefry2x32_p

from shardy_py.frontends import _jax
from shardy_py.frontends.expansions import expansion_of, with_shape

SHAPES: list[list[tuple[int, ...]]] = [
    [(2, 3)] * 4,
    [(1,)] * 4,
    [(4,)] * 4,
    [(7,)] * 4,
    [()] * 4,
    [(), (), (5, 2), (5, 2)],
    [(3,), (3,), (), ()],
    [(2, 1), (2, 1), (2, 3), (2, 3)],
]


def only_equation(f: Callable[..., Any], *args: Any) -> JaxprEqn:
    (eqn,) = jax.make_jaxpr(f)(*args).jaxpr.eqns
    return eqn


@pytest.mark.parametrize("mesh", [None, (2, 4)])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_a_hash_is_that_of_another_shape(shapes: list[tuple[int, ...]], mesh: tuple[int, int] | None) -> None:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.uint32) for shape in shapes]
    around = jax.sharding.AbstractMesh(mesh or (), ("x", "y") if mesh else (), axis_types=(jax.sharding.AxisType.Auto,) * 2 if mesh else ())
    with jax.sharding.use_abstract_mesh(around):
        eqn = only_equation(lambda *xs: threefry2x32_p.bind(*xs), *arguments)
    function, _ = _jax.lowering_function(eqn.primitive, eqn.params, "cpu")
    assert function is not None
    found = expansion_of(eqn, "cpu")
    assert found is not None
    with eqn.ctx.manager:
        assert str(found.jaxpr) == str(_jax.traced(function, [v.aval for v in eqn.invars]))


def test_a_hash_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(11, n) for n in range(1, 6)]
    eqns = [only_equation(lambda *xs: threefry2x32_p.bind(*xs), *[jax.ShapeDtypeStruct(s, jnp.uint32)] * 4) for s in shapes]
    expansion_of(eqns[0], "cpu")
    monkeypatch.setattr(_jax, "traced", None)
    for eqn, shape in zip(eqns, shapes):
        found = expansion_of(eqn, "cpu")
        assert found is not None
        assert {aval.shape for aval in found.jaxpr.out_avals} == {shape}


def test_what_was_set_where_an_equation_was_traced_counts() -> None:
    made = []
    for partitionable in (True, False):
        with jax.threefry_partitionable(partitionable):
            eqn = only_equation(lambda k: jax.random.bits(k, (4,)), jax.random.key(0))
        while "jaxpr" in eqn.params:
            (eqn,) = eqn.params["jaxpr"].jaxpr.eqns
        found = expansion_of(eqn, "cpu")
        assert found is not None
        made.append(str(found.jaxpr))
    assert made[0] != made[1]


REFUSED: dict[str, Callable[[jax.Array], Any]] = {
    "a sum": lambda x: x.sum(),
    "a reversal": lambda x: lax.rev(x, (0,)),
    "an array broadcast": lambda x: lax.broadcast_in_dim(x[:1], (7,), (0,)) + x,
    "slices of a scan": lambda x: lax.scan(lambda c, y: (c + y, None), x[0], x)[0],
    "in the body of a scan": lambda x: lax.scan(lambda c, _: (lax.rev(c, (0,)), None), x, None, length=2)[0],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_works_along_a_dimension_is_of_no_other_shape(name: str) -> None:
    assert with_shape(jax.make_jaxpr(REFUSED[name])(jnp.ones(7, jnp.uint32)), (7,), (2, 3)) is None


def test_other_shapes_stay() -> None:
    def f(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (x ^ y[1]) + 1, y[::-1]

    made = with_shape(jax.make_jaxpr(f)(jnp.ones(7, jnp.uint32), jnp.ones(4, jnp.uint32)), (7,), (2, 3))
    assert str(made) == str(jax.make_jaxpr(f)(jnp.ones((2, 3), jnp.uint32), jnp.ones(4, jnp.uint32)))
