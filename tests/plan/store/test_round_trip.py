"""A plan that was stored and read again answers as the plan itself."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.cost.links import Lattice
from shardy_py.facade import Plan
from shardy_py.ir.printer import print_program
from shardy_py.plan.store.attributes import Elided
from shardy_py.view.html.page import page
from tests.plan.store.programs import State, f32, small, training, with_constants
from tests.random_programs import load, program_of_seed


def same(plan: Plan) -> Plan:
    """Reads a plan from its text and compares all answers."""
    text = plan.to_json()
    read = Plan.from_json(text)
    assert read.to_json() == text
    assert repr(read) == repr(plan)
    assert read.as_text() == plan.as_text()
    assert print_program(read.program) == print_program(plan.program)
    for name in ("name", "mesh", "inputs", "outputs", "planning_findings", "donation", "values", "reshards", "collectives", "findings"):
        assert getattr(read, name) == getattr(plan, name), name
    for value in plan.values[::5] if plan.log else ():
        assert str(read.explain(value.path)) == str(plan.explain(value.path))
    assert [(s.old, s.new, s.reason, s.user_priority, s.op_priority) for s in read.log] == [
        (s.old, s.new, s.reason, s.user_priority, s.op_priority) for s in plan.log
    ]
    assert str(read.cost_analysis("h100")) == str(plan.cost_analysis("h100"))
    assert str(read.memory_analysis("h100")) == str(plan.memory_analysis("h100"))
    assert not plan.diff(read)
    return read


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_a_training_step(lowering: Any) -> None:
    plan = training(lowering)
    read = same(plan)
    assert read.donation
    assert read.timings == {}
    assert read._repr_html_() == plan._repr_html_()
    assert page(read) == page(plan)
    assert json.loads(plan.to_json())["partitioner"].get("is_stand_in", False) == (lowering == "jit")
    if plan.active_partitioner is not None and read.active_partitioner is not None:
        assert str(read.active_partitioner.local_program(read)) == str(plan.active_partitioner.local_program(plan))


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    loaded = load(program_of_seed(seed))
    shardings = {"in_shardings": loaded.in_shardings, "out_shardings": loaded.out_shardings}
    plan = sp.auto_shard(loaded.program, mesh=loaded.mesh, **shardings).plan(*loaded.arguments)
    read = same(plan)
    specs = [jax.tree.map(lambda s: s.spec, tree) for tree in (read.input_shardings, plan.input_shardings)]
    assert specs[0] == specs[1]


def test_constants() -> None:
    """Long ones are left out; which of them are equal is kept."""
    text = with_constants().to_json()
    read = same(with_constants())
    values = [op.attributes["value"] for op in read.program.walk() if op.name == "sdy.constant" and op.result.type.rank == 2]
    assert [str(value) for value in values] == ["dense_resource<__elided__>"] * len(values)
    numbers = [value.number for value in values if isinstance(value, Elided)]
    assert sorted(set(numbers)) == [0, 1]
    assert "dense<[1.000000e+00, 2.000000e+00" in text


def test_without_provenance() -> None:
    plan = sp.auto_shard(lambda x: x + 1, mesh={"x": 2}, options=sp.Options(provenance=False)).plan(f32(4))
    assert same(plan).log == []


def test_trees() -> None:
    """Dicts, lists, tuples and None come back; a node of a class is a dict of its fields. A stored plan has no devices."""

    def specs(shardings):
        return jax.tree.map(lambda sharding: sharding.spec, shardings)

    plan = training()
    read = Plan.from_json(plan.to_json())
    (state, batch), kwargs = specs(plan.input_shardings)
    (read_state, read_batch), read_kwargs = specs(read.input_shardings)
    assert {type(leaf.mesh) for leaf in jax.tree.leaves(read.input_shardings)} == {jax.sharding.AbstractMesh}
    assert isinstance(state, State)
    assert {"step": state.step, "nothing": None, "params": state.params} == read_state
    assert batch == read_batch
    assert kwargs == read_kwargs
    new_state, loss = specs(read.output_shardings)
    assert new_state["params"]["up"] == specs(plan.output_shardings)[0].params["up"]
    assert loss == specs(plan.output_shardings)[1]
    plan = sp.auto_shard(lambda a, b, c: {"x": [a, b], "y": ()}, mesh={"x": 2}).plan(f32(2), f32(2), {})
    read = Plan.from_json(plan.to_json())
    assert specs(read.input_shardings) == specs(plan.input_shardings)
    assert specs(read.output_shardings) == specs(plan.output_shardings)


def test_axis_types_come_back() -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    plan = sp.auto_shard(lambda x: x + 1, mesh=mesh, in_shardings=jax.P("x")).plan(f32(8))
    (sharding,) = Plan.from_json(plan.to_json()).input_shardings
    assert sharding.mesh.axis_types == mesh.axis_types
    assert sharding.mesh.shape == mesh.shape
    assert sharding.spec == jax.P("x")


@pytest.mark.parametrize("name", ["plan.json", "plan.json.gz"])
def test_files(name: str, tmp_path: Path) -> None:
    plan = small()
    plan.save(tmp_path / name)
    assert Plan.load(tmp_path / name).as_text() == plan.as_text()
    assert Plan.load(str(tmp_path / name)).as_text() == plan.as_text()
    first = (tmp_path / name).read_bytes()
    assert (first[:2] == b"\x1f\x8b") == name.endswith(".gz")
    plan.save(tmp_path / name)
    assert (tmp_path / name).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_pickles_and_copies() -> None:
    plan = small()
    read = pickle.loads(pickle.dumps(plan))
    assert read.as_text() == plan.as_text()
    assert read.timings == plan.timings
    assert copy.copy(plan) is plan is copy.deepcopy(plan)


def test_a_text_begins_with_its_format() -> None:
    assert training("shard_map").to_json().startswith('{\n"format":"shardy_py.plan",\n"version":8,\n"digest":"')


WITHOUT_JAX = """
import importlib.abc, sys, types
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"jax", "jaxlib", "flax"}:
            raise ModuleNotFoundError(f"{name} is not to be imported here", name=name)
