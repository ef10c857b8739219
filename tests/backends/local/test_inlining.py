"""Calls put in place, and that regions are lowered without any around them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.local.jaxpr_rewriting import without_calls


def test_calls_are_put_in_place() -> None:
    @jax.jit
    def inner(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x + y, x

    @jax.jit
    def outer(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return inner(x * 2.0, x)

    made = jax.make_jaxpr(lambda x: (*outer(x), x))(1.5)
    whole = without_calls(made)
    assert [eqn.primitive.name for eqn in whole.eqns] == ["mul", "add"]
    assert jaxpr_as_fun(whole)(1.5) == jaxpr_as_fun(made)(1.5) == [4.5, 3.0, 1.5]


def test_what_is_called_twice_stays_a_call() -> None:
    twice = jax.jit(jnp.sin)
    made = jax.make_jaxpr(lambda x: twice(twice(x)))(1.5)
    assert [eqn.primitive.name for eqn in without_calls(made).eqns] == ["jit", "jit"]


def test_bodies_may_share_variables() -> None:
    inner = jax.jit(lambda x: jnp.sin(x) * 2.0)
    made = jax.make_jaxpr(lambda x: (inner(x), inner(x + 1.0)))(1.5)
    copies = [
        eqn.replace(params={**eqn.params, "jaxpr": ClosedJaxpr(eqn.params["jaxpr"].jaxpr.replace(), ())}) if "jaxpr" in eqn.params else eqn
        for eqn in made.eqns
    ]
    whole = without_calls(ClosedJaxpr(made.jaxpr.replace(eqns=copies), ()))
    assert "jit" not in [eqn.primitive.name for eqn in whole.eqns]
    np.testing.assert_allclose(jaxpr_as_fun(whole)(1.5), jaxpr_as_fun(made)(1.5))


def test_the_region_stands_in_the_main_function() -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    step = sp.auto_shard(lambda x: jnp.sin(x) * 2, mesh=mesh, in_shardings=NamedSharding(mesh, P(None, "x")), lowering="shard_map")
    x = jnp.asarray(np.arange(16.0).reshape(2, 8), jnp.float32)
    text = step.lower(x).as_text()
    assert text.count("func.func") == 1
    assert "sdy.manual_computation" in text
    np.testing.assert_allclose(step(x), np.sin(np.asarray(x)) * 2, rtol=1e-6)
