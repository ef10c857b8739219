"""Stages of several devices, and moves between their meshes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.pipelines.steps import data, largest_gap, loss, params


def mesh(first: int, count: int) -> Mesh:
    return Mesh(np.array(jax.devices()[first : first + count]), ("data",))


def gradients(p: Any, x: Any, y: Any) -> Any:
    return jax.value_and_grad(loss)(p, x, y)


def pipeline(inside: dict[str, int], p: Any = None, batch: Any = None, **options: Any) -> Any:
    """Replicated parameters and a sharded batch where nothing else is said."""
    examples = P("data") if batch is None else batch
    options = {"num_stages": 2, "num_microbatches": 4, "mesh": {"stage": 2, **inside}, **options}
    return sp.pipeline(gradients, in_shardings=(P() if p is None else p, examples, examples), **options)


@pytest.mark.parametrize("first", [P(), P("data")], ids=["replicated", "cut"])
def test_stages_with_and_without_collectives(first: P) -> None:
    run = pipeline({"data": 2}, {"a": first, "b": P(), "c": P()})
    for _ in range(2):
        assert largest_gap(run(params(), *data()), gradients(params(), *data())) < 1e-6


def test_meshes_of_different_sizes() -> None:
    meshes = [mesh(0, 2), mesh(2, 1), mesh(4, 4)]
    run = pipeline({}, num_stages=3, mesh=meshes)
    assert largest_gap(run(params(), *data()), gradients(params(), *data())) < 1e-6


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

    def trained(mesh: dict[str, int], in_shardings: Any) -> Any:
        run = sp.pipeline(step, num_stages=2, num_microbatches=4, mesh=mesh, schedule=schedule, donate_argnums=0, in_shardings=in_shardings)
        p, results = params(), []
        for number in range(3):
            p, *rest = run(p, *data(), jax.random.key(number))
            results += rest
        return p, results

    alone = trained({"stage": 2}, None)
    both = trained({"stage": 2, "data": 2}, (P(), P("data"), P("data"), P()))
    assert largest_gap(both, alone) < 1e-6