sys.meta_path.insert(0, Blocker())
package = types.ModuleType("shardy_py")
package.__path__ = [sys.argv[1]]
sys.modules["shardy_py"] = package
from shardy_py.facade import Plan
plan = Plan.load(sys.argv[2])
print(plan.as_text())
print(plan.explain(plan.values[-1].path))
print(len(plan.collectives), len(plan.shardy_reshards))
"""


def test_a_stored_plan_is_read_without_jax(tmp_path: Path) -> None:
    plan = training()
    plan.save(tmp_path / "plan.json.gz")
    package = str(Path(sp.__file__).parent)
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX, package, str(tmp_path / "plan.json.gz")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{plan.as_text()}\n{plan.explain(plan.values[-1].path)}\n{len(plan.collectives)} {len(plan.shardy_reshards)}\n"


def test_a_file_is_small() -> None:
    """An op of a layer that occurs again costs a few numbers."""
    params = [{"up": f32(16, 32), "down": f32(32, 16)} for _ in range(40)]

    def model(params: Any, x: Any) -> Any:
        for layer in params:
            x = x + jax.numpy.tanh(x @ layer["up"]) @ layer["down"]
        return x.sum()

    plan = sp.auto_shard(jax.grad(model), mesh={"x": 2, "y": 4}, in_shardings=(None, jax.P("x"))).plan(params, f32(8, 16))
    ops = sum(1 for _ in plan.program.walk())
    assert ops > 500
    assert len(plan.to_json()) < 200 * ops


def test_a_loop_that_never_runs() -> None:
    step = sp.auto_shard(
        lambda xs: jax.lax.scan(lambda c, x: (c + x.sum(), x * 2), 0.0, xs), mesh={"data": 2}, in_shardings=P(None, "data")
    )
    plan = step.plan(jax.ShapeDtypeStruct((0, 8), jnp.float32))
    assert "while" not in {op.name.partition(".")[2] for op in plan.program.walk()}
    assert sp.Plan.from_json(plan.to_json()).to_json() == plan.to_json()


def test_links_of_the_devices() -> None:
    lattices = {"x": Lattice((2,), (False,), 0.5), "y": Lattice((2, 2), (True, False))}
    step = sp.auto_shard(lambda x: x.sum(), mesh={"x": 2, "y": 4}, in_shardings=P("x"))
    plan = step.plan(jax.ShapeDtypeStruct((1 << 20,), jnp.float32))
    slow = dataclasses.replace(plan, lattices=lattices)
    halved, whole = (p.cost_analysis("v5e").communication_seconds for p in (slow, plan))
    assert halved is not None
    assert whole is not None
    assert halved > whole
    again = sp.Plan.from_json(slow.to_json())
    assert (again.lattices, again.cost_analysis("v5e").collectives) == (lattices, slow.cost_analysis("v5e").collectives)
