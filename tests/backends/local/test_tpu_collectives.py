"""Collectives in the forms that the compiler for TPUs keeps.

Sums are scattered over one axis after the other, those of large arrays over all at once; short vectors are exchanged.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.local.passes import optimize_region
from shardy_py.backends.local.read_collectives import read_collectives
from tests.backends.local.test_hoist import SIZES, changed


def numbered(shape: tuple[int, ...]) -> jax.Array:
    return jnp.arange(1.0 * math.prod(shape)).reshape(shape)


X = numbered((16, 24))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("over", ["x", ("x", "y"), ("y", "x")], ids=str)
@pytest.mark.parametrize("looped", [False, True])
def test_one_axis_at_a_time(dim: int, over: Any, looped: bool) -> None:
    def scatter(x: Any) -> Any:
        return lax.psum_scatter(jnp.sin(x), over, scatter_dimension=dim, tiled=True)

    def local(x: Any) -> Any:
        part = lax.scan(lambda c, y: (c, scatter(y)), 0, x[None] * jnp.ones((2, 1, 1)))[1][0] if looped else scatter(x)
        return [lax.all_gather(part, over, axis=dim, tiled=True)]

    bodies: list[Any] = []

    def run(body: Any) -> Any:
        bodies.append(optimize_region(body, SIZES, "tpu"))
        return bodies[-1]

    _, before, after = changed(local, run, (X,), (P(),))
    axes = [c.axes for c in read_collectives(bodies[0], SIZES) if c.kind == "reduce_scatter"]
    assert axes == [(name,) for name in ((over,) if isinstance(over, str) else over)]
    np.testing.assert_allclose(before[0], after[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "dim", "count"),
    [((128, 2048), 0, 1), ((128, 2048), 1, 1), ((64, 2048), 0, 2), ((130, 2048), 1, 2), ((1, 100, 4096), 2, 2), ((128, 16, 128), 0, 1)],
    ids=str,
)
def test_large_arrays_in_whole_tiles_at_once(shape: tuple[int, ...], dim: int, count: int) -> None:
    def local(x: Any) -> Any:
        return [lax.all_gather(lax.psum_scatter(x, ("x", "y"), scatter_dimension=dim, tiled=True), ("x", "y"), axis=dim, tiled=True)]

    listed, before, after = changed(local, lambda body: optimize_region(body, SIZES, "tpu"), (numbered(shape),), (P(),))
    assert sum(line.startswith("reduce_scatter") for line in listed) == count
    np.testing.assert_array_equal(before[0], after[0])


@pytest.mark.parametrize(("platform", "count"), [("tpu", 2), ("cuda", 1)])
def test_bytes_stay(platform: str, count: int) -> None:
    """Messages to a device are the same; parts of one axis of the user's are scattered over together."""
    both = ("x", "y")
    product = functools.partial(sp.auto_shard, lambda a, b: a @ b, mesh={"x": 4, "y": 4}, lowering="shard_map")
    step = product(in_shardings=(P(None, both), P(both)), out_shardings=P(both), options=sp.Options(platform=platform))
    struct = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    plan = step.plan(struct, struct)
    assert [c.kind for c in plan.collectives] == ["reduce_scatter"] * count
    assert sum(c.total_bytes or 0 for c in plan.collectives) == 64 * 64 * 4 * 15 // 16


@pytest.mark.parametrize(
    ("shape", "dim", "rank"),
    [
        ((8, 16), 0, 3),
        ((8, 16), 1, 3),
        ((8, 1024), 1, 2),
        ((4, 16, 8), 1, 3),
        ((4, 3, 16), 2, 3),
        ((16, 3, 4), 0, 4),
        ((2, 8, 3, 128), 1, 3),
        ((2, 3, 24, 128), 2, 3),
        ((2, 3, 64, 128), 2, 4),
        ((2, 8, 3, 4), 1, 4),
    ],
    ids=str,
)
def test_when_pieces_have_a_dimension_of_their_own(shape: tuple[int, ...], dim: int, rank: int) -> None:
    ranks: list[int] = []

    def run(body: Any) -> Any:
        body = optimize_region(body, SIZES, "tpu")
        ranks.extend(eqn.invars[0].aval.ndim for eqn in body.eqns if eqn.primitive.name == "reduce_scatter")
        return body

    def local(x: Any) -> Any:
        part = lax.psum_scatter(jnp.sin(x), ("x", "y"), scatter_dimension=dim, tiled=True)
        return [lax.all_gather(part, ("x", "y"), axis=dim, tiled=True)]

    _, before, after = changed(local, run, (numbered(shape),), (P(),))
    assert ranks == [rank] * 2
    np.testing.assert_allclose(before[0], after[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "over", "kind"),
    [((64,), "x", "collective_permute"), ((64,), "y", "all_gather"), ((256,), "x", "all_gather"), ((8, 4), "x", "all_gather")],
    ids=str,
)
def test_two_devices_exchange_a_short_vector(shape: tuple[int, ...], over: str, kind: str) -> None:
    def local(x: Any) -> Any:
        return [lax.all_gather(jnp.sin(x), over, axis=0, tiled=True)]

    listed, before, after = changed(local, lambda body: optimize_region(body, SIZES, "tpu"), (numbered(shape),), (P(over),))
    assert listed == [f"{kind}({over}) x1"]
    np.testing.assert_array_equal(before[0], after[0])
