"""The collectives of a plan."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import PartitionSpec

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in
from shardy_py.backends.local.read_collectives import spelled
from shardy_py.plan.collectives import lines

P = PartitionSpec


def layers(x: Any, ws: Any) -> Any:
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]


ARGS = (np.ones((8, 16), np.float32), np.ones((3, 16, 16), np.float32))


def test_collectives_of_a_loop_have_trips_and_lines() -> None:
    step = sp.auto_shard(layers, mesh={"x": 2, "y": 4}, in_shardings=(P("x"), P(None, "y")), lowering="shard_map")
    (collective,) = step.plan(*ARGS).collectives
    line = layers.__code__.co_firstlineno + 1
    assert (collective.kind, collective.axes, collective.group_size, collective.trips, collective.dtype) == (
        "reduce_scatter",
        ("y",),
        4,
        3,
        "float32",
    )
    assert collective.location.endswith(f"test_read_collectives.py:{line}")


def test_collectives_are_those_that_xla_makes() -> None:
    step = sp.auto_shard(layers, mesh={"x": 2, "y": 4}, in_shardings=(P("x"), P(None, "y")))
    (planned,) = step.plan(*ARGS).collectives
    (made,) = collectives_in(step.lower(*ARGS).compile().as_text())
    assert (planned.kind, planned.received_bytes, planned.trips) == (made.kind, made.received_bytes, made.trips)


def test_trips_of_a_while_loop_are_unknown() -> None:
    def fun(x: Any) -> Any:
        return jax.lax.while_loop(lambda v: v.sum() < 100, lambda v: v + v.sum(), x)

    plan = sp.auto_shard(fun, mesh={"x": 8}, in_shardings=P("x"), lowering="shard_map").plan(ARGS[0])
    assert [(c.kind, c.trips) for c in plan.collectives] == [("all_reduce", None)] * 2
    assert "each trip" in lines(plan.collectives)[0]


def test_a_plan_is_partitioned_once() -> None:
    step = sp.auto_shard(lambda x: x.sum(0), mesh={"x": 8}, in_shardings=P("x"), lowering="shard_map")
    traced = step.trace(ARGS[0])
    (reduce,) = traced.plan().collectives
    before = dict(traced.plan().timings)["partition"]
    traced.lower()
    assert dict(traced.plan().timings)["partition"] == before
    assert (reduce.kind, reduce.axes, reduce.operand_bytes) == ("all_reduce", ("x",), 64)


def test_parts_of_axes_are_written_as_the_user_names_them() -> None:
    spelling = {"x_0": "x:(1)2", "x_1": "x:(2)4"}
    assert spelled(("x_0", "x_1", "y"), spelling) == ("x", "y")
    assert spelled(("x_1", "y"), spelling) == ("x:(2)4", "y")
    assert spelled(("x_1", "x_0"), spelling) == ("x:(2)4", "x:(1)2")
