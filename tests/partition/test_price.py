"""Prices summed over the ops of a plan, and over what moves between them, against the cost of the plan and of its region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.traffic import Access, Fusion
from shardy_py.dialect import AxisRef, Mesh
from shardy_py.ir import Program, TensorType, Value
from shardy_py.partition.layouts import Layout, layout_of, parts
from shardy_py.partition.op import CHEAP, OpSpec, spec_of
from shardy_py.partition.price import Machine, Move
from shardy_py.partition.tables import PriceTable, price_table

MESH = {"x": 2, "y": 4}


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def mlp(params: Any, x: jax.Array) -> Any:
    def loss(params: Any) -> jax.Array:
        h = jnp.tanh(x @ params["in"])
        return jnp.mean((h @ params["out"] - x) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def attention(x: jax.Array, w: jax.Array) -> jax.Array:
    query, key, value = jnp.einsum("btd,cdhk->cbhtk", x, w)
    scores = jnp.exp(jnp.einsum("bhtk,bhsk->bhts", query, key))
    scores = scores / jnp.sum(scores, axis=-1, keepdims=True)
    return jnp.einsum("bhts,bhsk->bthk", scores, value).reshape(x.shape)


def image(x: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.tanh(lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))) * 2


def rows(x: jax.Array, at: jax.Array, update: jax.Array) -> Any:
    joined = lax.concatenate([x, lax.slice(x, (0, 0), (16, 16)) * 2], 0)
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    added = lax.scatter_add(x, at, update, numbers)
    return added, lax.slice(joined, (2, 0), (66, 16)) @ update.T, lax.reduce_window(x, 0.0, lax.add, (3, 1), (1, 1), "SAME")


def ordered(x: jax.Array) -> Any:
    places = lax.broadcasted_iota(jnp.int32, x.shape, 0)
    return lax.sort((x, places), dimension=0, num_keys=1), jnp.tanh(x) * places


PARAMS = {"in": f32(64, 128), "out": f32(128, 64)}
MEGATRON = {"in": P(None, "y"), "out": P("y")}
SHARDED = {"in": P(("x", "y")), "out": P(("x", "y"))}
ROWS = (f32(64, 16), jax.ShapeDtypeStruct((16, 1), jnp.int32), f32(16, 16))
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "data parallel": (mlp, (PARAMS, f32(32, 64)), (None, P("x"))),
    "by columns and rows": (mlp, (PARAMS, f32(32, 64)), (MEGATRON, P("x"))),
    "parameters over all devices": (mlp, (PARAMS, f32(32, 64)), (SHARDED, P("x"))),
    "features of the input": (mlp, (PARAMS, f32(32, 64)), (MEGATRON, P("x", "y"))),
    "features of heads": (attention, (f32(8, 16, 64), f32(3, 64, 8, 8)), (P("x"), P(None, None, None, "y"))),
    "length": (attention, (f32(8, 16, 64), f32(3, 64, 8, 8)), (P("x", "y"), P(None, "y"))),
    "height and features": (image, (f32(8, 16, 16, 8), f32(3, 3, 8, 16)), (P("x", "y"), P(None, None, None, "x"))),
    "channels": (image, (f32(8, 16, 16, 8), f32(3, 3, 8, 16)), (P("x", None, None, "y"), P(None, None, "y"))),
    "rows": (rows, ROWS, (P("y"), None, P("x"))),
    "order": (ordered, (f32(64, 16),), (P("x", "y"),)),
    "uneven rows": (rows, ROWS, (P(None, "y"), P("x"), P("y"))),
}


def price(op: OpSpec, layouts: Sequence[Layout], machine: Machine, memory: Sequence[Access]) -> PriceTable:
    """The prices of an op under one joint layout."""
    return price_table(op, [(layout,) for layout in layouts], np.zeros((len(layouts), 1), int), machine, memory)


def summed(program: Program, machine: Machine) -> float:
    """Seconds of a program without loops and calls; a value moves once to each layout."""
    body, mesh = program.main.body, machine.mesh
    fusion = Fusion(body)
    seconds = 0.0
    at_hand: set[tuple[Value, Layout]] = set()

    def layout(value: Value) -> Layout:
        return layout_of(value.sharding, value.type.rank, mesh)

    def move(value: Value, target: Layout, cost_seconds: float) -> None:
        nonlocal seconds
        if (value, target) not in at_hand:
            at_hand.add((value, target))
            seconds += cost_seconds

    for op in body.ops[:-1]:
        assert not op.regions
        if op.name in CHEAP:
            continue
        one = price(spec_of(op), [layout(v) for v in (*op.operands, *op.results)], machine, fusion.accesses(op))
        for value, reads in zip(op.operands, one.reads):
            if reads is not None:
                move(value, reads.targets[0], sum(each for *_, each in reads.moves))
        seconds += float(one.seconds[0])
    for value, sharding in zip(body.terminator.operands, program.main.result_shardings):
        target = layout_of(sharding, value.type.rank, mesh)
        move(value, target, machine.settle(value.type, layout(value), target))
    return seconds


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("on", ["v5e", "h100"])
def test_a_region_takes_no_longer(case: str, on: str) -> None:
    function, args, specs = CASES[case]
    plan = sp.auto_shard(function, mesh=MESH, in_shardings=specs, lowering="shard_map").plan(*args)
    run = plan.cost_analysis(on, calibrated=False)  # kernels of so small programs take a fixed time, and slices of a region are some
    assert run.communicated_bytes
    assert run.step_seconds is not None
    seconds = summed(plan.program, Machine(plan.mesh, hardware(on).with_figures(calibration=None)))
    assert seconds >= 0.95 * run.step_seconds.high  # a region computes halos twice


def test_reduce_scatters_of_a_planned_region_are_over_one_axis_after_the_other_on_tpus() -> None:
    mesh, type_ = Mesh([("x", 4), ("y", 2)]), TensorType((64, 8), "float32")
    axes = tuple(part for name in "xy" for part in parts(AxisRef(name), mesh))
    for chip in ("v5e", "h100"):
        machine = Machine(mesh, hardware(chip))
        one = machine.collectives([Move("reduce_scatter", axes, 64 * 8)], "float32")
        assert (machine.settle(type_, ((), ()), (axes, ()), axes) > one) == (chip == "v5e")


def test_links_count() -> None:
    mesh = Mesh([("x", 2), ("y", 4)])
    near, far = Machine(mesh, hardware("h100")), Machine(mesh, hardware("h100"), {"y": "network"})
    type_ = sp.auto_shard(lambda x: x + 1, mesh=MESH).plan(f32(64, 64)).program.main.body.arguments[0].type
    y = (AxisRef("y", 1, 2), AxisRef("y", 2, 2))
    gather, slow = (machine.settle(type_, (y, ()), ((), ())) for machine in (near, far))
    assert gather < slow
    assert near.settle(type_, ((), ()), (y, ())) == 0.0
