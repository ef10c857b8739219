"""Public functions on shards: draws, lookups and matrices compared with one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, PartitionSpec

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in
from tests.backends.local.forced import same

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(8, 16)), jnp.float32)
KEY = jax.random.key(7)


def compare(f: Callable[..., dict[str, Any]], args: tuple[Any, ...], specs: tuple[Any, ...], tolerance: float = 0.0) -> set[str]:
    """Compares all results of a function with one device's; returns the kinds of collectives it takes."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    step = sp.auto_shard(f, mesh=mesh, in_shardings=specs, lowering="shard_map")
    want = jax.jit(f)(*args)
    for name, got in step(*args).items():
        same(got, want[name], tolerance, name)
    return {collective.kind for collective in step.plan(*args).collectives}


def test_draws_of_the_shape_of_what_is_cut_send_nothing() -> None:
    def draws(key: Any, x: Any) -> dict[str, Any]:
        keys = jax.random.split(key, 4)
        return {
            "dropout": jnp.where(jax.random.bernoulli(keys[0], 0.5, x.shape), x / 0.5, 0),
            "noise": x.astype(jnp.bfloat16) + jax.random.truncated_normal(keys[1], -1, 1, x.shape, jnp.bfloat16),
            "rows": jax.vmap(lambda i, row: row + jax.random.uniform(jax.random.fold_in(keys[2], i), row.shape))(jnp.arange(8), x),
        }

    assert compare(draws, (KEY, X), (PartitionSpec(), PartitionSpec("x", "y"))) == set()


def test_sums_of_sums_are_added_up_once() -> None:
    """Python's `sum` begins with 0, which no device has to wait for; XLA sends the rows together."""

    def losses(x: Any) -> dict[str, Any]:
        rows = [jnp.mean(jnp.sin(x + i)) for i in range(4)]
        return {"added": sum(rows), "taken": -sum(rows) - 0.0, "of zero": 0.0 - rows[0]}

    mesh = {"x": 2, "y": 4}
    step = sp.auto_shard(losses, mesh=mesh, in_shardings=PartitionSpec("x", "y"), lowering="shard_map")
    assert [c.kind for c in step.plan(X).collectives] == ["all_reduce"] * 4
    assert len(collectives_in(step.lower(X).compile().as_text())) == 1
    compare(losses, (X,), (PartitionSpec("x", "y"),), 1e-6)


def test_permutations_and_choices() -> None:
    def draws(key: Any, x: Any) -> dict[str, Any]:
        return {
            "permutation": jax.random.permutation(key, x),
            "choice": jax.random.choice(key, x, (4,), replace=False),
            "categorical": jax.random.categorical(key, x),
            "integers": jax.random.randint(key, x.shape, 0, 100) + x.astype(jnp.int32),
        }

    compare(draws, (KEY, X), (PartitionSpec(), PartitionSpec("x", "y")))


def test_keys_move_between_devices() -> None:
    def keys(keys: Any, i: Any) -> dict[str, Any]:
        return {"rows": keys.reshape(4, 2).T, "some": keys[i], "data": jax.random.key_data(keys)[:, 0] + i[0].astype(jnp.uint32)}

    args = (jax.random.split(KEY, 8), jnp.array([3, 0, 7, 1]))
    compare(keys, args, (PartitionSpec(("x", "y")), PartitionSpec("y")))


def test_lookups() -> None:
    table = jnp.asarray(RNG.normal(size=(64, 16)), jnp.float32)
    tokens = jnp.asarray(RNG.integers(0, 64, (8, 12)))

    def lookups(table: Any, tokens: Any, x: Any) -> dict[str, Any]:
        return {
            "embedding": table[tokens],
            "gradient": jax.grad(lambda t: jnp.sin(t[tokens]).sum())(table),
            "segments": jax.ops.segment_sum(x, tokens[:, 0] % 4, 4),
            "one": jnp.take_along_axis(x, tokens[:, :1] % 16, 1),
            "top": lax.top_k(x, 3)[1],
            "best": jnp.argmax(x, 1),
            "order": jnp.argsort(x, 0),
            "counts": jnp.bincount(tokens.ravel(), length=64),
        }

    compare(lookups, (table, tokens, X), (PartitionSpec("y"), PartitionSpec("x"), PartitionSpec("x", "y")), tolerance=1e-5)


def test_matrices() -> None:
    def matrices(x: Any) -> dict[str, Any]:
        square = x.reshape(8, 4, 4)
        positive = jnp.einsum("aij,akj->aik", square, square) + jnp.eye(4)
        return {
            "cholesky": jnp.linalg.cholesky(positive),
            "solve": jnp.linalg.solve(positive, square),
            "determinant": jnp.linalg.slogdet(positive)[1],
            "transform": jnp.abs(jnp.fft.ifftn(square, axes=(1, 2))),
        }

    compare(matrices, (X,), (PartitionSpec("x", "y"),), tolerance=1e-4)


def test_numbers_that_are_others_every_time_are_the_same_on_every_device() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    step = sp.auto_shard(lambda x: lax.rng_uniform(0.0, 1.0, (64,)) + x, mesh=mesh, in_shardings=(PartitionSpec(),), lowering="shard_map")
    parts = [np.asarray(shard.data) for shard in step(jnp.float32(0)).addressable_shards]
    assert all((part == parts[0]).all() for part in parts)
    assert 0 <= parts[0].min() < parts[0].max() <= 1
