"""The user's own shard_maps inside of a region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, PartitionSpec

import shardy_py as sp

P = PartitionSpec
X = np.arange(256, dtype=np.float32).reshape(16, 16) / 256


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def check(fun: Callable[..., Any], *args: Any, specs: Any) -> Any:
    """Compares results in a region with those of `jax.jit`."""
    step = sp.auto_shard(fun, mesh=mesh(), in_shardings=specs, lowering="shard_map")
    for a, b in zip(jax.tree.leaves(step(*args)), jax.tree.leaves(jax.jit(fun)(*args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    return step.plan(*args)


def everything(x: Any) -> Any:
    gathered = lax.all_gather(x, "y", axis=1, tiled=True)
    exchanged = lax.all_to_all(x, "y", 0, 1, tiled=True)
    scattered = lax.psum_scatter(x, ("x", "y"), scatter_dimension=0, tiled=True)
    permuted = lax.ppermute(x, ("x", "y"), [(i, (i + 3) % 8) for i in range(8)])
    here = lax.axis_index(("x", "y")) + 10 * lax.axis_index("y")
    stacked = lax.all_gather(x, "x")
    parts = gathered.sum() + (exchanged * 2).sum() + scattered[0].sum() + permuted[0, 0] * here + stacked[1].sum()
    return x * parts + lax.pmax(x, "x") - lax.pmean(x, ("x", "y"))


def by_name(x: Any, *outer: str) -> Any:
    """Collectives over the axis that jax.vmap names: reductions of a dimension."""

    def row(v: Any) -> Any:
        return v / lax.psum(v, ("i", *outer)) - lax.pmax(v, "i") + lax.pmin(v.sum(), ("i", *outer)) * lax.pmean(v, "i")

    return jax.vmap(row, axis_name="i")(x + 1)


@pytest.mark.parametrize("spec", [P(), P("x", "y"), P(("x", "y")), P(None, "x")])
def test_collectives_over_an_axis_of_vmap(spec: P) -> None:
    check(by_name, X, specs=spec)

    def nested(x: Any) -> Any:
        return jax.vmap(jax.vmap(lambda v: v * lax.psum(v, ("i", "j")), axis_name="j", in_axes=1), axis_name="i")(jnp.stack([x, x]))

    check(nested, X, specs=spec)


@pytest.mark.parametrize("manual", [("x",), ("x", "y")])
def test_collectives_over_an_axis_of_vmap_in_a_body(manual: tuple[str, ...]) -> None:
    def fun(x: Any) -> Any:
        over = jax.shard_map(
            lambda x: by_name(x, "x"), mesh=mesh(), in_specs=P("x"), out_specs=P("x"), axis_names=set(manual), check_vma=False
        )
        return over(x)

    check(fun, X, specs=P("x", "y"))


@pytest.mark.parametrize("checked", [False, True])
def test_collectives_of_a_body(checked: bool) -> None:
    def fun(x: Any) -> Any:
        return jnp.sin(jax.shard_map(everything, mesh=mesh(), in_specs=P("x", "y"), out_specs=P("x", "y"), check_vma=checked)(x * 2))

    check(fun, X, specs=P("x"))


@pytest.mark.parametrize("checked", [False, True])
def test_gradient_through_a_body_with_a_loop(checked: bool) -> None:
    def body(w: Any, x: Any) -> Any:
        def layer(h: Any, _: Any) -> Any:
            return jnp.tanh(lax.psum(h @ w, "y")[:, :4] * 0.1 + h), None

        start = lax.pcast(x, (), to="varying") if checked else x
        return lax.psum(lax.scan(jax.checkpoint(layer), start, None, length=3)[0].sum(), ("x", "y"))

    def fun(w: Any, x: Any) -> Any:
        apply = jax.shard_map(body, mesh=mesh(), in_specs=(P("y"), P("x", "y")), out_specs=P(), check_vma=checked)
        return jax.value_and_grad(lambda w: apply(w, x) ** 2)(w)

    check(fun, X, X, specs=(P(), P("x")))


def test_axes_that_are_left_over_are_used_as_planned() -> None:
    def body(x: Any, w: Any) -> Any:
        h = jnp.tanh(x @ w)
        return lax.psum_scatter(h @ w.T, "x", scatter_dimension=0, tiled=True) + lax.axis_index("x")

    def fun(x: Any, w: Any) -> Any:
        apply = jax.shard_map(body, mesh=mesh(), in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"}, check_vma=False)
        return apply(x, w) * 2

    plan = check(fun, X, X, specs=(P("x"), P(None, "y")))
    assert [(c.kind, c.axes) for c in plan.collectives] == [("all_reduce", ("y",)), ("reduce_scatter", ("x",))]


def test_shard_maps_in_shard_maps() -> None:
    def inner(x: Any) -> Any:
        return x * lax.psum(x, "y") + lax.axis_index("y")

    def body(x: Any) -> Any:
        nested = jax.shard_map(inner, in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"}, check_vma=False)
        return lax.psum(nested(x + 1), "x")

    def fun(x: Any) -> Any:
        outer = jax.shard_map(body, mesh=mesh(), in_specs=P("x"), out_specs=P(), axis_names={"x"}, check_vma=False)
        return outer(jnp.sin(x))

    check(fun, X, specs=P("x", "y"))


def test_body_names_axes_that_the_plan_cuts() -> None:
    def fun(x: Any) -> Any:
        y = jnp.sin(x).reshape(2, 8, 16)
        z = jax.shard_map(lambda v: lax.all_gather(v, "y", tiled=True) + lax.axis_index("y"), mesh=mesh(),
                          in_specs=P("y"), out_specs=P(None, "y"), check_vma=False)(jnp.cos(x))  # fmt: skip
        return y * 2, z

    plan = check(fun, X, specs=P("y"))
    assert {axis for c in plan.collectives for axis in c.axes} <= {"x", "y", "y:(1)2", "y:(2)2"}


def test_callbacks_of_a_body_are_called_on_every_device() -> None:
    seen: list[tuple[int, ...]] = []

    def body(x: Any) -> Any:
        jax.debug.callback(lambda v: seen.append(v.shape), x)
        return x

    def fun(x: Any) -> Any:
        return jax.shard_map(body, mesh=mesh(), in_specs=P("x", "y"), out_specs=P("x", "y"))(x)

    jax.block_until_ready(sp.auto_shard(fun, mesh=mesh(), in_shardings=P("x"), lowering="shard_map")(X))
    jax.effects_barrier()
    assert seen == [(8, 4)] * 8


@pytest.mark.parametrize("specs", [(P(), P(None, "y")), (P("x"), P(None, "y"))])
def test_planned_function_inside_of_a_shard_map(specs: Any) -> None:
    """Only the axes that are left are used; a plan that needs others is not."""
    step = sp.auto_shard(lambda x, w: {"out": jnp.tanh(x @ w) @ w.T}, mesh=mesh(), in_shardings=specs, lowering="shard_map")

    def outer(x: Any, w: Any) -> Any:
        def body(a: Any, b: Any) -> Any:
            return step(a, b)["out"] + lax.axis_index("x") * 0

        return jax.shard_map(body, mesh=mesh(), in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"}, check_vma=False)(x, w)

    np.testing.assert_allclose(jax.jit(outer)(X, X), np.tanh(X @ X) @ X.T, rtol=1e-4)
    assert str(jax.make_jaxpr(outer)(X, X)).count("partitioned_call[") == (specs[0] == P())


@pytest.mark.parametrize("spec", [P("x"), P(), P(None, "y")])
def test_blocks_that_are_cut_unevenly(spec: P) -> None:
    """Five rows of each of two blocks, over four devices: the pieces of the second block are no pieces of all ten rows."""

    def body(v: Any) -> tuple[Any, Any]:
        v = lax.with_sharding_constraint(v, P("y"))
        sums = jnp.cumsum(v, 0) + lax.psum(v, "x")
        return lax.with_sharding_constraint(2 * jnp.sin(v) + jnp.arange(5.0)[:, None], P("y")), sums

    def fun(x: Any) -> Any:
        return jax.shard_map(body, mesh=mesh(), in_specs=P("x"), out_specs=P("x"), axis_names={"x"}, check_vma=False)(x)

    x = np.arange(40, dtype=np.float32).reshape(10, 4) / 40
    first, sums = sp.auto_shard(fun, mesh=mesh(), in_shardings=spec, lowering="shard_map")(x)
    np.testing.assert_allclose(first, 2 * np.sin(x) + np.tile(np.arange(5), 2)[:, None], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums, np.concatenate([np.cumsum(x[:5], 0), np.cumsum(x[5:], 0)]) + np.tile(x[:5] + x[5:], (2, 1)), rtol=1e-5)
