"""Pytree classes whose constructor looks at its fields: JAX builds them around tracers and arrays only, and so do we."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp

X = np.random.default_rng(0).standard_normal((16, 8)).astype("float32")


@jax.tree_util.register_pytree_node_class
class Normal:
    """Makes arrays of its fields, as a distribution does."""

    def __init__(self, loc, scale):
        self.loc, self.scale = jnp.asarray(loc), jnp.asarray(scale)

    def tree_flatten(self):
        return (self.loc, self.scale), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


@jax.tree_util.register_pytree_node_class
class OnlyArrays:
    def __init__(self, value):
        assert isinstance(value, jax.Array), type(value)
        self.value = value

    def tree_flatten(self):
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Boundary:
    """Wants one of its two ends."""

    value: Any
    fixed: Any = None
    slope: Any = None

    def __post_init__(self):
        if (self.fixed is None) == (self.slope is None):
            raise ValueError("exactly one of fixed and slope must be given")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Matrix:
    """Wants something with a shape."""

    value: Any

    def __post_init__(self):
        if len(self.value.shape) != 2:
            raise ValueError("two dimensions")


x = jnp.asarray(X)
PROGRAMS = {
    "arrays are made, argument": (lambda d: jnp.sin(d.loc) / d.scale, Normal(x, jnp.ones_like(x))),
    "arrays are made, result": (lambda x: Normal(x * 2, jnp.ones_like(x)), x),
    "only arrays, argument": (lambda c: c.value * 2, OnlyArrays(x)),
    "only arrays, both, within others": (lambda t: {"c": OnlyArrays(t["c"].value * 2), "n": None}, {"c": OnlyArrays(x), "n": (x,)}),
    "no None, argument": (lambda b: b.value * 2 + b.fixed, Boundary(x, x[:, :1])),
    "no None, result": (lambda b: Boundary(b.value * 2, slope=b.fixed), Boundary(x, x[:, :1])),
    "shape, both": (lambda m: Matrix(m.value * 2), Matrix(x)),
}


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("specs", [None, (P("data"),)], ids=["none", "given"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_classes_that_look_at_their_fields(name, specs, lowering):
    program, argument = PROGRAMS[name]
    step = sp.auto_shard(program, mesh={"data": 8}, in_shardings=specs, out_shardings=specs and specs[0], lowering=lowering)
    want, got = jax.jit(program)(argument), step(argument)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert step.plan_count == 1
    np.testing.assert_allclose(jax.tree.leaves(step(argument))[0], jax.tree.leaves(want)[0], rtol=1e-6)
    np.testing.assert_allclose(jax.tree.leaves(jax.jit(step)(argument))[0], jax.tree.leaves(want)[0], rtol=1e-6)
    if specs is not None:
        assert all(leaf.sharding.spec == P("data") for leaf in jax.tree.leaves(got))


def test_their_plans_can_be_read_stored_and_compiled(tmp_path):
    step = sp.auto_shard(lambda c, x: OnlyArrays(c["c"].value * x), mesh={"data": 8}, in_shardings=(P("data"), None))
    plan = step.plan({"c": OnlyArrays(x)}, x)
    fields, other = plan.input_shardings
    assert fields == {"c": {0: other}}  # such a class refuses shardings: a dict of its fields
    (listed,) = sp.auto_shard(lambda cs: cs[1], mesh={"data": 8}, in_shardings=P("data")).plan([OnlyArrays(x), x]).input_shardings
    assert listed == [{0: fields["c"][0]}, fields["c"][0]]
    assert plan.inputs[0].path == "c['c'][<flat index 0>]"
    plan.save(tmp_path / "plan.json")
    assert sp.Plan.load(tmp_path / "plan.json").inputs[0].path == plan.inputs[0].path
    compiled = step.lower({"c": OnlyArrays(x)}, x).compile()
    np.testing.assert_allclose(compiled({"c": OnlyArrays(x)}, x).value, X * X, rtol=1e-6)


def test_a_rule_around_a_function_of_such_a_class():
    double = sp.sharding_rule("i j -> i j")(lambda m: Matrix(m.value * 2))
    step = sp.auto_shard(lambda m: double(m), mesh={"data": 8}, in_shardings=P("data"))
    result = step(Matrix(x))
    np.testing.assert_allclose(result.value, 2 * X)
    assert result.value.sharding.spec == P("data")
