"""Arguments without values, with planned shardings: what a checkpoint is restored to."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan
from tests.plan.store.programs import State, f32, training


def mesh_of(**sizes: int) -> Mesh:
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def specs_of(tree: Any) -> Any:
    return jax.tree.map(lambda struct: (struct.shape, str(struct.dtype), struct.sharding.spec), tree)


def test_all_arguments_and_one() -> None:
    plan = training()
    (state, batch), kwargs = plan.abstract_state()
    assert isinstance(state, State)
    assert state.params["up"].shape == (16, 32)
    assert state.params["up"].sharding == plan.input_shardings[0][0].params["up"]
    assert kwargs["rate"].shape == ()
    assert plan.abstract_state("state") == state == plan.abstract_state(0) == plan.abstract_state(-2)
    assert plan.abstract_state("batch") == batch
    assert plan.abstract_state("rate") == kwargs["rate"]
    assert jnp.issubdtype(batch["key"].dtype, jax.dtypes.prng_key)
    assert batch["key"].shape == ()


def test_of_a_stored_plan() -> None:
    plan = training()
    read = Plan.from_json(plan.to_json())
    state = plan.abstract_state("state")
    assert specs_of(read.abstract_state("state")) == specs_of({"step": state.step, "nothing": None, "params": state.params})
    assert specs_of(read.abstract_state("state", like=state)) == specs_of(state)
    assert specs_of(read.abstract_state("batch")) == specs_of(plan.abstract_state("batch"))
    arguments = plan.abstract_state()
    assert specs_of(read.abstract_state(like=arguments)) == specs_of(arguments)


def test_on_devices() -> None:
    read = Plan.from_json(training().to_json())
    mesh = mesh_of(data=2, model=4)
    for given in (mesh, {"data": 2, "model": 4}):
        struct = read.abstract_state("state", mesh=given)["params"]["up"]
        assert struct.sharding.mesh == mesh
        assert jax.device_put(np.zeros((16, 32), np.float32), struct.sharding).addressable_shards[0].data.shape == (16, 8)
    assert isinstance(read.abstract_state("state")["params"]["up"].sharding.mesh, AbstractMesh)


def test_what_does_not_fit() -> None:
    plan = training()
    with pytest.raises(sp.ShardyError, match=r"has no argument 'stat'\n.*\n  why: its arguments are state, batch, rate\n  fix: .*state"):
        plan.abstract_state("stat")
    with pytest.raises(sp.ShardyError, match="has no argument 2"):
        plan.abstract_state(2)
    with pytest.raises(sp.ShardyError, match="the mesh has data=4, model=2, the plan is for data=2, model=4"):
        plan.abstract_state(mesh={"data": 4, "model": 2})
    with pytest.raises(sp.ShardyError, match="like= has 1 leaves, state has 4"):
        plan.abstract_state("state", like={"w": f32(2)})
    with pytest.raises(sp.ShardyError, match=r"leaf 0 of like= has the shape \(3,\)"):
        plan.abstract_state("state", like=[f32(3), 1, 2, 3])
    assert plan.abstract_state("state", like=[1, 1, 2, 3])[0].shape == ()


def _step(state: Any, batch: Any) -> Any:
    def loss(params: Any) -> jax.Array:
        return jnp.mean((jnp.tanh(batch @ params["up"]) @ params["down"]) ** 2)

    params, moments = state
    updates, moments = optax.adam(1e-2).update(jax.grad(loss)(params), moments)
    return optax.apply_updates(params, updates), moments


def test_a_checkpoint_moves_to_another_mesh(tmp_path: Path) -> None:
    """Saved as sharded by one plan, restored as another wants it, by the plan itself and by its file; the training goes on equally."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        ocp = pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed")

    specs = (({"up": P(None, "model"), "down": None}, None), P("data"))
    key = jax.random.key(0)
    params = {"up": jax.random.normal(key, (16, 32)), "down": jax.random.normal(key, (32, 16))}
    state, batch = (params, optax.adam(1e-2).init(params)), jnp.ones((8, 16))
    old, new = (sp.auto_shard(_step, mesh=mesh, in_shardings=specs) for mesh in (mesh_of(data=2, model=4), mesh_of(data=4, model=2)))
    trained = old(jax.device_put(state, old.plan(state, batch).input_shardings[0]), batch)

    plan = new.plan(state, batch)
    plan.save(tmp_path / "plan.json.gz")
    stored = Plan.load(tmp_path / "plan.json.gz")
    targets = [plan.abstract_state("state"), stored.abstract_state(0, mesh=mesh_of(data=4, model=2), like=state)]
    with warnings.catch_warnings(), ocp.StandardCheckpointer() as checkpointer:
        warnings.filterwarnings("ignore", module=r"orbax\..*")
        checkpointer.save(tmp_path / "checkpoint", trained)
        checkpointer.wait_until_finished()
        restored = [checkpointer.restore(tmp_path / "checkpoint", target) for target in targets]
    for tree, target in zip(restored, targets):
        assert jax.tree.structure(tree) == jax.tree.structure(trained)
        for x, struct, y in zip(*map(jax.tree.leaves, (tree, target, trained)), strict=True):
            assert x.sharding == struct.sharding
            np.testing.assert_array_equal(x, y)
    assert restored[0][0]["up"].sharding.mesh.shape == {"data": 4, "model": 2}
    assert restored[0][0]["up"].addressable_shards[0].data.shape == (16, 16)
    for x, y in zip(jax.tree.leaves(new(restored[0], batch)), jax.tree.leaves(old(trained, batch)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
