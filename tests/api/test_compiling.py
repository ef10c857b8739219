from __future__ import annotations

import dataclasses
import importlib.util
import json
from html import escape
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan
from shardy_py.plan.compiled import CompiledProgram
from shardy_py.testing import assert_fits
from shardy_py.view.html.payload import payload

MESH = {"data": 2, "model": 4}
X, W = jax.ShapeDtypeStruct((64, 128), jnp.float32), jax.ShapeDtypeStruct((128, 64), jnp.float32)


def update(w: Any, x: Any) -> Any:
    scattered, _ = lax.scan(lambda w, _: (w - x.T @ jnp.tanh(x @ w), None), w, None, length=3)
    return scattered


def decorated(lowering: str = "auto", **changes: Any) -> Any:
    arguments = {"mesh": MESH, "in_shardings": (P("model"), P("data")), "out_shardings": P("model"), "donate_argnums": 0}
    return sp.auto_shard(update, lowering=lowering, **(arguments | changes))


@pytest.fixture(scope="module")
def compiled() -> CompiledProgram:
    return decorated().plan(W, X).compile_for()


def test_memory_is_that_of_the_program_that_runs(compiled: CompiledProgram) -> None:
    figures = decorated().lower(W, X).compile().memory_analysis()
    memory = compiled.memory
    assert memory is not None
    for name in ("argument_size_in_bytes", "output_size_in_bytes", "alias_size_in_bytes", "temp_size_in_bytes"):
        assert getattr(memory, name) == getattr(figures, name)
    assert memory.alias_size_in_bytes == memory.output_size_in_bytes == 128 * 64 * 4 // 4
    assert (compiled.fits, memory.fits, compiled.target) == (True, None, "8 cpu devices")


def test_collectives_are_those_of_the_plan_with_lines(compiled: CompiledProgram) -> None:
    plan = decorated().plan(W, X)
    assert compiled.planned == compiled.received == {c.kind: compiled.received[c.kind] for c in plan.collectives}
    assert sum(compiled.received.values()) == sum(c.call_bytes for c in plan.collectives) > 0
    assert {c.location.partition("tests")[2] for c in compiled.collectives} <= {f"/api/test_compiling.py:{n}" for n in (27, 28)}
    assert any(c.trips == 3 for c in compiled.collectives)
    assert (compiled.problems, compiled.differences) == ((), [])


def test_text_and_data(compiled: CompiledProgram) -> None:
    lines = str(compiled).splitlines()
    assert lines[0].startswith("update for 8 cpu devices, compiled in ")
    assert lines[1] == "no problems"
    assert any(line.split() == ["planned", "compiled"] for line in lines)
    data = json.loads(compiled.to_json())
    assert (data["name"], data["fits"], data["problems"]) == ("update", True, [])
    assert compiled.text.startswith("HloModule")


def test_a_plan_shows_what_its_compiler_said() -> None:
    plan, other = decorated().plan(W, X), decorated(in_shardings=(P(), P("data"))).plan(W, X)
    assert "compiled" not in f"{plan}{plan.diff(other)}"
    before, after = plan.compile_for(hardware="v5e"), other.compile_for()
    assert before.headline.startswith("peak ")
    assert before.headline.endswith(" planned; no problems")
    line = f"compiled for 8 cpu devices: {before.headline}"
    assert line in plan.as_text(width=200)
    assert escape(line) in plan._repr_html_().replace("\n  ", " ")
    figures = dict(payload(plan)["figures"])
    assert figures["compiled for 8 cpu devices"] == before.headline
    difference = plan.diff(other).as_text().splitlines()
    assert f"compiled - for 8 cpu devices: {before.headline}" in difference
    assert f"compiled + for 8 cpu devices: {after.headline}" in difference
    assert Plan.from_json(plan.to_json()).as_text() == decorated().plan(W, X).as_text()


def test_what_xla_partitions_has_no_planned_collectives() -> None:
    compiled = decorated("jit").plan(W, X).compile_for()
    assert (compiled.planned, compiled.problems) == (None, ())
    assert compiled.received


def test_a_plan_for_another_platform_is_made_again() -> None:
    plan = decorated(options=sp.Options(platform="tpu")).plan(W, X)
    assert (plan.platform, plan.compile_for().plan.platform) == ("tpu", "cpu")


def test_what_ci_stops_for(compiled: CompiledProgram) -> None:
    assert compiled.memory is not None
    (small,) = dataclasses.replace(compiled, memory=dataclasses.replace(compiled.memory, hardware="toy", hardware_bytes=1000)).problems
    assert small.startswith("does not fit: 1000 B of toy: ")
    refused = dataclasses.replace(compiled, memory=None, collectives=(), refusal="Used 30G of 15.75G hbm")
    assert refused.problems == ("does not fit: Used 30G of 15.75G hbm",)
    assert str(refused).splitlines() == ["update for 8 cpu devices, refused by the compiler", f"problem  {refused.problems[0]}"]
    (kept,) = dataclasses.replace(compiled, taken=frozenset()).problems
    assert kept == "donation not taken: w was to become result"


def test_a_reduce_scatter_that_became_an_all_reduce() -> None:
    step = sp.auto_shard(lambda x, w: x @ w, mesh=MESH, in_shardings=(P(None, "model"), P("model")), out_shardings=P("model"))
    compiled = step.plan(X, W).compile_for()
    assert compiled.problems == ()
    summed = tuple(dataclasses.replace(c, kind="all_reduce") for c in compiled.collectives)
    became, received = dataclasses.replace(compiled, collectives=summed).problems
    assert became == "reduce_scatter became all_reduce: 12 KiB less of one, 24 KiB more of the other"
    assert received == "a device receives 24 KiB in a call, 12 KiB were planned"
    text = str(dataclasses.replace(compiled, collectives=summed))
    assert "differences from the plan\n  planned, not compiled: 1 reduce_scatter of 16384 B among 4" in text


