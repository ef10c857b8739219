"""Files for other tools: Perfetto, SDY text."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.opt import run_passes
from shardy_py.view.perfetto import timeline
from tests.view import plans


def slices(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("hardware", [None, "h100", "v5p"])
def test_timeline(hardware: str | None) -> None:
    plan = plans.training()
    trace = timeline(plan, hardware)
    json.dumps(trace, allow_nan=False)
    named = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    by_track = defaultdict(list)
    for event in slices(trace):
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        by_track[named[event["tid"]]].append(event)
    assert set(by_track) == {"compute", "collectives over data", "collectives over model"}
    for events in by_track.values():
        for event, following in itertools.pairwise(events):
            assert following["ts"] >= event["ts"] + event["dur"] - 1e-3  # times are written to the nanosecond
    sent = [event["name"] for name, events in by_track.items() if name != "compute" for event in events]
    assert sorted(sent) == sorted(c.kind for c in plan.collectives)


def test_live_memory_is_a_counter() -> None:
    plan = plans.training()
    trace = timeline(plan, "h100")
    counted = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    last = max(event["ts"] + event["dur"] for event in slices(trace))
    times = [event["ts"] for event in counted]
    assert times == sorted(set(times))
    assert times[-1] <= last
    sizes = {event["args"]["bytes"] for event in counted}
    assert sizes <= set(plan.memory_analysis("h100").series)
    assert len(counted) > 10


def test_timeline_of_explicit_collectives_and_of_loops() -> None:
    plan = plans.train_plan(lowering="shard_map")
    events = slices(timeline(plan, "a100"))
    assert sum(event["tid"] > 1 for event in events) == len(plan.collectives)
    assert {"dot_general", "sub"} <= {event["name"] for event in events if event["tid"] == 1}
    assert max(event["ts"] + event["dur"] for event in events) >= plan.cost_analysis("a100").path_seconds * 1e6 - 1e-3
    trips = [event["args"].get("trips") for event in slices(timeline(plans.scanned()))]
    assert 5 in trips


def test_sdy_text() -> None:
    plan = plans.training()
    lines = plan.as_sdy().splitlines()
    assert lines[1] == '  sdy.mesh @mesh = <["data"=2, "model"=4]>'
    assert '%arg1: tensor<256x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}' in lines[2]
    assert sum("stablehlo.dot_general" in line for line in lines) == sum(v.primitive == "dot_general" for v in plan.values)


def test_opt_reads_sdy_text() -> None:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ w))

    step = sp.auto_shard(loss, mesh={"data": 8}, in_shardings=(P("data"), None))
    text = run_passes(step.plan(jnp.ones((16, 8)), jnp.ones((8, 8))).as_sdy(), "sdy-propagation-pipeline")
    assert "contracting_dims = [1] x [0]" in text
    assert "applies stablehlo.add across dimensions = [0, 1]" in text


def test_files(tmp_path: pathlib.Path) -> None:
    plan = plans.training()
    plan.save_perfetto(tmp_path / "trace.json", hardware="h200")
    plan.save_sdy(tmp_path / "plan.mlir")
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["hardware"].lower() == "h200"
    assert (tmp_path / "plan.mlir").read_text() == plan.as_sdy()
    for name, write in {"t": plan.save_perfetto, "s": plan.save_sdy}.items():
        write(tmp_path / f"{name}1")
        write(tmp_path / f"{name}2")
        assert (tmp_path / f"{name}1").read_bytes() == (tmp_path / f"{name}2").read_bytes()
