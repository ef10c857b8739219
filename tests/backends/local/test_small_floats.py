"""Small floats are sent as they are, also where XLA on CPU would send larger ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec

import shardy_py as sp
from shardy_py.backends.local.local_rule import LocalContext, LocalRule
from shardy_py.backends.local.table import LOCAL_RULES
from tests.backends.local.forced import SIZES, choices, equation_of, mesh, run_forced, same
from tests.backends.local.running import eqns

CASES: dict[str, tuple[Callable[..., Any], str]] = {
    "slices": (lambda x: lax.slice(x, (0, 3), (4, 15)), "slice"),
    "windows": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 1), "SAME"), "reduce_window_max"),
    "far": (lambda x: lax.rev(x, (1,)), "rev"),
    "sums": (lambda x: lax.cumsum(x, 1), "cumsum"),
    "largest": (lambda x: lax.argmax(x, 1, jnp.int32), "argmax"),
    "top": (lambda x: lax.top_k(x, 2), "top_k"),
}


def types(local_rule: LocalRule, equation: Any, axes: Any, platform: str) -> list[str]:
    """The types of what is sent."""
    local = LocalContext(equation, local_rule, axes, SIZES, platform)
    x = jax.ShapeDtypeStruct(local.operand_shape(0), equation.dtypes[0])
    at: Any = PartitionSpec()
    traced = jax.make_jaxpr(jax.shard_map(lambda x: local_rule.run(local, [x]), mesh=mesh(), in_specs=at, out_specs=at, check_vma=False))(x)
    return [str(e.invars[0].aval.dtype) for e in eqns(traced.jaxpr) if e.primitive.name in ("all_gather", "ppermute")]


@pytest.mark.parametrize("name", CASES)
def test_as_bits_on_cpu(name):
    f, primitive = CASES[name]
    x = jnp.asarray(np.random.default_rng(0).permutation(64).reshape(4, 16) - 32, jnp.bfloat16)
    equation, operands = equation_of(f, (x,), primitive)
    local_rule = LOCAL_RULES[primitive](equation)
    assert local_rule is not None
    axes: Any = tuple(("x",) if d == 1 else () for d in range(local_rule.rule.num_factors))
    assert axes in choices(local_rule, 0, 0)
    assert set(types(local_rule, equation, axes, "cpu")) - {"int32"} == {"uint16"}
    assert set(types(local_rule, equation, axes, "tpu")) - {"int32"} == {"bfloat16"}
    want = jax.jit(lambda x: jax.tree.leaves(equation.eqn.primitive.bind(x, **equation.eqn.primitive.get_bind_params(equation.params))))(x)
    for g, w in zip(run_forced(equation, local_rule, [axes], operands)[0], want, strict=True):
        same(g, w, 0.0, name)


@pytest.mark.parametrize("dtype", ["float4_e2m1fn", "float8_e4m3fn"])
def test_floats_of_four_and_eight_bits_are_moved(dtype):
    """Types below a byte are packed: as integers they have four bits, too."""
    x = np.arange(64, dtype=np.float32).reshape(4, 16).astype(dtype)
    step = sp.auto_shard(
        lambda x: x[::-1].T, mesh=mesh(), in_shardings=PartitionSpec("x"), out_shardings=PartitionSpec("x"), lowering="shard_map"
    )
    np.testing.assert_array_equal(np.asarray(step(x)).astype(np.float32), x[::-1].T.astype(np.float32))


@pytest.mark.parametrize("spec", [PartitionSpec("x"), PartitionSpec()])
@pytest.mark.parametrize("dtype", ["int2", "uint2"])
def test_integers_of_two_bits_are_moved(dtype, spec):
    """XLA on CPU misplaces them when it moves them, and writes past the end of a buffer when it gathers them."""
    x = (np.arange(64).reshape(4, 16) % 5 % 2).astype(dtype)
    step = sp.auto_shard(lambda x: x[::-1].T, mesh=mesh(), in_shardings=PartitionSpec("x"), out_shardings=spec, lowering="shard_map")
    np.testing.assert_array_equal(np.asarray(step(x)).astype(np.int32), x[::-1].T.astype(np.int32))
