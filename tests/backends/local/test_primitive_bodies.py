"""Primitives of other packages run cut over devices as the functions that JAX lowers them by."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P

import shardy_py as sp

X = np.random.default_rng(0).standard_normal((16, 8)).astype("float32")
W = np.random.default_rng(1).standard_normal((8, 8)).astype("float32")


def primitive(name, run, rule=None, multiple=False):
    made = Primitive(name)
    made.multiple_results = multiple
    made.def_impl(run)
    made.def_abstract_eval(lambda *avals: list(avals) if multiple else avals[-1])
    mlir.register_lowering(made, rule or mlir.lower_fun(run, multiple_results=multiple))
    return made.bind


choose = primitive("choose_of_this_test", lambda which, x, y: jnp.where(which, x, y))
mark = primitive("mark_of_this_test", lambda x: x, lambda ctx, x: [x])
swap = primitive("swap_of_this_test", lambda x, y: [y, x], lambda ctx, x, y: [y, x], multiple=True)
twice = primitive("twice_of_this_test", lambda x: mark(x) + choose(True, x, x))
normalized = primitive("normalized_of_this_test", lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True))

PROGRAMS = {
    "function": lambda x, w: choose(x.sum() < 0, x @ w, x),
    "operand": lambda x, w: mark(x) @ w,
    "operands": lambda x, w: swap(x @ w, jnp.sin(x @ w))[0],
    "of others": lambda x, w: twice(x @ w),
    "reduction inside": lambda x, w: normalized(x @ w),
    "in a loop": lambda x, w: jax.lax.fori_loop(0, 5, lambda i, x: choose(i < 3, jnp.tanh(mark(x) @ w), x), x),
    "in a branch": lambda x, w: jax.lax.cond(w[0, 0] > 0, lambda x: mark(x) @ w, lambda x: twice(x), x),
}


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_primitives_of_packages_run_cut(name, lowering):
    program = PROGRAMS[name]
    step = sp.auto_shard(program, mesh={"data": 8}, in_shardings=(P("data"), P()), lowering=lowering)
    plan, got = step.plan(X, W), step(X, W)
    np.testing.assert_allclose(got, jax.jit(program)(X, W), rtol=1e-5, atol=1e-5)
    assert got.sharding.spec == P("data")
    assert [f.kind for f in plan.findings] == []
    assert sum(c.total_bytes for c in plan.collectives) < 16  # the sum over all of x, if any
