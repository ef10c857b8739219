"""`sp.check` and `sp.plan_of` of steps as people write them, none of which is decorated or changed.

`python -m tests.api.test_check` writes their texts to checks.txt.
"""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx
from flax.training.train_state import TrainState
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

optax = pytest.importorskip("optax")

SIZES = {"data": 2, "model": 4}
MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


def on(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


def f32(*shape: int, sharding: NamedSharding | None = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def loss(params: Any, x: Any) -> Any:
    return jnp.mean((jax.nn.relu(x @ params["up"]) @ params["down"]) ** 2)


def update(params: Any, x: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))


SHARDINGS = {"up": on(None, "model"), "down": on("model")}
PARAMS, BATCH = {"up": f32(1024, 4096), "down": f32(4096, 1024)}, f32(512, 1024)


def jitted() -> sp.Check:
    step = jax.jit(update, in_shardings=(SHARDINGS, on("data")), out_shardings=SHARDINGS, donate_argnums=0)
    return sp.check(step, PARAMS, BATCH, hardware="v5e")


def under_set_mesh() -> sp.Check:
    @jax.jit
    def step(params: Any, x: Any) -> Any:
        return update(params, lax.with_sharding_constraint(x, P("data", None)))

    params = {name: f32(*struct.shape, sharding=SHARDINGS[name]) for name, struct in PARAMS.items()}
    with jax.sharding.use_abstract_mesh(MESH):
        return sp.check(step, params, BATCH, hardware="v5e")


def of_nnx() -> sp.Check:
    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.up, self.down = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 64, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.down(nnx.relu(self.up(x)))

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        value, gradients = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, gradients)
        return value

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    return sp.check(step, model, optimizer, f32(512, 64, sharding=on("data")), mesh=SIZES, hardware="v5e")


def of_a_train_state() -> sp.Check:
    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: TrainState, x: Any) -> TrainState:
        return state.apply_gradients(grads=jax.grad(loss)(state.params, x))

    state = jax.eval_shape(lambda params: TrainState.create(apply_fn=loss, params=params, tx=optax.adam(1e-3)), PARAMS)
    return sp.check(step, state, f32(512, 1024, sharding=on("data")), mesh=SIZES, hardware="v5e")


def of_logical_axes() -> sp.Check:
    """As MaxText jits its step: names of dimensions in the model, rules and the mesh around, shardings of the state from both."""
    rules = (("batch", "data"), ("mlp", "model"), ("embed", None))

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            init = linen.with_logical_partitioning
            up = self.param("up", init(linen.initializers.lecun_normal(), ("embed", "mlp")), (1024, 4096))
            down = self.param("down", init(linen.initializers.lecun_normal(), ("mlp", "embed")), (4096, 1024))
            h = linen.with_logical_constraint(jax.nn.silu(x @ up), ("batch", "mlp"))
            return linen.with_logical_constraint(h @ down, ("batch", "embed"))

    def initial(x: Any) -> TrainState:
        return TrainState.create(apply_fn=Model().apply, params=Model().init(jax.random.key(0), x), tx=optax.adam(1e-3))

    def step(state: TrainState, x: Any) -> TrainState:
        return state.apply_gradients(grads=jax.grad(lambda params: jnp.mean(state.apply_fn(params, x) ** 2))(state.params))

    boxed = jax.eval_shape(initial, BATCH)
    state = linen.unbox(boxed)
    with jax.sharding.use_abstract_mesh(MESH), linen.logical_axis_rules(rules):
        specs = linen.logical_to_mesh(linen.get_partition_spec(boxed))
        shardings = jax.tree.map(lambda spec: NamedSharding(MESH, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P))
        jitted = jax.jit(step, in_shardings=(shardings, on("data")), out_shardings=shardings, donate_argnums=0)
        return sp.check(jitted, state, BATCH, hardware="v5e")


def of_explicit_layers() -> sp.Check:
    @jax.checkpoint
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        h = jax.nn.silu(jnp.dot(x, w["up"], out_sharding=P("data", "model")))
        return x + jnp.dot(h, w["down"], out_sharding=P("data", None)), None

    @jax.jit
    def step(weights: Any, x: Any) -> Any:
        return jax.grad(lambda weights: jnp.mean(lax.scan(layer, x, weights)[0] ** 2))(weights)

    typed = {"up": P(None, None, "model"), "down": P(None, "model", None)}
    shapes = {"up": (8, 512, 2048), "down": (8, 2048, 512)}
    weights = {name: f32(*shape, sharding=NamedSharding(EXPLICIT, typed[name])) for name, shape in shapes.items()}
    with jax.sharding.use_abstract_mesh(EXPLICIT):
        return sp.check(step, weights, f32(256, 512, sharding=NamedSharding(EXPLICIT, P("data", None))), hardware="h100")


def of_decoding() -> sp.Check:
    @functools.partial(jax.jit, donate_argnums=1, static_argnums=3)
    def step(weights: Any, cache: Any, token: Any, position: int) -> Any:
        query, key = token @ weights["q"], token @ weights["k"]
        cache = lax.dynamic_update_slice_in_dim(cache, key[:, None], position, axis=1)
        return jnp.einsum("bs,bsd->bd", jax.nn.softmax(jnp.einsum("bd,bsd->bs", query, cache)), cache), cache

    weights = {name: f32(512, 512, sharding=on(None, "model")) for name in ("q", "k")}
    return sp.check(
        step, weights, f32(64, 1024, 512, sharding=on("data", None, "model")), f32(64, 512, sharding=on("data")), 7, hardware="h100"
    )


