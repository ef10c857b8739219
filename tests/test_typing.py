"""The public surface has types: pyright in strict mode has nothing to say of a script that calls all of it."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

import shardy_py as sp

ROOT = pathlib.Path(sp.__file__).parent

SCRIPT = """
from typing import assert_type

import jax
from jax.sharding import PartitionSpec as P

import shardy_py as sp

State = dict[str, jax.Array]


@sp.auto_shard(mesh={"data": 4, "model": 2}, in_shardings=(None, P("data")), donate_argnums=0, keep_unused=True)
def step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
    y = sp.with_sharding_constraint(x @ state["w"], P("data", "model"))
    a, b = sp.sharding_group(y, y)
    return state, sp.propagation_barrier(sp.sharding_group(a)) + b


@sp.auto_shard
def bare(x: jax.Array) -> jax.Array:
    return x


@sp.named_computation
def scale(x: jax.Array) -> jax.Array:
    return x * 2


@sp.named_computation(name="shift")
def shift(x: jax.Array) -> jax.Array:
    return x + 1


@sp.manual_computation(in_specs=P("data"), out_specs=P("data"))
def local(x: jax.Array) -> jax.Array:
    return x


@sp.sharding_rule("i j -> i j")
def kernel(x: jax.Array) -> jax.Array:
    return x


class Trainer:
    @sp.auto_shard(mesh={"data": 8}, logical_axis_rules=[("batch", "data"), ("embed", None)], options=sp.Options(indivisible="drop"))
    def update(self, x: jax.Array) -> jax.Array:
        return scale(shift(local(kernel(x))))


def loss(w: State, x: jax.Array) -> jax.Array:
    with sp.stage("first"):
        return (x @ w["w"]).sum()


@sp.pipeline(num_stages=2, num_microbatches=4)
def piped(w: State, x: jax.Array) -> jax.Array:
    return loss(w, x)


def train(state: State, x: jax.Array) -> None:
    state, value = step(state, x)
    assert_type(state, State)
    assert_type(value, jax.Array)
    assert_type(bare(value), jax.Array)
    assert_type(Trainer().update(value), jax.Array)
    assert_type(scale(x), jax.Array)
    struct = jax.ShapeDtypeStruct((8, 8), "float32")
    plan = step.plan({"w": struct}, struct)
    assert_type(plan, sp.Plan)
    for finding in plan.check():
        print(finding.kind, finding.message, finding.bytes)
    print(plan.input_shardings, plan.memory_analysis("h100").peak_memory_in_bytes, plan.cost_analysis("h100")["flops"])
    print(plan.explain("x", axis="data"), plan.as_text(), step.verify(state, x).agrees)
    print(Trainer().update.plan(value).inputs[0].sharding, step.replace(mesh={"data": 2}).plan_count, step.__name__)
    print(step.trace(state, x).plan().collectives, step.lower(state, x).compile()(state, x), step.eval_shape(state, x))
    run = sp.pipeline(loss, num_stages=2, num_microbatches=4)
    print(run(state, x), piped(state, x), run.schedule.name)
    try:
        plan.save("plan.json")
    except (sp.SpecError, sp.MeshError, sp.PlanError, sp.PlanMismatchError, sp.PeerMissingError) as error:
        print(error.where, error.fix)
"""


def test_the_package_is_marked_as_typed():
    assert (ROOT / "py.typed").exists()


@pytest.mark.slow
def test_pyright_has_nothing_to_say_of_a_script(tmp_path):
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("needs pyright")
    (tmp_path / "script.py").write_text(SCRIPT)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT.parent)], "include": ["script.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "-p", str(tmp_path), "--pythonpath", sys.executable]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "0 errors" in found.stdout, found.stdout
