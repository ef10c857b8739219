from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan
from shardy_py.testing import assert_collectives


@pytest.fixture(scope="module", params=["jit", "shard_map"])
def plan(request: pytest.FixtureRequest) -> Plan:
    """One sum over `model` of 8 x 16 numbers in halves, in a loop of three."""
    x, w = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 16), (16, 16)))

    def f(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w) @ w.T, None), x, None, length=3)[0]

    step = sp.auto_shard(f, mesh={"data": 2, "model": 4}, in_shardings=(P("data"), P(None, "model")), lowering=request.param)
    return step.plan(x, w)


def test_what_holds(plan: Plan) -> None:
    assert_collectives(plan, {"all_reduce": 1})
    assert_collectives(plan, {"all_reduce(model)": 1})
    assert_collectives(plan, {"all_reduce": "<= 1", "all_gather": 0})
    received = 3 * 2 * 3 * (4 * 16 * 4) // 4
    assert_collectives(plan, {"all_reduce": f"{received} B"})
    assert_collectives(plan, {"all_reduce": f"<{received + 1}B"})
    assert_collectives(plan, {"all_gather": 0}, others=True)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"all_reduce": 2}, "collectives of the plan of f: 1 all_reduce, expected 2\nit has\n  all_reduce"),
        ({"all_reduce(data)": 1}, r"0 all_reduce\(data\), expected 1; 1 all_reduce\(model\), expected none"),
        ({}, r"1 all_reduce\(model\), expected none"),
        ({"all_reduce": "< 1 KiB"}, r"1.12 KiB \(1152 B\) all_reduce, expected < 1 KiB"),
    ],
)
def test_what_does_not(plan: Plan, expected: dict[str, int | str], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_collectives(plan, expected)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"psum": 1}, "there is no kind of collectives 'psum'"),
        ({"all_reduce": "some"}, "expected a number"),
        ({"all_reduce": "1 xB"}, "'1 xB' is not a number of bytes"),
        ({"all_reduce": True}, "expected a number"),
        ({"all_reduce": 1.5}, "expected a number"),
        ({"all_reduce": "> 1"}, "expected a number"),
    ],
)
def test_what_means_nothing(plan: Plan, expected: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assert_collectives(plan, expected)