def of_a_wrong_annotation() -> sp.Check:
    step = jax.jit(update, in_shardings=({"up": on("model"), "down": on("model")}, on("data")))
    return sp.check(step, PARAMS, BATCH, hardware="v5e")


def of_what_is_replicated_by_mistake() -> sp.Check:
    return sp.check(jax.jit(update, donate_argnums=0), PARAMS, f32(512, 1024, sharding=on("data")), mesh=SIZES, hardware="v5e")


def of_what_does_not_fit() -> sp.Check:
    step = jax.jit(lambda w, x: x @ w, in_shardings=(on(), on("data", "model")))
    return sp.check(step, f32(65536, 65536), f32(1024, 65536), hardware="v5e")


def of_a_plain_function() -> sp.Check:
    return sp.check(update, {name: f32(*s.shape, sharding=SHARDINGS[name]) for name, s in PARAMS.items()}, BATCH, hardware="v5e")


STEPS: dict[str, tuple[Callable[[], sp.Check], list[str]]] = {
    "jit": (
        jitted,
        ["check of update on mesh data=2, model=4", "findings  none", "all_reduce(data)", "of them in donated arguments  8 MiB"],
    ),
    "set_mesh": (under_set_mesh, ["check of step on mesh data=2, model=4", "all_reduce(data)", "fits"]),
    "nnx": (of_nnx, ["check of step on mesh data=2, model=4", "all_reduce(data)", "fits"]),
    "TrainState": (of_a_train_state, ["check of step", "replicated", "of them in donated arguments"]),
    "logical axes": (of_logical_axes, ["findings  none", "all_reduce(model)", "float32[256,1024]", "in donated arguments  24 MiB"]),
    "Explicit layers": (of_explicit_layers, ["all_reduce(model)", "x8", "test_check.py"]),
    "decoding": (of_decoding, ["check of step", "of them in donated arguments  16 MiB", "fits"]),
    "wrong annotation": (of_a_wrong_annotation, ["all_to_all(model)", "dot_general"]),
    "replicated by mistake": (of_what_is_replicated_by_mistake, ["replicated-large", "params['up']", "unused-axis: mesh axis 'model'"]),
    "does not fit": (of_what_does_not_fit, ["does not fit", "16 GiB of v5e"]),
    "plain": (of_a_plain_function, ["check of update", "fits"]),
}


TEXTS = pathlib.Path(__file__).with_name("checks.txt")


def without_numbers(text: str) -> str:
    """A text without numbers of lines and of values, which differ between releases of packages."""
    return re.sub(r"(\.py:|%)\d+ *", r"\1N ", text)


def texts() -> dict[str, str]:
    return dict(part.split("\n", 1) for part in TEXTS.read_text().rstrip().split("===== ")[1:])


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str) -> None:
    step, lines = STEPS[name]
    report = step()
    text = str(report)
    for line in lines:
        assert line in text, text
    assert without_numbers(text).rstrip() == texts()[name].rstrip()
    assert report.is_clean == ("warning" not in text and "does not fit" not in text)


def test_without_a_mesh() -> None:
    with pytest.raises(sp.MeshError, match=r"no mesh\n.*where: check of .*lambda.*\n.*\n.*pass mesh="):
        sp.check(lambda x: x, f32(8))


def test_a_decorated_step_has_its_own_plan() -> None:
    step = sp.auto_shard(update, mesh=SIZES, in_shardings=({"up": P(None, "model"), "down": P("model")}, P("data")))
    assert sp.plan_of(step, PARAMS, BATCH).as_text() == step.plan(PARAMS, BATCH).as_text()


def test_shardings_and_donation_of_jit_are_those_of_the_plan() -> None:
    step = jax.jit(update, in_shardings=(SHARDINGS, on("data")), out_shardings=SHARDINGS, donate_argnums=0)
    undecorated = sp.plan_of(step, PARAMS, BATCH)
    decorated = sp.auto_shard(
        update, mesh=SIZES, in_shardings=(SHARDINGS, on("data")), out_shardings=SHARDINGS, donate_argnums=0, lowering="jit"
    ).plan(PARAMS, BATCH)
    assert list(map(str, undecorated.inputs)) == list(map(str, decorated.inputs))
    assert list(map(str, undecorated.outputs)) == list(map(str, decorated.outputs))
    assert [donated.aliased for donated in undecorated.donation] == [donated.aliased for donated in decorated.donation]
    assert undecorated.cost_analysis("v5e").step_seconds == decorated.cost_analysis("v5e").step_seconds


def test_a_mesh_without_devices_is_planned_for_the_hardware() -> None:
    """A CPU has no collectives of bfloat16, and sends its bits as integers; accelerators have them."""
    params, x = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.bfloat16, sharding=on("data")), (PARAMS, BATCH))
    for hardware, kind in (("h100", "bfloat16"), (None, "uint16")):
        gathers = [c for c in sp.check(jax.jit(update), params, x, hardware=hardware).plan.collectives if c.kind == "all_gather"]
        assert {c.dtype for c in gathers} == {kind}


if __name__ == "__main__":
    TEXTS.write_text("\n".join(f"===== {name}\n{without_numbers(str(step())).rstrip()}" for name, (step, _) in STEPS.items()) + "\n")
