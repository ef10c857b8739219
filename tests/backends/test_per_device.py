"""Programs that devices run each by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

MESH = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))


def traced(
    fun: Callable[..., Any], args: Sequence[Any], ins: Sequence[P], outs: Any, mesh: Mesh = MESH, lowering: Any = "shard_map"
) -> Any:
    named = jax.tree.map(lambda spec: NamedSharding(mesh, spec), (tuple(ins), outs), is_leaf=lambda x: isinstance(x, P))
    return sp.auto_shard(fun, mesh=mesh, in_shardings=named[0], out_shardings=named[1], lowering=lowering).trace(*args)


def run_apart(found: Any, args: Sequence[Any], ins: Sequence[P], outs: Sequence[P], mesh: Mesh = MESH) -> list[Any]:
    """The results that the programs of all devices make together."""
    shards = [jax.device_put(x, NamedSharding(mesh, spec)).addressable_shards for x, spec in zip(args, ins, strict=True)]
    made = [jax.jit(jaxpr_as_fun(closed))(*(s[i].data for s in shards)) for i, closed in enumerate(found)]
    results = []
    for parts, spec in zip(zip(*made, strict=True), outs, strict=True):
        sharding = NamedSharding(mesh, spec)
        shape = tuple(n * (mesh.shape[name] if name else 1) for n, name in zip(parts[0].shape, (*spec, *[None] * parts[0].ndim)))
        results.append(jax.make_array_from_single_device_arrays(shape, sharding, list(parts)))
    return results


def test_shards_make_up_the_results() -> None:
    def fun(w: Any, x: Any) -> Any:
        return jnp.tanh(x @ w), x.sum(1)

    args = np.arange(12, dtype="float32").reshape(3, 4) / 12, np.ones((8, 3), "float32")
    ins, outs = (P(None, "model"), P("data")), (P("data", "model"), P("data"))
    found = traced(fun, args, ins, outs).per_device()
    assert found is not None
    assert all(closed is found[0] for closed in found)
    assert len(found) == 4
    for got, wanted in zip(run_apart(found, args, ins, outs), fun(*args), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_random_bits_are_those_of_the_whole() -> None:
    """Devices draw their own part, in loops as well; so their programs differ."""

    def fun(key: Any, x: Any) -> Any:
        y = x * jax.random.bernoulli(key, 0.5, x.shape)

        def again(c: Any, key: Any) -> Any:
            return c + jax.random.normal(key, c.shape), None

        return jax.lax.scan(again, y, jax.random.split(key, 3))[0]

    args = jax.random.key(3), np.ones((8, 6), "float32")
    ins = (P(), P("data", "model"))
    found = traced(fun, args, ins, ins[1]).per_device()
    assert found is not None
    assert len({id(closed) for closed in found}) == 4
    (got,) = run_apart(found, args, ins, ins[1:])
    np.testing.assert_allclose(got, jax.jit(fun)(*args), atol=1e-6)


def test_arrays_that_a_function_closes_over() -> None:
    table = jnp.arange(40, dtype="float32").reshape(10, 4)
    args = (np.arange(8, dtype="int32"),)
    found = traced(lambda i: jnp.take(table, i, axis=0), args, (P("data"),), P("data")).per_device()
    assert found is not None
    (got,) = run_apart(found, args, [P("data")], [P("data")])
    np.testing.assert_array_equal(got, table[:8])


def test_parts_of_an_axis() -> None:
    """An axis that the plan uses a part of is several in the region."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    args = (np.arange(24, dtype="float32").reshape(4, 6),)

    def fun(x: Any) -> Any:
        y = jnp.sin(x.reshape(2, 2, 6))
        return (y + jax.random.normal(jax.random.key(0), y.shape)).reshape(4, 6)

    found = traced(fun, args, (P("x"),), P("x"), mesh).per_device()
    assert found is not None
    (got,) = run_apart(found, args, [P("x")], [P("x")], mesh)
    np.testing.assert_allclose(got, jax.jit(fun)(*args), rtol=1e-5)


@pytest.mark.parametrize(
    ("fun", "lowering"),
    [
        (lambda x: x - x.mean(), "shard_map"),
        (lambda x: jax.lax.scan(lambda c, _: (c + x.sum(), None), x, None, length=2)[0], "shard_map"),
        (lambda x: jnp.roll(x, 1, 0), "shard_map"),
        (lambda x: [jax.debug.print("{}", x[0]), x][1], "shard_map"),
        (lambda x: x + 1, "jit"),
    ],
    ids=["all-reduce", "all-reduce in a loop", "permute", "effect", "left to XLA"],
)
def test_none_where_devices_do_more_than_compute(fun: Callable[..., Any], lowering: Any) -> None:
    assert traced(fun, (np.ones(8, "float32"),), (P("data"),), P("data"), lowering=lowering).per_device() is None
