"""The region of a plan is what `jax.shard_map` makes of the same function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.shard_map import region

MESH = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
TABLE = np.arange(6, dtype=np.float32).reshape(2, 3)


def mean(x: jax.Array) -> list[jax.Array]:
    return [lax.psum(x, ("x", "y")) / 8, x]


def part_of_table(x: jax.Array) -> list[jax.Array]:
    return [x + lax.dynamic_slice_in_dim(jnp.asarray(TABLE), lax.axis_index("y"), 1)]


def looped(x: jax.Array) -> list[jax.Array]:
    return [lax.fori_loop(0, 3, lambda _, a: lax.all_gather(a, "x", axis=0, tiled=True)[: a.shape[0]], x)]


CASES: list[tuple[Callable[..., Any], tuple[int, ...], tuple[P, ...], tuple[tuple[tuple[int, ...], P], ...]]] = [
    (mean, (8, 4), (P("x", "y"),), (((2, 2), P()), ((8, 4), P("x", "y")))),
    (part_of_table, (2, 3), (P("y"),), (((2, 3), P("y")),)),
    (looped, (8, 3), (P(("x", "y")),), (((8, 3), P(("x", "y"))),)),
]


def made(local: Callable[..., Any], shape: tuple[int, ...], ins: Any, outs: Any, mesh: AbstractMesh = MESH) -> Any:
    return region(
        local, mesh, mesh.axis_names, [ShapedArray(shape, jnp.float32)],
        [ShapedArray(s, jnp.float32) for s, _ in outs], ins, [spec for _, spec in outs],
    )  # fmt: skip


@pytest.mark.parametrize(("local", "shape", "ins", "outs"), CASES)
def test_is_what_shard_map_makes(local: Callable[..., Any], shape: Any, ins: Any, outs: Any) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    wanted = jax.shard_map(local, mesh=mesh, in_specs=ins, out_specs=[spec for _, spec in outs], check_vma=False)
    got = made(local, shape, ins, outs)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    placed = NamedSharding(mesh, ins[0])
    for a, b in zip(jax.jit(jaxpr_as_fun(got), in_shardings=placed)(x), jax.jit(wanted, in_shardings=placed)(x), strict=True):
        np.testing.assert_array_equal(a, b)
    theirs = jax.make_jaxpr(wanted)(x)
    (ours,), (other,) = got.jaxpr.eqns, theirs.jaxpr.eqns
    assert ours.params.keys() == other.params.keys()
    assert [e.primitive for e in ours.params["jaxpr"].eqns] == [e.primitive for e in other.params["jaxpr"].eqns]
    assert {k: v for k, v in ours.params.items() if k not in ("jaxpr", "mesh")} == {
        k: v for k, v in other.params.items() if k not in ("jaxpr", "mesh")
    }
    assert ours.effects == other.effects == got.effects


def test_what_jax_checks_of_its_jaxprs_holds() -> None:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(c: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(c @ w) * jnp.asarray(TABLE[0, 1]), None

        return jnp.mean(lax.scan(jax.checkpoint(layer), x, weights)[0] ** 2) + jnp.sum(jnp.asarray(TABLE))

    step = jax.value_and_grad(loss)
    sharded = sp.auto_shard(step, mesh={"x": 4, "y": 2}, in_shardings=(P(None, None, "y"), P("x")), lowering="shard_map")
    args = jnp.full((3, 8, 8), 0.1), jnp.ones((8, 8))
    with jax.enable_checks(True):
        got = sharded(*args)
    for a, b in zip(got, step(*args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_types_inside_name_no_mesh() -> None:
    (eqn,) = made(*CASES[0]).jaxpr.eqns
    assert all(v.aval.sharding.mesh.empty for inner in eqn.params["jaxpr"].eqns for v in inner.outvars)


def test_results_of_another_shape_are_not_taken() -> None:
    with pytest.raises(AssertionError, match="a result is"):
        made(mean, (8, 4), (P("x", "y"),), (((8, 2), P()), ((8, 4), P("x", "y"))))


def test_arguments_that_axes_do_not_divide_are_not_taken() -> None:
    with pytest.raises(ValueError, match="evenly divide"):
        made(mean, (6, 4), (P("x", "y"),), (((2, 2), P()), ((6, 4), P("x", "y"))))
