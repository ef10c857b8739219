"""Figures of plans that XLA partitions: those of the region that our own partitioner makes, or of Shardy's reshards, and a remark."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.cli.report import plan_report
from shardy_py.plan.executed import remark_on
from shardy_py.plan.store.document import StoredPartition
from shardy_py.view.html.payload import payload

MESH = {"x": 2, "y": 4}


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def summed(lowering: Any) -> sp.Plan:
    step = sp.auto_shard(lambda a, b: jnp.tanh(a @ b), mesh=MESH, in_shardings=(P("x", "y"), P("y")), lowering=lowering)
    return step.plan(f32(64, 64), f32(64, 64))


def test_figures_are_those_of_the_region() -> None:
    jit, ours = summed("jit"), summed("shard_map")
    assert (jit.lowering, ours.lowering) == ("jit", "shard_map")
    assert jit.collectives == ours.collectives != ()
    assert jit.reshards == ours.reshards
    assert jit.cost_analysis("h100").step_seconds == ours.cost_analysis("h100").step_seconds
    assert jit.memory_analysis().peak_memory_in_bytes == ours.memory_analysis().peak_memory_in_bytes


def test_a_remark_says_so_everywhere() -> None:
    plan = summed("jit")
    remark = "XLA partitions: at least 12 KiB a device, as our own partitioner would move; plan.compile_for() asks XLA"
    assert remark_on(plan) == remark
    assert remark in " ".join(plan.as_text().split())
    assert payload(plan)["remark"] == plan_report(plan)["remark"] == remark
    assert remark in " ".join((plan._repr_html_() or "").split())
    ours = summed("shard_map")
    assert remark_on(ours) == payload(ours)["remark"] == ""
    assert "XLA partitions" not in ours.as_text() + (ours._repr_html_() or "")


def test_a_stored_plan_keeps_them(tmp_path: Path) -> None:
    plan = summed("jit")
    plan.save(tmp_path / "plan.json")
    loaded = sp.Plan.load(tmp_path / "plan.json")
    assert loaded.lowering == "jit"
    assert isinstance(loaded.partitioner, StoredPartition)
    assert loaded.collectives == plan.collectives
    assert loaded.as_text() == plan.as_text()


def test_equations_run_along_planned_axes() -> None:
    """As XLA runs them, and not by the fewest bytes, for which each device would multiply everything."""

    def gradient(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)

    jit, ours = (
        sp.auto_shard(gradient, mesh={"x": 8}, in_shardings=(P(), P("x")), out_shardings=P(), lowering=lowering)
        .plan(f32(256, 256), f32(64, 256))
        .cost_analysis()
        for lowering in ("jit", "shard_map")
    )
    assert 4 * jit.flops < ours.flops


def test_a_plan_without_a_region_has_the_reshards_of_shardy() -> None:
    plan = dataclasses.replace(summed("jit"), partitioner=None)
    assert plan.lowering == "jit"
    assert plan.reshards == plan.shardy_reshards
    assert [(c.kind, c.axes, c.received_bytes) for c in plan.collectives] == [("all_reduce", ("y",), 2 * 3 * 2048)]
    assert remark_on(plan) == (
        "XLA partitions: at least 12 KiB a device, as Shardy's reshards move: our own partitioner has no region of it;"
        " plan.compile_for() asks XLA"
    )
    assert plan.cost_analysis("h100").communicated_bytes == 2 * 3 * 2048
    assert plan.memory_analysis().peak_memory_in_bytes >= 3 * 2048
    assert "all_reduce(y)" in plan.as_text()


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_collectives_that_the_user_wrote(lowering: Any) -> None:
    def body(y: jax.Array) -> jax.Array:
        return lax.psum_scatter(lax.all_gather(y, "y", axis=1, tiled=True), "y", scatter_dimension=1, tiled=True)

    def fun(x: jax.Array) -> jax.Array:
        return sp.manual_computation(body, in_specs=P("x", "y"), out_specs=P("x", "y"), check_vma=False)(x)

    plan = sp.auto_shard(fun, mesh=MESH, in_shardings=P("x", "y"), lowering=lowering).plan(f32(8, 8))
    assert [c.kind for c in dataclasses.replace(plan, partitioner=None).collectives] == ["all_gather", "reduce_scatter"]
    assert [c.kind for c in plan.collectives] == ["all_gather", "reduce_scatter"]
