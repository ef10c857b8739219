"""Arrays in the host's memory, as arguments, results and inside, on their way through plans and runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.cost.hardware_table import hardware

Space = jax.memory.Space
MESH = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
POLICIES = jax.checkpoint_policies


def device(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, P(*spec))


def host(*spec: Any) -> NamedSharding:
    return NamedSharding(MESH, P(*spec), memory_kind="pinned_host")


def adam(w: Any, m: Any, v: Any, x: Any) -> Any:
    g = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    m, v = jax.device_put((m, v), Space.Device)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    w = w - 0.1 * m / (jnp.sqrt(v) + 1e-6)
    return w, *jax.device_put((m, v), Space.Host)


def streamed(ws: Any, x: Any) -> Any:
    return lax.scan(lambda h, w: (jnp.tanh(h @ jax.device_put(w, Space.Device)), None), x, ws)[0]


def layers(policy: Any) -> Callable[..., Any]:
    def layer(h: Any, w: Any) -> tuple[Any, None]:
        return jnp.tanh(checkpoint_name(h @ w, "h")), None

    return jax.grad(lambda ws, h: lax.scan(jax.checkpoint(layer, policy=policy), h, ws)[0].sum())


KEPT = POLICIES.save_only_these_names("h")
OFFLOADED = POLICIES.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["h"], offload_src="device", offload_dst="pinned_host"
)
STACK = host(None, None, "y")
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[tuple[int, ...], NamedSharding]], Any]] = {
    "argument": (lambda x: jax.device_put(x, Space.Device) * 2, [((8, 16), host("x"))], None),
    "argument moved by a sharding": (lambda x: jax.device_put(x, device("x")) * 2, [((8, 16), host("x"))], None),
    "result": (lambda x: jax.device_put(x * 2, Space.Host), [((8, 16), device("x"))], None),
    "result by annotation": (lambda x: x * 2, [((8, 16), device("x"))], host("x")),
    "there and back": (lambda x: jax.device_put(jax.device_put(x * 2, Space.Host), Space.Device) + 1, [((8, 16), device("x"))], None),
    "returned": (lambda x: x, [((8, 16), host("x"))], None),
    "moments": (adam, [((16, 16), s) for s in (device(None, "y"), host(None, "y"), host(None, "y"), device("x"))], None),
    "streamed weights": (streamed, [((4, 16, 16), STACK), ((8, 16), device("x"))], None),
    "gradients of streamed weights": (jax.grad(lambda *a: streamed(*a).sum()), [((4, 16, 16), STACK), ((8, 16), device("x"))], None),
    "offloaded activations": (layers(OFFLOADED), [((4, 16, 16), device(None, None, "y")), ((8, 16), device("x"))], None),
}


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, lowering: str) -> None:
    function, arrays, out = PROGRAMS[name]
    args = [jax.device_put(np.random.default_rng(i).random(shape).astype(np.float32), at) for i, (shape, at) in enumerate(arrays)]
    expected = jax.tree.leaves(jax.jit(function, out_shardings=out)(*args))
    step = sp.auto_shard(function, mesh=MESH, out_shardings=out, lowering=lowering)
    for result, each in zip(jax.tree.leaves(step(*args)), expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), np.asarray(each), rtol=1e-5, atol=1e-6)
        assert result.sharding.memory_kind == each.sharding.memory_kind


def test_numpy_is_put_where_the_annotation_says() -> None:
    step = sp.auto_shard(lambda x: x, mesh=MESH, in_shardings=host("x"))
    assert step(np.ones((8, 8), np.float32)).sharding.memory_kind == "pinned_host"


def planned(lowering: str = "auto", rows: int = 1024) -> sp.Plan:
    mesh = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    shardings = [NamedSharding(mesh, P(None, "y"), memory_kind=kind) for kind in ("device", "pinned_host", "pinned_host")]
    step = sp.auto_shard(
        adam, mesh=mesh, in_shardings=(*shardings, P("x")), out_shardings=shardings, donate_argnums=(0, 1, 2), lowering=lowering,
        options=sp.Options(platform="tpu"),
    )  # fmt: skip
    return step.plan(*[jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 3, jax.ShapeDtypeStruct((rows, 1024), jnp.float32))


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_moments_on_the_host_take_no_memory_of_devices(lowering: str) -> None:
    memory = planned(lowering).memory_analysis("v5e")
    sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.alias_size_in_bytes
    assert [size >> 20 for size in sizes] == [3, 1, 1]
    on_host = memory.host_argument_size_in_bytes, memory.host_output_size_in_bytes, memory.host_alias_size_in_bytes
    assert [size >> 20 for size in on_host] == [2, 2, 2]
    assert memory.host_temp_size_in_bytes == 0


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_what_moves_between_host_and_device_takes_the_time_of_their_link(lowering: str) -> None:
    cost, rate = planned(lowering).cost_analysis("v5e"), hardware("v5e").host_bandwidth
    assert rate is not None
    moves = [op for op in cost.ops if op.primitive == "device_put"]
    assert sum(op.seconds or 0 for op in moves) == pytest.approx(4 * 2**20 / rate)  # two moments, there and back
    assert cost.host_bytes == cost.to_dict()["host_bytes"] == 4 * 2**20
    assert "to and from host 4 MiB" in " ".join(cost.as_text().split())


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_moves_that_nothing_hides_are_a_finding(lowering: str) -> None:
    (finding,) = [finding for finding in planned(lowering).findings if finding.kind == "host-transfer"]
    assert (finding.severity, finding.bytes) == ("info", 4 * 2**20)
    assert "moves 4 MiB between the host and each device, 131 us over the link of v5p" in finding.message
    assert finding.location.endswith(f":{adam.__code__.co_firstlineno + 2}")
    assert not [finding for finding in planned(lowering, rows=2**19).findings if finding.kind == "host-transfer"]


def test_a_plan_says_what_is_on_the_host() -> None:
    plan = planned()
    text = plan.as_text()
    assert "inputs  4 arrays, 3 MiB on each device, 2 MiB in the host's memory for each" in text
    assert "float32[1024,1024@y] in pinned_host  1 MiB" in text
    memory = " ".join(plan.memory_analysis("v5e").as_text().split())
    assert "in the host's memory 2 MiB of arguments and results, 0 B of temporaries" in memory
    assert [sharding.memory_kind or "device" for sharding in plan.input_shardings] == ["device", "pinned_host", "pinned_host", "device"]
    assert sp.Plan.from_json(plan.to_json()).as_text() == text


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
def test_offloaded_activations_lie_on_the_host(lowering: str) -> None:
    count, width = 8, 2048
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((count, width, width), (8 * width, width))]
    memories = []
    for policy in (KEPT, OFFLOADED):
        step = sp.auto_shard(
            layers(policy), mesh={"x": 2, "y": 4}, in_shardings=(P(None, None, "y"), P("x")), lowering=lowering,
            options=sp.Options(platform="tpu"),
        )  # fmt: skip
        memories.append(step.plan(*shapes).memory_analysis("v5e"))
    activations = count * 8 * width * width * 4 // 8
    assert [memory.host_temp_size_in_bytes for memory in memories] == [0, activations]
    assert memories[0].peak_memory_in_bytes - memories[1].peak_memory_in_bytes >= 0.9 * activations


def test_slices_on_their_way_to_the_device_take_no_memory_of_the_host() -> None:
    mesh = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    stack = NamedSharding(mesh, P(None, None, "y"), memory_kind="pinned_host")
    step = sp.auto_shard(streamed, mesh=mesh, in_shardings=(stack, P("x")), options=sp.Options(platform="tpu"))
    memory = step.plan(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((4, 1024, 1024), (1024, 1024)))).memory_analysis("v5e")
    assert (memory.host_argument_size_in_bytes, memory.host_temp_size_in_bytes) == (4 << 20, 0)


def test_donated_arrays_take_results_of_their_memory_only() -> None:
    step = sp.auto_shard(lambda m: jax.device_put(m, Space.Device) * 2, mesh=MESH, in_shardings=host("x"), donate_argnums=0)
    (donated,) = step.plan(jax.ShapeDtypeStruct((8, 16), jnp.float32)).donation
    assert donated.aliased is None
    assert "pinned_host" in donated.reason


def test_the_planner_counts_what_is_on_the_host_apart() -> None:
    mesh = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    held = NamedSharding(mesh, P(), memory_kind="pinned_host")
    planner = sp.Planner(hardware="v5e", memory_bytes="40MiB")
    step = sp.auto_shard(adam, mesh=mesh, in_shardings=(P(), held, held, P("x")), planner=planner)
    plan = step.plan(*[jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 4)
    assert [bool(value.memory_kind) for value in (*plan.inputs, *plan.outputs)] == [False, True, True, False, False, True, True]
    assert plan.search is not None
    assert plan.search.peak_bytes == plan.memory_analysis("v5e").peak_memory_in_bytes <= 40 << 20
