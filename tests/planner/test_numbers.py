"""A planned step gives the numbers of the unsharded one, under both lowerings; random programs, and those that projects share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.comparing import difference
from tests.random_numbers import LOWERINGS, QUICK, SLOW_CHIPS, planner_of_seed, text_of_seed
from tests.random_numbers import difference as difference_of_program
from tests.sweep.running import PLANNED, check, sweep
from tests.zoo import ZOO, programs

SOME = ("moe_onehot", "gnn_segment", "decode_kv", "control_flow", "shmap_and_constraint")
"""Programs that compile in seconds."""


@pytest.mark.parametrize("seed", [0, 6, 13])
def test_random_programs(seed: int) -> None:
    text = text_of_seed(seed)
    wrong = difference_of_program(text, planner=planner_of_seed(seed))
    assert not wrong, f"{wrong}\n{text}"


@pytest.mark.slow
def test_many_random_programs() -> None:
    check(sweep((PLANNED, seed) for seed in range(14, 22)))


def test_something_is_cut() -> None:
    """On chips so slow no array is too small to be worth it."""
    for chip in SLOW_CHIPS:
        planned = sp.auto_shard(lambda x, w: jnp.tanh(x @ w), mesh={"x": 2, "y": 4}, planner=sp.Planner(hardware=chip))
        plan = planned.plan(jax.ShapeDtypeStruct((8, 4), jnp.float32), jax.ShapeDtypeStruct((4, 8), jnp.float32))
        assert plan.outputs[0].sharding is not None
        assert not plan.outputs[0].sharding.is_fully_replicated


def value(aval: Any, seed: int) -> Any:
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.random.key(seed)
    draw = np.random.default_rng(seed)
    floating = jnp.issubdtype(aval.dtype, jnp.floating)
    return jnp.asarray(draw.normal(size=aval.shape) / 4 if floating else draw.integers(0, 4, aval.shape), aval.dtype)


@pytest.mark.slow
@pytest.mark.skipif(not ZOO.exists(), reason="no shared test programs")
@pytest.mark.parametrize("name", SOME)
def test_shared_programs(name: str) -> None:
    function, avals = programs()[name]()
    leaves, tree = jax.tree.flatten(avals)
    arguments = tree.unflatten([value(aval, seed) for seed, aval in enumerate(leaves)])
    expected = jax.tree.leaves(jax.jit(function).lower(*arguments).compile(compiler_options=QUICK)(*arguments))
    planned = sp.auto_shard(function, mesh={"x": 2, "y": 4}, planner=sp.Planner(hardware=SLOW_CHIPS[0]))
    results = jax.tree.leaves(planned.lower(*arguments).compile(compiler_options=QUICK)(*arguments))
    for result, wanted in zip(results, expected, strict=True):
        assert not difference(np.asarray(result), np.asarray(wanted))


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_results_of_a_shard_map_lie_as_its_specs_say(lowering: str) -> None:
    """Unchecked copies may differ along other axes: those that JAX returns are the result."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def function(x: jax.Array) -> jax.Array:
        def local(x: jax.Array) -> jax.Array:
            return x * (1 + jax.lax.axis_index("y"))

        return jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)(jnp.sin(x))

    x = jnp.arange(64.0).reshape(8, 8)
    planned = sp.auto_shard(function, mesh=mesh, planner=sp.Planner(hardware=SLOW_CHIPS[0]), lowering=lowering)
    np.testing.assert_allclose(planned(x), jax.jit(function)(x), rtol=1e-6)
