"""Equations that nothing needs are not run, so that nothing is moved for them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shardy_py.backends.local.jaxpr_analysis import JaxprAnalysis
from shardy_py.backends.local.table import HANDLERS, LOCAL_RULES
from shardy_py.dialect import Mesh


def test_what_makes_no_result_is_left_out_unless_it_does_something_else() -> None:
    def f(x: jax.Array) -> jax.Array:
        unused = jnp.sin(x)
        jnp.exp(unused)
        jax.debug.print("{}", jnp.cos(x))
        return x * 2.0

    jaxpr = jax.make_jaxpr(f)(jnp.ones(4)).jaxpr
    analysis = JaxprAnalysis(LOCAL_RULES, HANDLERS, Mesh((("x", 2),)))
    names = [eqn.primitive.name for _, eqn in analysis.live(jaxpr)]
    assert {"cos", "mul"} <= {*names}
    assert not {"sin", "exp"} & {*names}
    assert [jaxpr.eqns[index] for index, _ in analysis.live(jaxpr)] == [eqn for _, eqn in analysis.live(jaxpr)]
    assert analysis.uses(jaxpr)[jaxpr.invars[0]] == 2
