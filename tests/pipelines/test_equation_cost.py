"""Seconds of equations, and that they are those of `plan.cost_analysis`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.cost.hardware import Hardware
from shardy_py.cost.hardware_table import hardware
from shardy_py.pipedream import profile
from shardy_py.pipelines.cost import equation_seconds
from shardy_py.pipelines.jaxprs import bytes_of

H100 = hardware("h100")
UNBOUND_BY_MEMORY = H100.with_figures(hbm_bandwidth=1e30)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def seconds(function: Any, *arguments: Any, on: Hardware = H100) -> tuple[float, ...]:
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return equation_seconds(jaxpr.eqns, jaxpr.outvars, on)


def test_products_and_pointwise_operations() -> None:
    product, function = seconds(lambda x, w: jnp.tanh(jnp.einsum("bik,bkj->bij", x, w)), f32(2, 3, 5), f32(2, 5, 7), on=UNBOUND_BY_MEMORY)
    assert product == pytest.approx(2 * 2 * 3 * 5 * 7 / H100.matrix_flops("float32"))
    assert function == pytest.approx(2 * 3 * 7 * H100.transcendental_operations / H100.vector_flops)


def test_a_loop_takes_its_length() -> None:
    once = seconds(lambda x: jnp.sin(x) * 2, f32(1000))
    looped = seconds(lambda x: lax.scan(lambda x, _: (jnp.sin(x) * 2, None), x, None, length=6)[0], f32(1000))
    assert sum(looped) == pytest.approx(6 * sum(once), rel=0.01)  # the counter of the loop is computed, too


def test_an_equation_that_is_fused_into_its_readers_moves_no_bytes() -> None:
    assert [s * H100.hbm_bandwidth for s in seconds(lambda x: jnp.sin(x) + 1.0, f32(1000))] == pytest.approx([4000, 4000])
    read, moved, written = seconds(lambda x: -(jnp.abs(x) + 1.0), f32(1 << 20))
    assert moved == pytest.approx((1 << 20) / H100.vector_flops)
    assert [read, written] == pytest.approx([4 * (1 << 20) / H100.hbm_bandwidth] * 2)


def test_variables_that_no_equation_defines_are_arguments() -> None:
    jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) * 2)(f32(1000)).jaxpr
    assert equation_seconds(jaxpr.eqns[1:], jaxpr.outvars, H100) == pytest.approx([8000 / H100.hbm_bandwidth])
    assert bytes_of(jaxpr.invars[0]) == 4000


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (jnp.sum, (f32(4096, 4096),)),
        (jax.nn.softmax, (f32(512, 4096),)),
        (lambda x: jnp.cumsum(x, axis=1), (f32(4096, 4096),)),
        (lambda x, w: jax.nn.relu(x @ w).sum(), (f32(512, 256), f32(256, 1024))),
        (lambda x: lax.fori_loop(0, 5, lambda _, y: jnp.tanh(y @ y), x), (f32(128, 128),)),
        (lambda x: lax.cond(x[0, 0] > 0, lambda y: y @ y, lambda y: y + 1.0, x), (f32(128, 128),)),
        (lambda x, k: lax.conv(x, k, (1, 1), "SAME"), (f32(8, 16, 32, 32), f32(32, 16, 3, 3))),
        (lambda x: jnp.sort(x, axis=-1), (f32(64, 1024),)),
    ],
    ids=["sum", "softmax", "cumsum", "mlp", "loop", "cond", "convolution", "sort"],
)
def test_a_profile_and_a_cost_analysis_agree(function: Any, arguments: tuple[Any, ...]) -> None:
    expected = sp.auto_shard(function, mesh={"device": 1}).plan(*arguments).cost_analysis("h100").compute_seconds
    assert sum(seconds(function, *arguments)) == pytest.approx(
        expected, rel=1e-3
    )  # a region counts the trips of a loop without a test at its end
    assert sum(node.forward_ms for node in profile(function, *arguments, parameters=()).nodes) == pytest.approx(expected * 1e3, rel=1e-3)


def attention(w: Any, x: Any) -> Any:
    x = x - jnp.mean(x, -1, keepdims=True) / jnp.sqrt(jnp.var(x, -1, keepdims=True) + 1e-5)
    q, k, v = (x @ w[name] for name in "qkv")
    x = x + jax.nn.softmax(q @ k.T / 8.0, axis=-1) @ v
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


WEIGHTS = {"q": f32(64, 64), "k": f32(64, 64), "v": f32(64, 64), "up": f32(64, 256), "down": f32(256, 64)}
LAYERS = 3
STACK = {name: f32(LAYERS, *w.shape) for name, w in WEIGHTS.items()}
X = f32(1024, 64)


def stack_of(layer: Any, **options: Any) -> Any:
    """The loss of layers in a scan."""
    return lambda stack, x: jnp.mean(jnp.square(lax.scan(lambda x, w: (layer(w, x), None), x, stack, **options)[0]))


def layers_of(layer: Any) -> Any:
    """The loss of layers one after the other."""

    def loss(layers: Any, x: Any) -> Any:
        for w in layers:
            x = layer(w, x)
        return jnp.mean(jnp.square(x))

    return loss


def with_a_loop(w: Any, x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ w["q"]), attention(w, x))


def with_branches(w: Any, x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, lambda y: attention(w, y), lambda y: y, x)


def with_an_undifferentiated_loop(w: Any, x: Any) -> Any:
    scale = lax.while_loop(lambda s: s < 10.0, lambda s: s * 1.5, lax.stop_gradient(x[0, 0]))
    return attention(w, x) * scale


def recurrent(w: Any, x: Any) -> Any:
    """A loop that is not over layers: the profile leaves it whole."""
    return jnp.sum(lax.scan(lambda h, row: (jnp.tanh(h @ w + row),) * 2, x[0], x)[1])


PROGRAMS = {
    "layers": (layers_of(attention), [WEIGHTS] * LAYERS, X),
    "stack": (stack_of(attention), STACK, X),
    "reversed stack": (stack_of(attention, reverse=True), STACK, X),
    "unrolled stack": (stack_of(attention, unroll=LAYERS), STACK, X),
    "checkpointed layers": (layers_of(jax.checkpoint(attention)), [WEIGHTS] * LAYERS, X),
    "checkpointed stack": (stack_of(jax.checkpoint(attention)), STACK, X),
    "saved products": (stack_of(jax.checkpoint(attention, policy=jax.checkpoint_policies.dots_saveable)), STACK, X),
    "jitted layers": (layers_of(jax.jit(attention)), [WEIGHTS] * LAYERS, X),
    "loops": (stack_of(with_a_loop), STACK, X),
    "branches": (stack_of(with_branches), STACK, X),
    "while": (layers_of(with_an_undifferentiated_loop), [WEIGHTS] * LAYERS, X),
    "recurrent": (recurrent, f32(64, 64), f32(8, 1024, 64)),
}


def compute_ms(function: Any, *arguments: Any) -> float:
    seconds = sp.auto_shard(function, mesh={"device": 1}).plan(*arguments).cost_analysis("h100").compute_seconds
    assert seconds is not None
    return seconds * 1e3


@pytest.mark.parametrize("name", PROGRAMS)
def test_forward_and_backward_agree_with_a_cost_analysis(name: str) -> None:
    function, *arguments = PROGRAMS[name]
    nodes = profile(function, *arguments).nodes
    assert sum(node.forward_ms for node in nodes) == pytest.approx(compute_ms(function, *arguments), rel=0.01)
    both = compute_ms(jax.value_and_grad(function), *arguments)
    assert sum(node.forward_ms + node.backward_ms for node in nodes) == pytest.approx(both, rel=0.01)


def test_a_training_step_agrees_with_a_cost_analysis() -> None:
    function, *arguments = PROGRAMS["checkpointed stack"]
    step = jax.value_and_grad(function)
    assert sum(node.forward_ms for node in profile(step, *arguments).nodes) == pytest.approx(compute_ms(step, *arguments), rel=0.01)


@pytest.mark.parametrize("by", ["equation", "scope"])
def test_grains_divide_the_same_seconds(by: str) -> None:
    function, *arguments = PROGRAMS["checkpointed stack"]
    fine, coarse = (profile(function, *arguments, by=grain).nodes for grain in (by, "layer"))
    assert sum(node.forward_ms for node in fine) == pytest.approx(sum(node.forward_ms for node in coarse))
    assert sum(node.backward_ms for node in fine) == pytest.approx(sum(node.backward_ms for node in coarse))


def test_layers_of_a_loop_share_it_equally() -> None:
    function, *arguments = PROGRAMS["checkpointed stack"]
    layers = [node for node in profile(function, *arguments).nodes if node.parameter_bytes]
    assert len(layers) == LAYERS
    assert len({(node.forward_ms, node.backward_ms) for node in layers}) == 1


def test_a_program_on_a_mesh_of_more_devices_is_profiled_on_one() -> None:
    """Its constraints and its regions name a mesh that one device is not."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    product = jax.shard_map(lambda x, w: lax.psum(x @ w, "x"), mesh=mesh, in_specs=(P(None, "x"), P("x")), out_specs=P())

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(product(lax.with_sharding_constraint(x, NamedSharding(mesh, P("x"))), w))

    assert sum(node.backward_ms for node in profile(loss, f32(64, 64), X).nodes) > 0


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_a_mesh_that_is_set_changes_nothing(axis_type: AxisType) -> None:
    function, *arguments = PROGRAMS["stack"]
    expected = profile(function, *arguments).nodes
    with jax.set_mesh(jax.make_mesh((2,), ("x",), axis_types=(axis_type,))):
        nodes = profile(function, *arguments).nodes
    assert [node.time_ms for node in nodes] == pytest.approx([node.time_ms for node in expected], rel=0.01)


