"""Gathers one trip ahead in scans: their numbers, where they are chosen, what a plan says of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.local.overlap import Overlap
from shardy_py.backends.local.passes import optimize_region
from shardy_py.backends.local.read_collectives import read_collectives
from shardy_py.cost.collectives import collective_seconds
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.links import Level, Links
from tests.backends.local.test_hoist import SIZES
from tests.backends.local.test_overlap import both, devices, weights

BOTH = ("x", "y")
SPECS = (P(None, None, BOTH), P(None, BOTH), P(BOTH))


def args(layers: int = 4) -> Any:
    return weights(layers, 8, 32), weights(layers, 32, 8), weights(512, 8)


def layer(x: Any, w: Any) -> Any:
    up, down = w
    return x + jnp.tanh(x @ up) @ down


def layers(up: Any, down: Any, x: Any, of: Callable[..., Any] = layer, reverse: bool = False) -> Any:
    return lax.scan(lambda x, w: (of(x, w), None), x, (up, down), reverse=reverse)[0]


def loss(*args: Any, of: Callable[..., Any] = layer) -> Any:
    return jnp.sum(jnp.sin(layers(*args, of=of)))


def stacking(up: Any, down: Any, x: Any) -> Any:
    """Trips that stack what is cut, what is whole, and what they gather, from the last layer to the first."""

    def body(x: Any, w: Any) -> Any:
        x = layer(x, w)
        return x, (x, jnp.sum(x), jnp.sum(w[0], 0))

    return lax.scan(body, x, (up, down), reverse=True)


CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "forward": (layers, 5),
    "backward": (jax.value_and_grad(loss, argnums=(0, 1)), 4),
    "remat": (jax.grad(functools.partial(loss, of=jax.checkpoint(layer)), argnums=(0, 1, 2)), 3),
    "gradient of a gradient": (jax.grad(lambda *args: jnp.sum(jax.grad(loss)(*args) ** 2), argnums=(0, 2)), 3),
    "vmap": (lambda up, down, x: jax.vmap(layers, in_axes=(None, None, 1), out_axes=1)(up, down, x.reshape(512, 2, 4).repeat(2, 2)), 4),
    "what trips stack": (stacking, 4),
    "uneven pieces": (lambda up, down, x: layers(up[:, :, :30], down[:, :30], x), 4),
    "microbatches": (lambda up, down, x: lax.map(lambda part: layers(up, down, part), x.reshape(256, 2, 8).swapaxes(0, 1)), 3),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str) -> None:
    f, count = CASES[name]
    kinds = both(f, SPECS, args(count), 1e-4)
    assert "gather_ahead(x,y)" in kinds, kinds


def test_two_layers_stay_as_they_are() -> None:
    """There would be no loop of two trips."""
    assert "gather_ahead(x,y)" not in both(layers, SPECS, args(2))


def test_what_waits_for_the_trip_is_not_gathered_ahead() -> None:
    def f(up: Any, down: Any, x: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            whole = lax.with_sharding_constraint(x, jax.NamedSharding(devices(), P()))
            return layer(x, w) + jnp.sort(whole, 0), None

        return lax.scan(body, x, (up, down))[0]

    assert any(kind.startswith("all_gather") for kind in both(f, SPECS, args()))


def test_a_plan_says_and_prices_it() -> None:
    """The same bytes, of which products hide those of all layers but the first."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((5, 1024, 4096), (5, 4096, 1024), (16384, 1024))]
    options = (sp.Options(overlap=overlap) for overlap in (True, False, None))
    ahead, behind, default = (sp.auto_shard(layers, mesh=devices(), in_shardings=SPECS, options=o).plan(*shapes) for o in options)
    assert [c.title for c in default.collectives] == [c.title for c in behind.collectives] == ["all_gather(x,y)"] * 2  # on CPU
    assert sum(c.call_bytes for c in ahead.collectives) == sum(c.call_bytes for c in behind.collectives)
    assert "gather_ahead(x,y)" in ahead.as_text()
    a, b = ahead.cost_analysis("v5e"), behind.cost_analysis("v5e")
    assert a.exposed_seconds is not None
    assert b.exposed_seconds is not None
    assert a.exposed_seconds.high == pytest.approx(b.exposed_seconds.high / 5, rel=0.05)
    more = ahead.memory_analysis("h100").peak_memory_in_bytes - behind.memory_analysis("h100").peak_memory_in_bytes
    assert more >= 2 * 1024 * 4096 * 2  # the next layer's parameters


@pytest.mark.parametrize(("rows", "width", "is_chosen"), [(4096, 1024, True), (8, 1024, False), (4096, 32768, False)])
def test_chosen_by_price(rows: int, width: int, is_chosen: bool) -> None:
    """Not for products that hide nothing, nor for arrays that leave no room."""
    levels = [Level(Links("torus", 4.5e10, 1e-6, (2, 2)), 4)]
    overlap = Overlap(hardware("v5e"), lambda kind, axes, size: collective_seconds(kind, size, levels), lambda axes: (0, 1, 3, 2))

    def local(x: Any, ws: Any) -> Any:
        return lax.scan(lambda x, w: (jnp.tanh(x @ lax.all_gather(w, "y", axis=1, tiled=True)), None), x, ws)[0]

    mesh = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    region = jax.shard_map(local, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    shapes = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((rows, width), (8, width, width // 4)))
    (eqn,) = jax.make_jaxpr(region)(*shapes).eqns
    optimized = read_collectives(optimize_region(eqn.params["jaxpr"], SIZES, "tpu", overlap=overlap), SIZES)
    gathers = sum(c.kind == "all_gather" for c in optimized)
    assert (gathers == 4) == is_chosen  # in front of the loop, in both of its trips, and in the odd one


def test_a_key_per_trip() -> None:
    def f(up: Any, down: Any, x: Any) -> Any:
        def body(x: Any, w: Any) -> Any:
            return layer(x, w), jax.random.key(0)

        return jax.random.key_data(lax.scan(body, x, (up, down))[1])

    np.testing.assert_array_equal(
        jax.jit(f)(*args()), sp.auto_shard(f, mesh=devices(), in_shardings=SPECS, options=sp.Options(overlap=True))(*args())
    )
