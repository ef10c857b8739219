"""Regions of many arguments as several: they give what one gives."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.region_parts import MOST, in_parts

MESH = {"x": 4, "y": 2}
COUNT = 12


def adam(params, mu, nu, grads, count):
    count = count + 1
    mu = [0.9 * m + 0.1 * g for m, g in zip(mu, grads)]
    nu = [0.99 * n + 0.01 * g * g for n, g in zip(nu, grads)]
    steps = [(m / (1 - 0.9**count)) / (jnp.sqrt(n / (1 - 0.99**count)) + 1e-8) for m, n in zip(mu, nu)]
    return [p - 0.01 * s for p, s in zip(params, steps)], mu, nu, count


def with_collectives(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return [x.sum(), *(w * x.sum(0) for w in params)]


def with_keys(keys, x):
    drawn = [jax.random.fold_in(k, 3) for k in keys]
    return [jax.random.normal(k, (8, 4)) + y for k, y in zip(drawn, x)], drawn


def with_loop(xs):
    def body(carry, _):
        return [c + xs[0].sum() for c in carry], carry[0].sum()

    return jax.lax.scan(body, xs, None, length=3)


def passed_through(xs):
    return xs[0], xs[0], 1.0, xs[1] * 2, xs[2:]


def leaves(shape: tuple[int, ...], count: int = COUNT) -> list[np.ndarray]:
    draw = np.random.default_rng(len(shape) + count)
    return [draw.uniform(0.1, 1, shape).astype(np.float32) for _ in range(count)]


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], Any]] = {
    "adam": (adam, lambda: (*(leaves((8, 4)) for _ in range(4)), np.float32(2)), (*[P("x", "y")] * 4, P())),
    "collectives": (with_collectives, lambda: (leaves((8, 8)), leaves((8, 8), 1)[0]), (P("x"), P("y"))),
    "keys": (with_keys, lambda: (list(jax.random.split(jax.random.key(0), COUNT)), leaves((8, 4))), (P(), P("x", "y"))),
    "loop": (with_loop, lambda: (leaves((8, 4)),), P("x")),
    "passed through": (passed_through, lambda: (leaves((8, 4)),), P("x")),
}


def region_of(name: str) -> tuple[ClosedJaxpr, tuple[Any, ...]]:
    fun, args, specs = PROGRAMS[name]
    planned = sp.auto_shard(fun, mesh=MESH, in_shardings=specs, lowering="shard_map").trace(*args())._planned
    assert planned.partitioning is not None
    return planned.partitioning.partitioned(planned.plan).jaxpr, args()


def run(closed: ClosedJaxpr, leaves: list[Any]) -> list[Any]:
    mesh = closed.jaxpr.eqns[0].params["mesh"]
    devices = jax.make_mesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types)
    return jax.jit(jaxpr_as_fun(closed), in_shardings=jax.NamedSharding(devices, P()))(*leaves)


def sizes(closed: ClosedJaxpr) -> list[int]:
    return [len(eqn.invars) + len(eqn.outvars) for eqn in closed.jaxpr.eqns if eqn.primitive.name == "shard_map"]


@pytest.mark.parametrize("most", [2, 7])
@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_give_what_the_whole_gives(name: str, most: int):
    whole, args = region_of(name)
    parts = in_parts(whole, most)
    assert len(sizes(parts)) > 1 or name == "passed through"
    fun = PROGRAMS[name][0]
    made = jax.tree.unflatten(jax.tree.structure(jax.eval_shape(fun, *args)), run(parts, jax.tree.leaves(args)))
    jax.tree.map(_alike, made, jax.jit(fun)(*args))


def _alike(ours: Any, plain: Any) -> None:
    if jax.dtypes.issubdtype(plain.dtype, jax.dtypes.prng_key):
        ours, plain = jax.random.key_data(ours), jax.random.key_data(plain)
    np.testing.assert_allclose(ours, plain, rtol=1e-5)


def test_an_update_leaf_by_leaf_falls_apart():
    whole, _ = region_of("adam")
    parts = in_parts(whole, 20)
    assert max(sizes(parts)) <= 26  # an equation may be the one that makes it too many, and has few operands itself
    (one,) = sizes(whole)
    assert sum(sizes(parts)) < 2 * one


def test_the_parts_are_the_same_in_every_process():
    whole, _ = region_of("adam")
    assert str(in_parts(whole, 20)) == str(in_parts(whole, 20))


def test_a_small_region_stays():
    whole, _ = region_of("collectives")
    assert in_parts(whole) is whole


def test_effects_stay_in_their_order():
    """On one device, where they may be ordered."""
    seen: list[int] = []

    def step(xs):
        for i in reversed(range(len(xs))):
            jax.debug.callback(lambda x, i=i: seen.append(i), xs[i].sum(), ordered=True)
        return [2 * x for x in xs]

    traced = sp.auto_shard(step, mesh={"x": 1}, lowering="shard_map").trace(leaves((8, 4)))
    assert traced._planned.partitioning is not None
    parts = in_parts(traced._planned.partitioning.partitioned(traced.plan()).jaxpr, 6)
    assert len(sizes(parts)) > 1
    jax.block_until_ready(run(parts, leaves((8, 4))))
    jax.effects_barrier()
    assert seen == list(reversed(range(COUNT)))


def test_a_call_with_many_arguments_is_lowered_in_parts():
    count = MOST // 2
    step = sp.auto_shard(lambda xs: [2 * x for x in xs], mesh=MESH, in_shardings=P("x", "y"), lowering="shard_map")
    structs = [jax.ShapeDtypeStruct((8, 4), np.float32)] * count
    assert step.lower(structs).as_text().count("sdy.manual_computation") == 1
    assert step.lower(structs * 2).as_text().count("sdy.manual_computation") == 2
