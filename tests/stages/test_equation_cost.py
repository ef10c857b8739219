"""What equations cost."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from shardy_py.cost.hardware import hardware
from shardy_py.stages.equation_cost import bytes_of, equation_seconds, flops, jaxpr_seconds


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_operations_of_products_and_of_anything_else() -> None:
    jaxpr = jax.make_jaxpr(lambda x, w: jnp.tanh(jnp.einsum("bik,bkj->bij", x, w)))(f32(2, 3, 5), f32(2, 5, 7)).jaxpr
    assert [flops(eqn) for eqn in jaxpr.eqns] == [2 * 2 * 3 * 5 * 7, 2 * 3 * 7]
    images = jax.make_jaxpr(lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"))(f32(1, 3, 8, 8), f32(4, 3, 3, 3)).jaxpr
    assert flops(images.eqns[0]) == 2 * (4 * 8 * 8) * (3 * 3 * 3)


def test_loops_take_their_length() -> None:
    looped = jax.make_jaxpr(lambda x: jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, None, length=6)[0])(f32(1000)).jaxpr
    once = jax.make_jaxpr(jnp.sin)(f32(1000)).jaxpr
    h100 = hardware("h100")
    assert flops(looped.eqns[0]) == 6 * flops(once.eqns[0]) == 6000
    assert jaxpr_seconds(looped, h100) == pytest.approx(6 * jaxpr_seconds(once, h100))


def test_the_roofline_takes_the_longer() -> None:
    eqn = jax.make_jaxpr(jnp.sin)(f32(1000)).jaxpr.eqns[0]
    h100 = hardware("h100")
    assert equation_seconds(eqn, h100) == pytest.approx(8000 / h100.hbm_bandwidth)
    assert equation_seconds(eqn, h100.with_figures(hbm_bandwidth=1e30)) == pytest.approx(1000 / h100.vector_flops)
    assert bytes_of(eqn.invars[0]) == 4000
