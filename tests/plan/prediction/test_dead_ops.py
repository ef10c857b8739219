"""What XLA drops is in no prediction."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in
from shardy_py.plan.prediction.dead_ops import dead_ops

MESH = {"x": 2, "y": 4}
X = jax.ShapeDtypeStruct((16, 16), jnp.float32)


def planned(function: Any) -> Any:
    return sp.auto_shard(function, mesh=MESH, in_shardings=(P("x"), P(None, "y")), lowering="jit")


def test_collectives_of_dead_loops_branches_and_constraints_are_not_predicted() -> None:
    def step(x: Any, w: Any) -> Any:
        product = jnp.einsum("ij,ik->jk", x, w)
        lax.scan(lambda c, row: (c + row.sum(), row @ w), 0.0, product)
        jnp.sort(lax.cond(product[0, 0] > 0, lambda a: a.T, jnp.sin, product), axis=0)
        lax.with_sharding_constraint(product, P())
        return x.sum(0)

    compiled = planned(step)
    text = compiled.lower(X, X).compile().as_text()
    predicted = compiled.plan(X, X).collectives
    assert [(c.kind, c.received_bytes) for c in predicted] == [(c.kind, c.received_bytes) for c in collectives_in(text)]
    assert len(predicted) == 1


def test_effects_and_what_they_read_stay() -> None:
    def step(x: Any, w: Any) -> Any:
        lax.scan(lambda c, row: (jax.debug.callback(lambda _: None, row), (c, None))[1], 0.0, x @ w)
        return x * 2

    program = planned(step).plan(X, X).program
    dead = {op.name for op in dead_ops(program)}
    assert not dead & {"stablehlo.while", "stablehlo.dot_general"}
