"""Stages whose devices run each by itself."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.stages.run.compiling import MOST_APART
from shardy_py.stages.run.shards import DeviceCalls, End, joined, move, split
from tests.stages.run.steps import data, largest_gap, loss, params


def mesh(first: int, count: int) -> Mesh:
    return Mesh(np.array(jax.devices()[first : first + count]), ("data",))


SPECS = [P("data"), P(None, "data"), P(), P(("data",))]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_shards_join_to_what_was_split(spec: P) -> None:
    x = jax.device_put(np.arange(16.0).reshape(4, 4), NamedSharding(mesh(2, 2), spec))
    shards = split(x)
    assert [s.device for s in shards] == jax.devices()[2:4]
    again = joined(shards, NamedSharding(mesh(2, 2), spec))
    assert again.sharding == x.sharding
    np.testing.assert_array_equal(again, x)


def test_keys_are_split_and_joined() -> None:
    x = jax.device_put(jax.random.split(jax.random.key(0), 4), NamedSharding(mesh(2, 2), P("data")))
    again = joined(split(x), x.sharding)
    assert bool(jnp.all(jax.random.key_data(again) == jax.random.key_data(x)))


ENDS = [
    End(NamedSharding(mesh(first, count), spec), apart)
    for first, count, spec, apart in (
        (0, 1, P(), False),
        (1, 1, P(), False),
        (2, 2, P("data"), False),
        (2, 2, P("data"), True),
        (4, 2, P("data"), False),
        (4, 2, P("data"), True),
        (4, 2, P(), True),
        (4, 4, P("data"), True),
    )
]


@pytest.mark.parametrize(("made", "read"), list(itertools.product(ENDS, ENDS)))
@pytest.mark.parametrize("key", [False, True], ids=["numbers", "keys"])
def test_moves(made: End, read: End, key: bool) -> None:
    made, read = replace(made, is_key=key), replace(read, is_key=key)
    values = [jax.random.split(jax.random.key(n), 4) if key else np.arange(4.0) + n for n in range(2)]
    given = [jax.device_put(x, made.sharding) for x in values]
    moved = move(made, read)([split(x) for x in given] if made.apart else given)
    whole = [joined(x, read.sharding) if read.apart else x for x in moved]
    for got, wanted in zip(whole, values, strict=True):
        assert got.sharding.is_equivalent_to(read.sharding, 1)
        assert got.committed
        got, wanted = (jax.random.key_data(x) if key else np.asarray(x) for x in (got, wanted))
        np.testing.assert_array_equal(got, wanted)


def test_equal_moves_are_equal() -> None:
    """So values that go the same way go together."""
    for made, read in itertools.product(ENDS, ENDS):
        assert move(made, read) == move(End(made.sharding, made.apart), End(read.sharding, read.apart))


def gradients(p: Any, x: Any, y: Any) -> Any:
    return jax.value_and_grad(loss)(p, x, y)


def pipeline(inside: dict[str, int], p: Any = None, batch: Any = None, **options: Any) -> Any:
    """Replicated parameters and a sharded batch where nothing else is said."""
    examples = P("data") if batch is None else batch
    options = {"num_stages": 2, "num_microbatches": 4, "mesh": {"stage": 2, **inside}, **options}
    return sp.pipeline(gradients, in_shardings=(P() if p is None else p, examples, examples), **options)


def apart(run: Any) -> list[bool]:
    return run._runner.engine.apart


def test_data_parallel_stages_run_apart() -> None:
    run = pipeline({"data": 2})
    for _ in range(2):
        assert largest_gap(run(params(), *data()), gradients(params(), *data())) < 1e-6
    assert apart(run) == [True, True]
    for step in run._runner.engine.steps.values():
        assert isinstance(step.call, DeviceCalls)
        assert [list(call.input_shardings[0][0].device_set) for call in step.call.calls] == [
            [device] for device in run._runner.places.mesh(step.program.stage).devices.flat
        ]


def test_stages_that_exchange_data_run_as_one() -> None:
    run = pipeline({"model": 2}, {"a": P(None, "model"), "b": P("model"), "c": P()}, P())
    assert largest_gap(run(params(), *data()), gradients(params(), *data())) < 1e-6
    assert not all(apart(run))


def test_stages_of_both_kinds_hand_over_to_each_other() -> None:
    """The first stage exchanges data for its product, the other does not."""
    run = pipeline({"data": 2}, {"a": P("data"), "b": P(), "c": P()})
    for _ in range(2):
        assert largest_gap(run(params(), *data()), gradients(params(), *data())) < 1e-6
    assert apart(run) == [False, True]


def test_meshes_of_different_sizes() -> None:
    meshes = [mesh(0, 2), mesh(2, 1), mesh(4, 4)]
    run = pipeline({}, num_stages=3, mesh=meshes)
    assert largest_gap(run(params(), *data()), gradients(params(), *data())) < 1e-6
    assert apart(run) == [True, False, True]


def test_many_devices_run_as_one() -> None:
    """A program is not compiled for each of them."""
    assert 2 * MOST_APART == len(jax.devices())
    run = pipeline({"data": 2 * MOST_APART}, num_stages=1, mesh={"stage": 1, "data": 2 * MOST_APART}, num_microbatches=2)
    assert largest_gap(run(params(), *data()), gradients(params(), *data())) < 1e-6
    assert apart(run) == [False]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_dropout_results_per_example_and_donation(schedule: str) -> None:
    """With two devices in each stage as with one: the same random bits, the same results, and parameters that are given away."""

    def step(p: Any, x: Any, y: Any, key: Any) -> Any:
        def lossy(p: Any) -> Any:
            h = jnp.tanh(x @ p["a"])
            h = h * jax.random.bernoulli(key, 0.5, h.shape)
            out = jnp.tanh(h @ p["b"]) @ p["c"]
            return jnp.mean((out - y) ** 2), out

        (value, out), grads = jax.value_and_grad(lossy, has_aux=True)(p)
        return jax.tree.map(lambda a, g: a - 0.1 * g, p, grads), value, out

    def trained(mesh: dict[str, int], in_shardings: Any) -> tuple[Any, list[bool]]:
        run = sp.pipeline(step, num_stages=2, num_microbatches=4, mesh=mesh, schedule=schedule, donate_argnums=0, in_shardings=in_shardings)
        p, results = params(), []
        for number in range(3):
            p, *rest = run(p, *data(), jax.random.key(number))
            results += rest
        return (p, results), apart(run)

    alone, _ = trained({"stage": 2}, None)
    both, is_apart = trained({"stage": 2, "data": 2}, (P(), P("data"), P("data"), P()))
    assert is_apart == [True, True]
    assert largest_gap(both, alone) < 1e-6
