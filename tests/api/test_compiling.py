from __future__ import annotations

import dataclasses
import importlib.util
import json
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
    assert {c.location.partition("tests")[2] for c in compiled.collectives} <= {f"/api/test_compiling.py:{n}" for n in (25, 26)}
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
@pytest.mark.parametrize(("topology", "why"), [("v5e:4x4", "has 16 devices, the mesh of the plan 8"), ("v9e:2x4", "Invalid TPU")])
def test_topologies_that_do_not_fit(topology: str, why: str) -> None:
    with pytest.raises(sp.CompileError, match=why):
        decorated().plan(W, X).compile_for(topology)
