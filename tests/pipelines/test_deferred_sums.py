"""Sums over devices wait until after the last microbatch."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.pipelines.steps import data, largest_gap, loss, params


def step(p: Any, x: Any, y: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(p, x, y)
    return value, grads, jax.tree.map(lambda a, g: a - 0.1 * g, p, grads)


def collectives(run: Any) -> dict[tuple[str, int], int]:
    """How many collectives the compiled programs of the stages have."""
    pattern = re.compile(r" (?:all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(")
    steps = run._runner.steps.items()
    return {key: len(pattern.findall(one.call.as_text())) for key, one in steps}


@pytest.mark.parametrize("inside", [{"data": 2}, {"data": 4}, {"replica": 2, "data": 2}], ids=str)
def test_gradients_are_added_up_once(inside: dict[str, int]) -> None:
    shardings = (P(), P(tuple(inside)), P(tuple(inside)))
    run = sp.pipeline(step, num_stages=2, num_microbatches=4, mesh={"stage": 2, **inside}, in_shardings=shardings)
    for _ in range(2):
        assert largest_gap(run(params(), *data()), step(params(), *data())) < 1e-6
    assert set(collectives(run).values()) == {0}
    assert any("all-reduce" in call.as_text() for call in run._runner.calls)


def test_what_stays_sharded_is_no_sum() -> None:
    """Of axes over which examples are not sharded none waits; gradients that are sharded over one that they are come out so."""
    shardings = ({"a": P(None, "model"), "b": P("model"), "c": P("data")}, P("data"), P("data"))
    mesh = {"stage": 2, "data": 2, "model": 2}
    run = sp.pipeline(step, num_stages=2, num_microbatches=4, mesh=mesh, in_shardings=shardings)
    assert largest_gap(run(params(), *data()), step(params(), *data())) < 1e-6
    stands = [stand for program in run._runner.programs.values() for v in program.sums if (stand := program.stands.get(v))]
    assert stands


def test_sums_that_another_stage_reads_do_not_wait() -> None:
    def tied(p: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] @ p["a"] - y) ** 2))(p)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        return value, norm, jax.tree.map(lambda a, g: a - 0.1 * g / norm, p, grads)

    p = {name: params()[name] for name in "ab"}
    run = sp.pipeline(tied, num_stages=2, num_microbatches=4, mesh={"stage": 2, "data": 2})
    assert largest_gap(run(p, *data()), tied(p, *data())) < 1e-5


def test_stages_of_different_sizes() -> None:
    devices = np.asarray(jax.devices())
    meshes = [Mesh(devices[:4], ("data",)), Mesh(devices[4:5], ("data",))]
    run = sp.pipeline(step, num_stages=2, num_microbatches=4, mesh=meshes)
    assert largest_gap(run(params(), *data()), step(params(), *data())) < 1e-6
    assert set(collectives(run).values()) == {0}
