from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.donation import Guard


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def on(mesh, value=1.0):
    return jax.device_put(jnp.full((8, 4), value), NamedSharding(mesh, P("x")))


def test_guard_sees_deleted_arrays_of_every_kind(mesh):
    guard = Guard(())
    array, key = on(mesh), jax.random.key(0)
    for good in ([array], [array, key], [key, array, 1.0, np.ones(3), None, "text"], [np.ones(2)], []):
        assert not guard.bad(good)
    array.delete()
    assert guard.bad([key, array])
    assert guard.bad([{"a": 1.0, "b": array}])


def test_guard_sees_arrays_passed_twice_only_where_donated(mesh):
    array = on(mesh)
    assert not Guard(()).bad([array, array])
    assert Guard((0,)).bad([array, array])


def test_a_deleted_argument_that_is_not_donated(mesh):
    step = sp.auto_shard(lambda a, b: a + b, mesh=mesh)
    a, b = on(mesh), on(mesh)
    step(a, b)
    b.delete()
    with pytest.raises(RuntimeError, match="the buffer of b has been deleted"):
        step(a, b)


def test_after_an_error_the_arguments_are_alive(mesh):
    step = sp.auto_shard(lambda s, t: s + t, mesh=mesh, donate_argnums=0)
    a = on(mesh)
    step(on(mesh), on(mesh))
    with pytest.raises(ValueError, match="s and t are one array"):
        step(a, a)
    assert not a.is_deleted()


def test_equal_numbers_and_undonated_repeats_are_fine(mesh):
    step = sp.auto_shard(lambda s, t, u, n, m: s + t * u + n + m, mesh=mesh, donate_argnums=0)
    t = on(mesh, 2.0)
    for _ in range(3):
        np.testing.assert_array_equal(step(on(mesh), t, t, 1, 1), np.full((8, 4), 7.0))


def test_donated_state_in_a_loop(mesh):
    step = sp.auto_shard(lambda s: jax.tree.map(lambda x: x + 1, s), mesh=mesh, donate_argnums=0)
    state = {"a": on(mesh), "b": on(mesh, 2.0)}
    for _ in range(5):
        old, state = state, step(state)
        assert old["a"].is_deleted()
    assert float(state["b"][0, 0]) == 7.0
    assert step.plan_count == 1


def test_a_look_at_200_leaves_is_cheap(mesh):
    guard = Guard((0,))
    slots = ({f"w{i}": on(mesh) for i in range(199)}, on(mesh))
    guard.bad(slots)
    best = min(_seconds(lambda: guard.bad(slots)) for _ in range(50))
    assert best < 100e-6


def _seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