def test_what_cannot_be_compiled() -> None:
    plan = decorated().plan(W, X)
    with pytest.raises(sp.ShardyError, match="was read from a file"):
        Plan.from_json(plan.to_json()).compile_for()
    with pytest.raises(sp.CompileError, match="'8xh100' does not name a TPU topology"):
        plan.compile_for("8xh100")
    with pytest.raises(sp.CompileError, match="8 does not name a TPU topology"):
        plan.compile_for(8)
    with pytest.raises(sp.CompileError, match="v5e:4x4 has 16 devices, the mesh of the plan 8"):
        plan.compile_for("v5e:4x4")
    with pytest.raises(sp.CompileError, match="JAX cannot arrange data=8, model=8 on v5p:4x4x4"):
        decorated(mesh={"data": 8, "model": 8}).plan(W, X).compile_for("v5p:4x4x4")
    with pytest.raises(sp.MeshError, match="an AbstractMesh can be planned for"):
        decorated(mesh=AbstractMesh((2, 4), ("data", "model"))).plan(W, X).compile_for()


def test_a_compiler_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(sp.CompileError, match=r'pip install "shardy_py\[tpu\]"'):
        decorated().plan(W, X).compile_for("v5e:2x4")


def test_a_compiler_that_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(sp.CompileError, match="its process ended with status 1"):
        decorated().plan(W, X).compile_for("v5e:2x4")


def test_callbacks_are_not_lowered_for_tpus_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(x: Any) -> Any:
        jax.debug.print("{}", x)
        return x

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    with pytest.raises(sp.CompileError, match=r"leave out callbacks such as jax\.debug\.print"):
        sp.auto_shard(shown, mesh=MESH).plan(X).compile_for("v5e:2x4")


def test_assert_fits() -> None:
    plan = decorated().plan(W, X)
    assert_fits(plan, hardware="v5e")
    with pytest.raises(AssertionError, match="does not fit: 1000 B of the given memory: "):
        assert_fits(plan, hardware=1000)


def gathered(mesh: Any) -> Plan:
    wide, x = jax.ShapeDtypeStruct((2048, 8192), jnp.bfloat16), jax.ShapeDtypeStruct((2, 4096, 2048), jnp.bfloat16)
    shardings = {"in_shardings": (P("data", "model"), P(None, "model")), "out_shardings": P("data", None, "model")}
    return sp.auto_shard(lambda x, w: x @ w, mesh=mesh, **shardings).plan(x, wide)


def test_a_mesh_of_chips_that_are_elsewhere() -> None:
    """Its devices lie as JAX places them: groups of `model` on squares of chips, pairs of `data` across their middle, half a link each."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), devices=sp.topology("v5e:2x4"))
    assert [chip.coords for chip in mesh.devices.flat][:4] == [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
    plan = decorated(mesh=mesh).plan(W, X)
    assert plan.platform == "tpu"
    links = {axis: levels[0].links for axis, levels in plan.cost_analysis("v5e").links.items()}
    assert (links["model"].dims, links["data"].dims, links["data"].bandwidth) == ((2, 2), (2,), 4.5e10 / 2)
    assert [c.overlapped for c in gathered(mesh).collectives] == [True] * 6
    with pytest.raises(sp.MeshError, match="the devices of the mesh are not here: they are chips of v5e:2x4"):
        decorated(mesh=mesh)(jnp.ones((128, 64)), jnp.ones((64, 128)))
    with pytest.raises(sp.CompileError, match="'v9e:2x4' does not name a TPU topology"):
        sp.topology("v9e:2x4")
    assert [len(sp.topology(name)) for name in ("v5p:2x2x2", "tpu7x:2x2x1", "v6e:4x4")] == [8, 8, 16]


needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu, the compiler for TPUs, is not installed")


@pytest.mark.slow
@needs_libtpu
@pytest.mark.parametrize("devices", [True, False])
def test_tpus_that_are_elsewhere(devices: bool) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2) if devices else MESH
    compiled = decorated(mesh=mesh).plan(W, X).compile_for("v5e:2x4")
    assert (compiled.plan.platform, compiled.target, compiled.memory.hardware_bytes) == ("tpu", "v5e:2x4", 16 << 30)
    assert compiled.problems == ()
    assert compiled.received == compiled.planned
    assert any("test_compiling.py:" in line for line in compiled.cycles)


@pytest.mark.slow
@needs_libtpu
def test_what_does_not_fit_on_tpus() -> None:
    large = jax.ShapeDtypeStruct((1 << 17, 1 << 17), jnp.bfloat16)
    compiled = sp.auto_shard(lambda x: x @ x.T, mesh=MESH, in_shardings=P(), out_shardings=P()).plan(large).compile_for("v5e:2x4")
    assert not compiled.fits
    assert "RESOURCE_EXHAUSTED" in compiled.refusal


@pytest.mark.slow
@needs_libtpu
def test_products_overlap_as_on_the_devices_themselves() -> None:
    """The mesh has no devices; those of the topology, in JAX's order, say how products and collectives overlap."""
    compiled = gathered(MESH).compile_for("v5e:2x4")
    assert [c.overlapped for c in compiled.plan.collectives] == [True] * 6
    assert compiled.hidden_bytes == sum(compiled.received.values())
