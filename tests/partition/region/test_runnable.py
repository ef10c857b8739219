"""Under which axes an equation can run, and what is computed from nothing in layouts that it cannot be computed in."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.local.local_rule import make_rule
from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import Axes
from shardy_py.partition.region.layouts import block
from shardy_py.partition.region.runnable import layouts_under, runnable

MESH = Mesh([("x", 2), ("y", 2), ("z", 3)])
AXES = [AxisRef(name) for name in MESH.axis_names]


def elements(sizes: list[int], axes: tuple[Axes, ...], place: dict[str, int]) -> list[list[int]]:
    """The positions along every factor that a device has."""
    out = []
    for size, over in zip(sizes, axes, strict=True):
        num_shards, index = 1, 0
        for axis in over:
            num_shards, index = num_shards * MESH.shape[axis.name], index * MESH.shape[axis.name] + place[axis.name]
        length = block(size, num_shards)
        out.append(list(range(index * length, min((index + 1) * length, size))))
    return out


@given(data=st.data())
def test_every_device_has_a_block_of_a_dimension_with_several_factors(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 5]), min_size=2, max_size=3))
    free = data.draw(st.permutations(AXES))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(free)), min_size=len(sizes), max_size=len(sizes))))
    given_axes = [tuple(free[start:stop]) for start, stop in zip([0, *cuts], cuts)]
    given_axes = list(data.draw(st.permutations(given_axes)))
    factors = list(range(len(sizes)))
    rule = make_rule(sizes, [[factors]], [factors])
    axes = runnable(rule, given_axes, MESH, frozenset(data.draw(st.sets(st.sampled_from(factors)))), exchanges=False)
    assert all(before[: len(after)] == after for before, after in zip(given_axes, axes, strict=True))
    assert runnable(rule, axes, MESH, frozenset(), exchanges=False) == axes
    (whole,) = layouts_under(rule, axes)[0].dims
    for at in itertools.product(*map(range, MESH.shape.values())):
        place = dict(zip(MESH.axis_names, at, strict=True))
        (flat,) = elements([math.prod(sizes)], (whole.axes,), place)
        wanted = [int(np.ravel_multi_index(p, sizes)) for p in itertools.product(*elements(sizes, axes, place))]
        assert flat == wanted, (sizes, axes, place)


SOURCES = {
    "positions": lambda: jnp.arange(96.0),
    "of positions": lambda: jnp.sin(jnp.arange(96.0) / 9),
    "broadcast": lambda: jnp.repeat(jnp.arange(12.0), 8),
    "random": lambda: jax.random.normal(jax.random.key(0), (96,)),
    "split keys": lambda: jax.random.uniform(jax.random.split(jax.random.key(1), 96)[7], (96,)),
    "two dimensions": lambda: lax.broadcasted_iota(jnp.float32, (12, 8), 0).reshape(96) * 3,
    "permuted": lambda: jnp.arange(96.0).reshape(8, 12).T.reshape(96),
}
SHAPES = [(12, 8), (8, 12), (2, 6, 8), (96, 1), (4, 24), (3, 4, 2, 4)]
SPECS = [P("x"), P(None, "x"), P("x", "y"), P(None, ("x", "y")), P(None, None, "y"), P(("y", "x")), P("y", "x")]


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_made_from_nothing_and_reshaped(source: str) -> None:
    """Every shape under every sharding that divides it, in one program."""
    make = SOURCES[source]
    want = np.asarray(make())
    cases = [
        (shape, spec)
        for shape in SHAPES
        for spec in SPECS
        if len(spec) <= len(shape) and all(n % _ways(axes) == 0 for n, axes in zip(shape, spec))
    ]
    assert len(cases) > 20

    def function(*xs: Any) -> list[Any]:
        return [x + make().reshape(x.shape) for x in xs]

    zeros = [np.zeros(shape, np.float32) for shape, _ in cases]
    step = sp.auto_shard(function, mesh={"x": 2, "y": 4}, in_shardings=tuple(spec for _, spec in cases), lowering="shard_map")
    for (shape, spec), got in zip(cases, step(*zeros), strict=True):
        np.testing.assert_allclose(got, want.reshape(shape), rtol=1e-4, atol=1e-5, err_msg=f"{shape} {spec}")
    assert not step.plan(*zeros).collectives


def _ways(axes: Any) -> int:
    names = () if axes is None else axes if isinstance(axes, tuple) else (axes,)
    return math.prod({"x": 2, "y": 4}[name] for name in names)


def test_what_is_made_from_nothing_and_cut_unevenly() -> None:
    def function(x: Any) -> Any:
        return lax.with_sharding_constraint(x[:11] + jnp.arange(66.0).reshape(11, 6), P("y", "x"))

    step = sp.auto_shard(function, mesh={"x": 2, "y": 4}, in_shardings=P("y", "x"), lowering="shard_map")
    np.testing.assert_array_equal(step(np.zeros((16, 6), np.float32)), np.arange(66.0).reshape(11, 6))
