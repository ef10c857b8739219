"""Partitions of a profile that are run as pipelines, and written as code."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardy_py as sp
from shardy_py.pipedream.partitions.division import DivisionError
from shardy_py.pipelines import PipelineError
from tests.pipelines.steps import data, largest_gap, params

SLOW = {"mode": "exact", "activation_compression": 1, "bandwidths": [1e9]}


def loss(p: Any, x: Any, y: Any) -> Any:
    """A tied table, a loop over layers, a long skip and a branch."""
    h = first = jnp.tanh(x @ p["table"])
    h, _ = jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), h, p["layers"])
    with jax.named_scope("head"):
        gate = jax.nn.sigmoid(y @ p["gate"])
        return jnp.mean(((h * gate + first) @ p["table"].T - y) ** 2)


def weights() -> dict[str, Any]:
    p = params()
    return {"table": p["a"], "gate": p["b"], "layers": jnp.stack([p["c"], p["b"], -p["a"]])}


@pytest.mark.parametrize(("by", "machines"), [("layer", 2), ("scope", 3), ("equation", 4), ("equation", 8)])
def test_a_partition_of_a_profile_runs(by: str, machines: int) -> None:
    found = sp.pipedream.partition(sp.pipedream.profile(loss, weights(), *data(), by=by), machines=[machines], straight=True, **SLOW)
    run = sp.pipeline(loss, partition=found, num_microbatches=4)
    assert largest_gap(run(weights(), *data()), jax.value_and_grad(loss)(weights(), *data())) < 1e-5
    # Also where a stage has nothing to do for a microbatch, such as one that divides the sum of all.
    assert run.schedule.stages == machines
    assert run.programs_per_stage == [2] * machines


def test_what_a_stage_holds_is_what_the_partition_says() -> None:
    graph = sp.pipedream.profile(loss, weights(), *data())
    layers = [node.id for node in graph.nodes if node.description.startswith("layer(") and node.description[6].isdigit()]
    late = graph.with_stages({node.id: int(node.id in layers[1:] or node.id > layers[-1]) for node in graph.nodes})
    rows = sp.pipeline(loss, partition=late, num_microbatches=2).report(weights(), *data()).rows
    other = graph.with_stages({node.id: int(node.id > layers[-1]) for node in graph.nodes})
    moved = sp.pipeline(loss, partition=other, num_microbatches=2).report(weights(), *data()).rows
    assert rows[0].forward_seconds < moved[0].forward_seconds
    assert rows[1].forward_seconds > moved[1].forward_seconds


def test_replicated_stages() -> None:
    found = sp.pipedream.partition(sp.pipedream.profile(loss, weights(), *data()), machines=[3], mode="exact")
    graph = found.graph.with_stages({node.id: int(i > 4) for i, node in enumerate(found.graph.nodes)})
    replicated = sp.pipedream.partition(graph, machines=[4], mode="exact", activation_compression=1, bandwidths=[1e12])
    assert max(replicated.replication) > 1
    for partition in (found, replicated):
        run = sp.pipeline(loss, partition=partition, num_microbatches=2)
        assert largest_gap(run(weights(), *data()), jax.value_and_grad(loss)(weights(), *data())) < 1e-5
    wide = sp.pipedream.partition(graph, machines=[64], mode="exact")
    assert len(sp.pipeline(loss, partition=wide, num_microbatches=2).report(weights(), *data()).rows) == len(wide.stages)


def test_a_training_step_with_a_marked_loss() -> None:
    found = sp.pipedream.partition(sp.pipedream.profile(loss, weights(), *data(), by="equation"), machines=[3], mode="exact", straight=True)

    def train(p: Any, x: Any, y: Any, fun: Any) -> Any:
        value, gradients = jax.value_and_grad(fun)(p, x, y)
        return jax.tree.map(lambda a, g: a - 0.1 * g, p, gradients), value

    run = sp.pipeline(lambda p, x, y: train(p, x, y, sp.pipedream.marked(loss, found)), num_microbatches=4)
    p = q = weights()
    for _ in range(3):
        p, got = run(p, *data())
        q, wanted = train(q, *data(), loss)
        assert largest_gap((p, got), (q, wanted)) < 1e-5
    assert run.schedule.stages == 3


def test_a_marked_function_is_the_function() -> None:
    found = sp.pipedream.partition(sp.pipedream.profile(loss, weights(), *data()), machines=[2])
    marked = sp.pipedream.marked(loss, found)
    x, y = data()
    assert largest_gap(jax.jit(jax.value_and_grad(marked))(weights(), x, y), jax.value_and_grad(loss)(weights(), x, y)) < 1e-6
    assert abs(marked(weights(), x[:3], y[:3]) - loss(weights(), x[:3], y[:3])) < 1e-6


@pytest.mark.parametrize("by", ["layer", "equation"])
def test_a_partition_is_written_as_code(tmp_path: pathlib.Path, by: str) -> None:
    found = sp.pipedream.partition(sp.pipedream.profile(loss, weights(), *data(), by=by), machines=[3], straight=True, **SLOW)
    traced, stages = sp.pipedream.divide(loss, found, weights(), *data())
    assert stages == sorted(stages)
    package = sp.pipedream.convert_jaxpr(traced, stages, tmp_path / "net", arch="net")
    assert package.num_stages == 3
    got = package.load().full_model()(*jax.tree.leaves((weights(), *data())))
    assert np.allclose(got, loss(weights(), *data()), rtol=1e-5)


def test_partitions_of_something_else() -> None:
    graph = sp.pipedream.profile(loss, weights(), *data())
    found = sp.pipedream.partition(graph, machines=[2], straight=True, **SLOW)
    with pytest.raises(DivisionError, match="the partition is not one of <lambda>"):
        sp.pipeline(lambda p, x, y: jnp.mean((x @ p["table"] - y) ** 2), partition=found, num_microbatches=2)(weights(), *data())
    with pytest.raises(PipelineError, match="the partition has 2 stages and 3 are asked for"):
        sp.pipeline(loss, partition=found, num_stages=3, num_microbatches=2)
    with pytest.raises(TypeError, match="partition is 'half'"):
        sp.pipeline(loss, partition="half", num_microbatches=2)  # pyright: ignore
    with pytest.raises(DivisionError, match="no node has a stage"):
        sp.pipedream.divide(loss, graph, weights(), *data())
    with pytest.raises(TypeError, match="not list"):
        sp.pipedream.divide(loss, [0, 1], weights(), *data())  # pyright: ignore