def test_only_gradients_of_parameters_are_counted() -> None:
    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("before"):
            x = jnp.tanh(x @ x.T @ x)
        with jax.named_scope("after"):
            return jnp.sum(jnp.tanh(x @ w))

    before, after = (node for node in profile(loss, f32(256, 256), f32(256, 256)).nodes if not node.is_input)
    assert before.forward_ms > 0 == before.backward_ms
    assert after.backward_ms > 0


def test_results_that_are_constants_or_inputs() -> None:
    def several(w: Any, x: Any) -> Any:
        return jnp.sum(x @ w), x, 1.0, jnp.argmax(x)

    nodes = profile(several, f32(256, 256), f32(512, 256)).nodes
    assert sum(node.backward_ms for node in nodes) > 0


def test_rules_for_derivatives_are_counted() -> None:
    @jax.custom_vjp
    def squared(x: Any) -> Any:
        return x * x

    squared.defvjp(lambda x: (squared(x), x), lambda x, g: (2.0 * x * g,))

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(squared(x @ w))

    arguments = f32(256, 256), f32(512, 256)
    nodes = profile(loss, *arguments, by="equation").nodes
    assert sum(node.forward_ms + node.backward_ms for node in nodes) == pytest.approx(
        compute_ms(jax.value_and_grad(loss), *arguments), rel=0.01
    )
