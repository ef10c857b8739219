"""Profiles of traced functions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import PartitionSpec as P

from shardy_py.cost.hardware_table import hardware
from shardy_py.errors import ShardyError
from shardy_py.pipedream import ProfileGraph, partition, profile, read_graph, write_graph
from shardy_py.pipedream.profiles.line import line_of
from shardy_py.pipelines.cost import equation_seconds

WIDTH, LAYERS = 64, 4


def block(x: Any, p: Any) -> Any:
    with jax.named_scope("mix"):
        x = x + jnp.tanh(x @ p["mix"])
    with jax.named_scope("mlp"):
        return x + jax.nn.relu(x @ p["up"]) @ p["down"]


def loss(params: Any, tokens: Any) -> Any:
    with jax.named_scope("embed"):
        x = params["table"][tokens]
    x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, params["blocks"])
    with jax.named_scope("head"):
        return jnp.mean(jax.nn.logsumexp(x @ params["table"].T, -1))


def arguments(layers: int = LAYERS) -> tuple[Any, Any]:
    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, jnp.float32)

    blocks = {"mix": shape(layers, WIDTH, WIDTH), "up": shape(layers, WIDTH, 4 * WIDTH), "down": shape(layers, 4 * WIDTH, WIDTH)}
    return {"table": shape(100, WIDTH), "blocks": blocks}, jax.ShapeDtypeStruct((8, 16), jnp.int32)


LAYER_BYTES = 9 * WIDTH * WIDTH * 4
TABLE_BYTES = 100 * WIDTH * 4
ACTIVATION = 8 * 16 * WIDTH * 4


def named(graph: ProfileGraph, start: str) -> list[Any]:
    return [node for node in graph.nodes if node.description.startswith(start)]


def test_a_loop_over_layers_is_taken_apart() -> None:
    graph = profile(loss, *arguments())
    assert [node.description for node in graph.nodes] == [
        "Input0 [1]",
        "layer(embed)",
        *(f"layer({i})" for i in range(LAYERS)),
        "layer(head)",
    ]
    layers = graph.nodes[2:-1]
    assert {node.parameter_bytes for node in layers} == {LAYER_BYTES}
    assert {node.activations for node in layers} == {(ACTIVATION,)}
    assert len({(node.forward_ms, node.backward_ms) for node in layers}) == 1
    assert layers[0].backward_ms > layers[0].forward_ms > 0


def test_parameters_are_counted_once() -> None:
    for by in ("equation", "scope", "layer"):
        graph = profile(loss, *arguments(), by=by)
        assert sum(node.parameter_bytes for node in graph.nodes) == LAYERS * LAYER_BYTES + TABLE_BYTES
        assert read_graph(write_graph(graph)) == graph


def test_grains_divide_the_same_work() -> None:
    times = [sum(node.forward_ms for node in profile(loss, *arguments(), by=by).nodes) for by in ("equation", "scope", "layer")]
    assert times == pytest.approx([times[0]] * 3)
    by_scope = Counter(node.description for node in profile(loss, *arguments(), by="scope").nodes)
    assert by_scope["scope(mlp/0)"] == by_scope["scope(mix/3)"] == 1


def test_loops_inside_of_layers_and_scopes_that_all_share() -> None:
    def nested(params: Any, x: Any) -> Any:
        with jax.named_scope("model"):
            with jax.named_scope("first"):
                x = jnp.tanh(x @ params["a"])
            with jax.named_scope("second"):
                x, _ = jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, None, length=3)
            return x.sum()

    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    graph = profile(nested, {"a": shape}, shape)
    assert [node.description for node in graph.nodes] == ["Input0 [1]", "layer(first)", "layer(second)", "layer()"]


def test_several_results_of_a_piece_are_items() -> None:
    def two(w: Any, x: Any) -> Any:
        with jax.named_scope("a"):
            y = x @ w
            z = jnp.tanh(y)
        with jax.named_scope("b"):
            u = jnp.sin(y)
        with jax.named_scope("c"):
            return (u * z).sum()

    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    graph = profile(two, shape, shape)
    (first,) = named(graph, "layer(a)")
    assert first.activations == (256.0, 256.0)
    assert [node.description for node in named(graph, "__getitem__")] == ["__getitem__(0)", "__getitem__(1)"]
    (last,) = named(graph, "layer(c)")
    assert len(graph.inputs_of(last.id)) == 2


def test_a_derivative_rule_stays_whole() -> None:
    @jax.custom_vjp
    def cubed(x: Any) -> Any:
        return x * x * x

    cubed.defvjp(lambda x: (cubed(x), x), lambda x, g: (3 * x * x * g,))
    graph = profile(lambda w, x: cubed(x @ w).sum(), jnp.ones((4, 4)), jnp.ones((4, 4)), by="equation")
    assert len(named(graph, "custom_vjp_call")) == 1
    assert named(graph, "custom_vjp_call")[0].backward_ms > 0


def test_keys_and_captured_arrays() -> None:
    captured = jnp.ones((64, 64))

    def dropped(w: Any, x: Any, key: Any) -> Any:
        x = x @ w @ captured
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0).sum()

    key = jax.eval_shape(lambda: jax.random.key(0))
    graph = profile(dropped, jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((8, 64), jnp.float32), key, by="equation")
    assert len(named(graph, "Input")) == 2
    assert sum(node.parameter_bytes for node in graph.nodes) == 2 * 64 * 64 * 4


def test_a_jaxpr_will_do() -> None:
    params, tokens = arguments()
    assert [leaf.shape for leaf in jax.tree.leaves(params)][-1] == (100, WIDTH)
    graph = profile(jax.make_jaxpr(loss)(params, tokens), parameters=(0, 1, 2, 3))
    assert [node.time_ms for node in graph.nodes] == [node.time_ms for node in profile(loss, params, tokens).nodes]


def test_measured_times() -> None:
    graph = profile(loss, *arguments(2), measured=True)
    first, second = named(graph, "layer(0)") + named(graph, "layer(1)")
    assert first.forward_ms == second.forward_ms > 0
    assert partition(graph, [2], mode="exact", straight=True).pipeline_time > 0


def test_sizes_after_sharding() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    blocks = {"mix": P(None, None, "model"), "up": P(None, None, "model"), "down": P(None, "model", None)}
    shardings = ({"table": P(), "blocks": blocks}, P("data"))
    whole = profile(loss, *arguments())
    graph = profile(loss, *arguments(), mesh=mesh, in_shardings=shardings)
    layer, whole_layer = named(graph, "layer(1)")[0], named(whole, "layer(1)")[0]
    assert layer.activations == (ACTIVATION / 8,)
    assert layer.parameter_bytes == LAYER_BYTES / 4
    assert whole_layer.forward_ms / 8 <= layer.forward_ms < whole_layer.forward_ms / 4
    assert named(graph, "Input0")[0].activations == (8 * 16 * 4 / 2,)


def test_the_model_counts_products() -> None:
    h100 = hardware("h100")
    shape = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    jaxpr = jax.make_jaxpr(jnp.dot)(shape, shape).jaxpr
    assert sum(equation_seconds(jaxpr.eqns, jaxpr.outvars, h100)) == pytest.approx(2 * 4096**3 / h100.matrix_flops("bfloat16"))
    images, kernel = jax.ShapeDtypeStruct((8, 32, 32, 64), jnp.bfloat16), jax.ShapeDtypeStruct((3, 3, 64, 128), jnp.bfloat16)
    conv = jax.make_jaxpr(lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    rate = h100.with_figures(hbm_bandwidth=1e30)
    jaxpr = conv(images, kernel).jaxpr
    assert sum(equation_seconds(jaxpr.eqns, jaxpr.outvars, rate)) == pytest.approx(
        2 * 8 * 30 * 30 * 128 * 9 * 64 / h100.matrix_flops("bfloat16")
    )


def test_the_line_computes_what_the_function_does() -> None:
    key = jax.random.key(0)
    values = jax.tree.map(lambda s: jax.random.normal(key, s.shape), arguments()[0])
    tokens = jnp.arange(128).reshape(8, 16) % 100
    closed = jax.make_jaxpr(loss)(values, tokens)
    line = line_of(closed, [True, True, True, True, False])
    env: dict[Any, Any] = dict(zip(line.invars, jax.tree.leaves((values, tokens)))) | line.consts
    env |= {row: env[whole][step] for row, (whole, step) in line.rows.items()}
    eqns = [step.eqn for step in line.nodes]
    jaxpr = jax.make_jaxpr(lambda: ())().jaxpr.replace(invars=list(env), outvars=list(line.outvars), eqns=eqns)
    (result,) = jaxpr_as_fun(ClosedJaxpr(jaxpr, ()))(*env.values())
    assert float(result) == pytest.approx(float(loss(values, tokens)), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"by": "line"}, "cannot profile by"), ({"parameters": 5}, "there are 2 arguments"), ({"hardware": "abacus"}, "unknown hardware")],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ShardyError, match=message):
        profile(loss, *arguments(), **options)


def test_nothing_to_profile() -> None:
    with pytest.raises(ShardyError, match="nothing is computed"):
        profile(lambda w, x: x, jnp.ones(3), jnp.ones(3))
