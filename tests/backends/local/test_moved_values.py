"""Collectives of a region name the values of the plan that they move."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.backends.test_collectives_of_plan import gpt
from tests.plan.test_explicit import MESH, PROGRAMS, annotated, f32
from tests.zoo import ZOO, programs

SIZES = {1, 2, 4, 8}
"""Numbers of shards on the mesh."""


def planned(function: Callable[..., Any], args: Any, specs: Any, **options: Any) -> sp.Plan:
    return sp.auto_shard(function, mesh=MESH, in_shardings=specs, lowering="shard_map", **options).plan(*args)


def is_piece(local: tuple[int, ...], whole: tuple[int, ...], kind: str) -> bool:
    """Whether an array may be a device's part of another one; of halos and of running sums it is a part of that."""
    if len(local) != len(whole):
        return False
    if kind in ("collective_permute", "all_gather"):
        return all(part <= size for part, size in zip(local, whole))
    return all(any(part == -(-size // k) for k in SIZES) for part, size in zip(local, whole))


def sent_types(dtype: str) -> set[str]:
    """Types as which elements are sent: their own, those of their bits, and that of sums."""
    bits = 8 * jnp.dtype(dtype).itemsize
    return {dtype, f"int{bits}", f"uint{bits}", *(["float32"] if dtype == "bfloat16" else [])}


def check_names(plan: sp.Plan) -> None:
    values = {value.path: value for value in plan.values}
    unnamed = []
    for reshard in plan.reshards:
        names = reshard.value.split(", ")
        if any(name not in values and not re.fullmatch(r"argument \d+ of \w+", name) for name in names):
            unnamed.append(str(reshard))
        if reshard.value in values:
            value = values[reshard.value]
            local, whole, kind = reshard.type.shape, value.shape, reshard.collectives[0].kind
            # Of a scan's operand a slice moves, and sums of all trips move as a stack behind it.
            assert any(is_piece(*pair, kind) for pair in ((local, whole), (local, whole[1:]), (local[1:], whole))), (
                str(reshard),
                str(value),
            )
            assert reshard.type.dtype in sent_types(value.dtype)
    assert len(unnamed) <= 0.05 * len(plan.reshards), unnamed


@pytest.mark.parametrize("name", PROGRAMS)
def test_reshards_name_values(name: str) -> None:
    plan = planned(*PROGRAMS[name])
    assert plan.reshards
    check_names(plan)


@pytest.mark.parametrize(("scanned", "fully_sharded"), [*itertools.product([False, True], repeat=2)])
def test_reshards_of_a_transformer_name_values(scanned: bool, fully_sharded: bool) -> None:
    check_names(planned(*gpt(scanned, fully_sharded)))


@pytest.mark.slow
@pytest.mark.skipif(not ZOO.exists(), reason="the programs are not there")
def test_reshards_of_many_programs_name_values() -> None:
    for build in programs().values():
        function, args = build()
        leaves, tree = jax.tree.flatten(args)
        check_names(planned(function, args, jax.tree.unflatten(tree, [annotated(leaf, i) for i, leaf in enumerate(leaves)])))


def test_a_sum_is_of_the_product_that_it_completes() -> None:
    def forward(params: Any, x: Any) -> Any:
        return jnp.tanh(x @ params["up"]) @ params["down"]

    specs = {"up": P(None, "y"), "down": P("y")}
    plan = planned(forward, ({"up": f32(16, 32), "down": f32(32, 16)}, f32(8, 16)), (specs, P("x")))
    (total,) = plan.reshards
    assert [(value.primitive, value.shape) for value in plan.values if value.path == total.value] == [("dot_general", (8, 16))]
    assert total.reason == "reduction over y"
    assert plan.explain(total.value).target == total.value


def test_both_sides_of_a_constraint_are_those_of_the_value() -> None:
    def fun(x: Any) -> Any:
        return sp.with_sharding_constraint(sp.with_sharding_constraint(jnp.sin(x), P("y")), P(None, "y"))

    plan = planned(fun, (f32(16, 32),), P("y"))
    (exchange,) = plan.reshards
    assert (exchange.collectives[0].kind, exchange.type.shape) == ("all_to_all", (4, 32))
    assert [value.primitive for value in plan.values if value.path == exchange.value] == ["sharding_constraint"]


def test_small_sums_are_of_the_reductions_that_they_complete() -> None:
    plan = planned(lambda x: (jnp.sin(x).sum(), jnp.cos(x).sum()), (f32(16, 8),), P("x"))
    values = {value.path: value for value in plan.values}
    assert [values[total.value].primitive for total in plan.reshards] == ["reduce_sum", "reduce_sum"]


def test_a_sum_behind_a_loop_is_of_the_gradient_inside() -> None:
    def fun(w: Any, xs: Any) -> Any:
        grad = jax.grad(lambda w, x: jnp.square(jnp.tanh(x @ w)).sum())
        return lax.scan(lambda total, x: (total + grad(w, x), None), jnp.zeros_like(w), xs)[0]

    plan = planned(fun, (f32(16, 8), f32(4, 8, 16)), (None, P(None, "x")))
    (total,) = plan.reshards
    (value,) = (value for value in plan.values if value.path == total.value)
    assert (total.trips, value.shape, value.depth > 0) == (1, (16, 8), True)


def test_alike_layers_have_names_and_modules_of_their_own() -> None:
    def fun(x: Any, ws: Any) -> Any:
        for i, (up, down) in enumerate(ws):
            with jax.named_scope(f"layer_{i}"):
                x = jnp.tanh(x @ up) @ down
        return x

    half = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)  # noqa: E731
    layers = [(half(64, 64), half(64, 64))] * 2
    plan = planned(fun, (half(64, 64), layers), (P("x"), [(P(None, "y"), P("y"))] * 2))
    modules = {value.path: value.module for value in plan.values}
    assert [modules[c.value] for c in plan.collectives] == ["layer_0", "layer_1"]
    assert [c.module for c in plan.collectives] == ["layer_0", "layer_1"]


def test_what_is_lowered_has_no_numbers() -> None:
    def fun(x: Any, w: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0]

    step = sp.auto_shard(fun, mesh=MESH, in_shardings=(P("x"), P("y")), lowering="shard_map")
    args = np.ones((8, 16), np.float32), np.ones((16, 16), np.float32)
    assert step.plan(*args).collectives
    assert "region_movement=" not in step.lower(*args).as_text(debug_info=True)
