from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan
from shardy_py.testing import assert_sharding

MESH = {"data": 2, "model": 4}


@pytest.fixture(scope="module")
def plan() -> Plan:
    x, w = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 16), (16, 32)))
    return sp.auto_shard(lambda x, w: jnp.tanh(x @ w), mesh=MESH, in_shardings=(P("data"), P(None, "model"))).plan(x, w)


def test_specs_that_hold(plan: Plan) -> None:
    assert_sharding(plan, "x", P("data"))
    assert_sharding(plan, "x", P(("data",), None))
    assert_sharding(plan, "w", P(P.UNCONSTRAINED, "model"))
    assert_sharding(plan, "result", "float32[8@data, 32@model]")
    assert_sharding(plan, "%0", plan.outputs[0].sharding)
    assert_sharding(plan, "result", plan.output_shardings)
    assert_sharding(Plan.from_json(plan.to_json()), "result", P("data", "model"))


@pytest.mark.parametrize("spec", [P(), None, P("model"), P("data", "model"), P(None, "data"), "float32[8,16]"])
def test_specs_that_do_not(plan: Plan, spec: object) -> None:
    with pytest.raises(AssertionError, match=r"^x is float32\[8@data,16\], expected float32\[8.*\]\n  in the plan of <lambda>\n  x: "):
        assert_sharding(plan, "x", spec)


def test_the_message_says_why(plan: Plan) -> None:
    with pytest.raises(AssertionError, match=r"'model' on dimension 1: in_shardings of w") as caught:
        assert_sharding(plan, "result", P("data", None))
    assert "expected float32[8@data,32]" in str(caught.value)


def test_without_provenance() -> None:
    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    plan = sp.auto_shard(jnp.sin, mesh=MESH, in_shardings=P("data"), options=sp.Options(provenance=False)).plan(x)
    with pytest.raises(AssertionError, match=r"^x is float32\[8@data\], expected float32\[8\]\n  in the plan of sin$"):
        assert_sharding(plan, "x", P())


def test_arrays() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = jax.device_put(np.ones((8, 16), np.float32), NamedSharding(mesh, P("data")))
    assert_sharding(x, "", P("data"))
    assert_sharding({"w": [x, jnp.ones(3)]}, "['w'][0]", "float32[8@data,16]")
    assert_sharding({"w": [x, jnp.ones(3)]}, "['w'][1]", P())
    with pytest.raises(
        AssertionError, match=r"\['w'\] is float32\[8@data,16\], expected float32\[8,16@model\]\n  its sharding is NamedSharding"
    ):
        assert_sharding({"w": x}, "['w']", P(None, "model"))


def test_what_cannot_be_asked(plan: Plan) -> None:
    with pytest.raises(sp.ShardyError, match="has no value y\n  fix: one of"):
        assert_sharding(plan, "y", P())
    with pytest.raises(sp.ShardyError, match="the tree has no leaf"):
        assert_sharding({"w": jnp.ones(3)}, "w", P())
    with pytest.raises(sp.ShardyError, match="is for 3 dimensions, x has 2"):
        assert_sharding(plan, "x", P(None, None, "data"))
    with pytest.raises(TypeError, match="expected a PartitionSpec"):
        assert_sharding(plan, "x", 3)
    with pytest.raises(TypeError, match="has no sharding"):
        assert_sharding({"w": 3}, "['w']", P())
