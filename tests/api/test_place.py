"""plan.place, and plan.input_shardings with jax.device_put, where the mesh was a mapping or the plan was stored."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from tests.api.test_user_classes import OnlyArrays


def step(state, x, scale=1.0):
    return {"w": state["w"] * scale + x.sum(), "n": state["n"] + 1}


def planned(mesh, *args, **kwargs):
    run = sp.auto_shard(step, mesh=mesh, in_shardings=(None, P("data")))
    return run, run.plan(*args, **kwargs)


def arguments():
    return {"w": np.ones((8, 4), np.float32), "n": jnp.zeros(3)}, jnp.ones((16, 8))


@pytest.mark.parametrize("mesh", ["mapping", "mesh"])
@pytest.mark.parametrize("how", ["place", "device_put", "stored"])
def test_arguments_lie_as_planned(mesh, how, tmp_path):
    given = {"data": 8} if mesh == "mapping" else jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    run, plan = planned(given, *arguments())
    if how == "stored":
        plan.save(tmp_path / "plan.json")
        plan = sp.Plan.load(tmp_path / "plan.json")
    placed = jax.device_put(arguments(), plan.input_shardings) if how == "device_put" else plan.place(arguments())
    assert placed[1].sharding.spec == P("data")
    assert all(leaf.committed for leaf in jax.tree.leaves(placed))
    want = jax.jit(step)(*arguments())
    jax.tree.map(np.testing.assert_allclose, run(*placed), want)


def test_keyword_arguments_and_classes_that_refuse_shardings():
    run = sp.auto_shard(lambda c, *, x: c.value * x, mesh={"data": 8}, in_shardings=P("data"))
    c, x = OnlyArrays(jnp.ones(8)), jnp.ones(8)
    args, kwargs = run.plan(c, x=x).place(((c,), {"x": x}))
    assert isinstance(args[0], OnlyArrays)
    assert args[0].value.sharding.spec == kwargs["x"].sharding.spec == P("data")


def test_other_arguments_and_meshes_are_errors():
    _, plan = planned({"data": 8}, *arguments())
    with pytest.raises(sp.ShardyError, match=r"leaf 2 has shape \[16, 4\]; the plan has x"):
        plan.place((arguments()[0], jnp.ones((16, 4))))
    with pytest.raises(sp.ShardyError, match=r"leaf 2 has no more leaves"):
        plan.place((arguments()[0],))
    with pytest.raises(sp.MeshError, match="the mesh has data=4, the plan is for data=8"):
        plan.place(arguments(), mesh={"data": 4})
    _, abstract = planned(AbstractMesh((8,), ("data",)), *arguments())
    with pytest.raises(sp.MeshError, match="names no devices"):
        abstract.place(arguments())


def initial():
    """A state of constants, which come out whole on every device, and one leaf on one device."""
    return {"w": jnp.zeros((16, 8)), "n": 0}


SAYS = {
    "in_shardings": {"in_shardings": ({"w": P("data"), "n": P()}, P("data"))},
    "rules": {"rules": [("w", P("data")), ("x", P("data"))]},
}


def update(state, x):
    return {"w": state["w"] + x.sum(), "n": state["n"] + 1}


def test_constants_of_an_init_name_the_remedy():
    state = sp.auto_shard(initial, mesh={"data": 8})()
    run = sp.auto_shard(update, mesh={"data": 8}, **SAYS["in_shardings"])
    with pytest.raises(sp.SpecError, match=r"state\['w'\](.|\n)*out_shardings or rules(.|\n)*misplaced=\"move\""):
        run(state, np.ones((8, 8), np.float32))


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("mesh", ["mapping", "explicit"])
@pytest.mark.parametrize("says", SAYS)
def test_constants_of_an_init_are_moved(says, mesh, lowering):
    over = {"data": 8} if mesh == "mapping" else jax.make_mesh((8,), ("data",))
    start, x = sp.auto_shard(initial, mesh=over), np.ones((8, 8), np.float32)
    run = sp.auto_shard(update, mesh=over, lowering=lowering, options=sp.Options(misplaced="move"), donate_argnums=0, **SAYS[says])
    for _ in range(3):
        state = start()
        after = run({**state, "n": jax.device_put(state["n"], jax.devices()[3])}, x)
        assert after["w"].sharding.spec == P("data")
        jax.tree.map(np.testing.assert_array_equal, after, {"w": np.full((16, 8), 64.0), "n": 1})
    assert int(run(after, x)["n"]) == 2  # pyright: ignore[reportPossiblyUnboundVariable]
    assert run.plan_count == 1


def test_arguments_in_host_memory_are_moved_only_where_asked():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    device = jax.NamedSharding(mesh, P("a"))
    x = jax.device_put(np.ones((8, 8)), device.with_memory_kind("pinned_host"))
    refusing = sp.auto_shard(lambda x: x + 1, mesh=mesh, in_shardings=device)
    with pytest.raises(sp.SpecError, match="the argument's memory differs from in_shardings"):
        refusing(x)
    for run, value in (refusing, jax.device_put(x, jax.memory.Space.Device)), (refusing.replace(options=sp.Options(misplaced="move")), x):
        result = run(value)
        assert (result.sharding.spec, result.sharding.memory_kind) == (P("a"), "device")


def test_arguments_of_another_mesh_are_moved():
    other = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    state, x = (
        jax.device_put(initial(), jax.NamedSharding(other, P())),
        jax.device_put(np.ones((8, 8)), jax.NamedSharding(other, P("a", "b"))),
    )
    refusing = sp.auto_shard(update, mesh={"data": 8}, **SAYS["rules"])
    with pytest.raises(sp.SpecError, match=r"over another mesh(.|\n)*misplaced=\"move\""):
        refusing(state, x)
    after = refusing.replace(options=sp.Options(misplaced="move"))(state, x)
    assert int(after["n"]) == 1
    assert after["w"].sharding.spec == P("data")


def test_where_nothing_is_said_arguments_stay_where_they_lie():
    """`"move"` is for what the user says; else the sharding of an argument is what is planned for."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    run = sp.auto_shard(lambda x: x * 2, mesh=mesh, options=sp.Options(misplaced="move"))
    for spec in (P("data"), P(None, "data"), P("data")):
        assert run(jax.device_put(np.ones((8, 8)), jax.NamedSharding(mesh, spec))).sharding.spec == spec
    assert run.plan_count == 2
