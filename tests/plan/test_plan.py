from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan
from shardy_py.plan.findings import Finding
from shardy_py.plan.record import PlanError

MESH = {"data": 2, "model": 4}


def block(params, x):
    hidden = jnp.tanh(x @ params["up"])
    return hidden @ params["down"]


@pytest.fixture(scope="module")
def plan() -> Plan:
    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)  # noqa: E731
    step = sp.auto_shard(block, mesh=MESH, in_shardings=({"up": P(None, "model"), "down": None}, P("data")))
    return step.plan({"up": shape(16, 32), "down": shape(32, 16)}, shape(8, 16))


TEXT = """\
plan of block on mesh data=2, model=4
inputs  3 arrays, 1.25 KiB on each device
  params['down']  float32[32@model,16]  512 B
  params['up']    float32[16,32@model]  512 B
  x               float32[8@data,16]    256 B
outputs  1 array, 256 B on each device
  result  float32[8@data,16]  256 B
values  3 arrays on 2 source lines
  test_plan.py:{0}
    dot_general  float32[8@data,32@model]  128 B
    tanh         float32[8@data,32@model]  128 B
  test_plan.py:{1}
    dot_general  float32[8@data,16]        256 B
collectives  1, which brings 384 B to each device in a call
  384 B  all_reduce(model)  test_plan.py:{1}  float32[4,16] of %2  dot_general"""


def test_text(plan: Plan) -> None:
    line = block.__code__.co_firstlineno
    assert plan.as_text() == str(plan) == TEXT.format(line + 1, line + 2)
    assert repr(plan) == "<Plan of block on data=2, model=4: 3 inputs, 1 outputs, 0 findings, 0 notes>"


def test_values(plan: Plan) -> None:
    assert [v.kind for v in plan.values] == ["input"] * 3 + ["intermediate"] * 3 + ["output"]
    hidden = plan.values[4]
    assert (hidden.path, hidden.primitive, hidden.shape, hidden.dtype) == ("%1", "tanh", (8, 32), "float32")
    assert hidden.location.endswith(f"test_plan.py:{block.__code__.co_firstlineno + 1}")


def test_explain_goes_back_to_the_annotation(plan: Plan) -> None:
    why = plan.explain("params['down']")
    assert [(r.value, r.dim, r.axis) for r in why.chains[0]] == [
        ("params['down']", 0, "model"),
        ("%1", 1, "model"),
        ("%0", 1, "model"),
        ("params['up']", 1, "model"),
    ]
    assert why.chains[0][-1].cause == "annotation"
    assert [r.through for r in why.chains[0][:-1]] == ["dot_general", "tanh", "dot_general"]
    assert plan.explain("result", axis="model").chains == ()
    assert plan.explain("result", axis="data").chains[0][-1].value == "x"
    assert plan.explain(f"test_plan.py:{block.__code__.co_firstlineno + 1}").target == "%1"
    with pytest.raises(PlanError, match="one of params\\['down'\\]"):
        plan.explain("params")


def test_check(plan: Plan) -> None:
    assert plan.check(strict=True) == ()


def test_findings_read_well() -> None:
    finding = Finding("no-rule", "shardings stop there.", "x", "a.py:3")
    assert str(finding) == "warning: no-rule: shardings stop there. [x, a.py:3]"
    assert pickle.loads(pickle.dumps(finding)) == finding


def test_timings(plan: Plan) -> None:
    assert {"read", "propagate"} <= plan.timings.keys()
    assert plan.timings.total == pytest.approx(sum(plan.timings.values()))


def test_a_plan_of_nothing() -> None:
    plan = sp.auto_shard(lambda: (), mesh=MESH).plan()
    assert plan.as_text().splitlines()[1:] == ["inputs", "outputs"]
    assert plan.input_shardings == () == plan.output_shardings


def test_scalars_and_empty_arrays() -> None:
    plan = sp.auto_shard(lambda x, e: (x + 1, e * 2, None), mesh=MESH).plan(1.0, np.ones((0, 4)))
    assert plan.output_shardings[2] is None
    assert len(plan.outputs) == 2


def test_explaining_one_axis_or_a_value(plan: Plan) -> None:
    assert str(plan.explain(plan.values[4])) == str(plan.explain("%1"))
    assert [m.kind for m in plan.explain("x", axis="model").missing] == ["closed", "closed"]
    assert str(plan.explain("x", axis="data")).endswith("'data' on dimension 0: in_shardings of x")
    with pytest.raises(PlanError, match="unknown mesh axis 'modle'"):
        plan.explain("x", axis="modle")
