"""Mistakes that users make: each says what is wrong, where, why and how to put it right; none shows a frame of ours above the user's."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

MESH = {"data": 2, "model": 4}


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


PARAMS = {"w": f32(64, 128), "b": f32(128)}
X = f32(8, 64)
WHOLE = P()


def layer(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["w"] + params["b"])


def plan(*args: Any, fun: Callable[..., Any] = layer, **options: Any) -> Any:
    return sp.auto_shard(fun, **{"mesh": MESH, **options}).plan(*(args or (PARAMS, X)))


def devices() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def on_devices(*shape: int, spec: P = WHOLE) -> jax.Array:
    return jax.device_put(jnp.ones(shape), NamedSharding(devices(), spec))


def deleted() -> None:
    step = sp.auto_shard(lambda state: state + 1, mesh=devices(), donate_argnums=0)
    state = on_devices(8, 8)
    step(state)
    step(state)


def donated_twice() -> None:
    state = on_devices(8, 8)
    sp.auto_shard(lambda a, b: (a + 1, b + 1), mesh=devices(), donate_argnums=(0, 1))(state, state)


def elsewhere() -> None:
    sp.auto_shard(jnp.sin, mesh=devices(), in_shardings=P("data"))(on_devices(8, 8, spec=P(None, "model")))


def constrained(x: Any) -> Any:
    return sp.with_sharding_constraint(x * 2, P("modle"))


def grouped(x: Any) -> Any:
    return sp.sharding_group(x, x[:4])


def conflicting() -> None:
    nn = pytest.importorskip("flax.linen")
    dense = nn.Dense(64, kernel_init=nn.with_logical_partitioning(nn.initializers.ones, ("embed", "mlp")))

    def init(key: Any, x: Any) -> Any:
        return dense.init(key, x)

    plan(jax.random.key(0), X, fun=init, logical_axis_rules=[("embed", "model"), ("mlp", "model")])


@sp.sharding_rule("b i, i o -> b o", reduction="i")
def opaque(x: Any) -> Any:
    return x


def update(w: Any, x: Any) -> Any:
    grads = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w["a"]) @ w["b"]) ** 2))(w)
    return jax.tree.map(lambda w, g: w - g, w, grads)


def planned(**options: Any) -> Any:
    return plan(planner=sp.Planner(**{"hardware": "h100", **options}))


def pipelined(**options: Any) -> Any:
    weights = {"a": jnp.ones((8, 8)), "b": jnp.ones((8, 8))}
    return sp.pipeline(update, **{"num_stages": 2, "num_microbatches": 2, "mesh": {"stage": 2}, **options})(weights, jnp.ones((16, 8)))


MISTAKES: dict[str, tuple[Callable[[], object], list[str]]] = {
    "unknown axis": (lambda: plan(in_shardings=({"w": P("modle"), "b": None}, None)), ["'modle'", "params['w']", "did you mean 'model'?"]),
    "axis twice": (lambda: plan(in_shardings=({"w": P("data", "data"), "b": None}, None)), ["'data'", "params['w']"]),
    "more dimensions than the array": (
        lambda: plan(in_shardings=({"w": None, "b": P(None, "model")}, None)),
        ["params['b']", "float32[128]"],
    ),
    "size that does not divide": (
        lambda: plan(PARAMS, f32(7, 64), in_shardings=(None, P("data"))),
        ["size 7", "x float32[7,64]", "6 or 8"],
    ),
    "tree of another structure": (lambda: plan(in_shardings=({"kernel": P(), "b": None}, None)), ["['kernel']", "['w']"]),
    "too few specs": (lambda: plan(in_shardings=(P(),)), ["in_shardings"]),
    "text in place of a spec": (lambda: plan(in_shardings=(None, "data")), ["'data'", "P("]),
    "result that does not divide": (lambda: plan(fun=lambda p, x: x[:3], out_shardings=P("data")), ["result", "size 3"]),
    "result of another structure": (lambda: plan(out_shardings=(P(), P())), ["out_shardings"]),
    "several specs for one result": (lambda: plan(out_shardings=(P("data"), None)), ["result", "one array, float32[8,128]", "P(...)"]),
    "no mesh": (lambda: sp.auto_shard(layer).plan(PARAMS, X), ["mesh", "jax.set_mesh"]),
    "mesh of another form": (lambda: plan(mesh=[2, 4]), ["mesh", "list"]),
    "axis of size 0": (lambda: plan(mesh={"data": 0}), ["'data'", "0"]),
    "more devices than there are": (lambda: sp.auto_shard(jnp.sin, mesh={"data": 4096})(jnp.ones(4096)), ["4096 devices", "smaller"]),
    "argument on another mesh": (
        lambda: plan(jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(AbstractMesh((8,), ("all",)), P("all"))), fun=jnp.sin),
        ["all", "data=2, model=4"],
    ),
    "argument that lies elsewhere": (elsewhere, ["in_shardings says P('data'", "jax.device_put"]),
    "argument that is no array": (lambda: plan(PARAMS, "adam"), ["x is a str", "static_argnames"]),
    "array of a type that JAX lacks": (lambda: plan(PARAMS, np.array(["adam"])), ["x is a numpy array of <U4", "astype"]),
    "strings in a tree of arrays": (lambda: plan({**PARAMS, "names": np.array(["adam"])}, X), ["params['names']", "<U4", "astype"]),
    "static argument without a hash": (lambda: plan(PARAMS, [1], static_argnames="x"), ["'x'", "no hash"]),
    "argument that is not there": (lambda: plan(donate_argnums=5), ["5"]),
    "donated before": (deleted, ["the buffer of state has been deleted", "result of that call"]),
    "donated twice": (donated_twice, ["a and b are one array", "jnp.copy"]),
    "rule with a wrong axis": (lambda: plan(rules=[("w", P("modle"))]), ["'modle'", "params['w']", "did you mean 'model'?"]),
    "rule that is no pair": (lambda: plan(rules=["w"]), ["rules"]),
    "logical axes in conflict": (conflicting, ["('embed', 'model')", "('mlp', 'model')"]),
    "constraint with a wrong axis": (lambda: plan(X, fun=constrained), ["'modle'", "did you mean 'model'?"]),
    "group of different shapes": (lambda: plan(f32(8), fun=grouped), ["[8]", "[4]"]),
    "sharding rule that cannot be read": (lambda: sp.sharding_rule("i k, k j > i j"), ["unknown character '>'"]),
    "sharding rule of other operands": (lambda: plan(X, fun=opaque), ["opaque"]),
    "lowering that is not there": (lambda: plan(lowering="smap"), ["smap", "shard_map"]),
    "value that the plan does not have": (lambda: plan().explain("params['v']"), ["params['v']", "params['w']"]),
    "axis that the plan does not have": (lambda: plan().explain("params['w']", axis="modle"), ["modle", "model"]),
    "hardware that is not known": (lambda: plan().cost_analysis("h1000"), ["h1000", "h100"]),
    "finding that is not known": (lambda: plan().check(ignore="replicated"), ["replicated", "replicated-large"]),
    "memory that is negative": (lambda: plan().memory_analysis(-1), ["-1 bytes", "16 << 30"]),
    "memory of hardware that is not known": (lambda: plan().memory_analysis("gcc"), ["gcc", "h100"]),
    "depth that is no number": (lambda: plan().collectives_by_module("all"), ["depth is 'all'", "0, 1, 2"]),  # pyright: ignore[reportArgumentType]
    "link that is not known": (lambda: plan().cost_analysis("h100", {"data": "ethernet"}), ["'ethernet'", "nvlink"]),
    "link of an axis that is not known": (lambda: plan().cost_analysis("h100", {"dta": "nvlink"}), ["'dta'", "data=2"]),
    "style that is not known": (lambda: plan().as_code(style="flax"), ["'flax'", "'logical'"]),
    "state that the plan does not have": (lambda: plan().abstract_state("prams"), ["'prams'", "'params'"]),
    "plan of another function": (lambda: plan(in_shardings=plan(X, fun=jnp.sin)), ["params['b']", "other arguments"]),
    "rule for more dimensions": (lambda: plan(rules=[("b", P(None, "model"))]), ["rules[0]", "params['b'] float32[128]"]),
    "name that is not there": (lambda: plan(donate_argnames="state"), ["'state'", "'params', 'x'"]),
    "missing argument": (lambda: plan(X), ["'x'"]),
    "something that is no function": (lambda: sp.auto_shard(3, mesh=MESH), ["a int", "@auto_shard(mesh=..."]),  # pyright: ignore[reportCallIssue, reportArgumentType]
    "check of no function": (lambda: sp.check(3, X), ["a int", "pass the step"]),  # pyright: ignore[reportArgumentType]
    "check without a mesh": (lambda: sp.check(layer, PARAMS, X), ["no mesh", "jax.set_mesh"]),
    "constraint without a mesh": (lambda: sp.with_sharding_constraint(jnp.ones(8), P("data")), ["no mesh", "auto_shard"]),
    "negative priority": (lambda: plan(X, fun=lambda x: sp.with_sharding_constraint(x, P("data"), priority=-1)), ["-1", "priority=0"]),
    "barrier in no direction": (lambda: plan(X, fun=lambda x: sp.propagation_barrier(x, "both")), ["'both'", '"backward"']),  # pyright: ignore[reportArgumentType]
    "number of devices without a planner": (lambda: plan(mesh=8), ["8", "planner="]),
    "option that is not known": (lambda: plan(options=sp.Options(indivisible="pad")), ["'pad'", "'drop'"]),  # pyright: ignore[reportArgumentType]
    "verification of shapes": (lambda: sp.auto_shard(layer, mesh=devices()).verify(PARAMS, X), ["ShapeDtypeStruct", "pass arrays"]),
    "planner for hardware that is not known": (lambda: planned(hardware="h1000"), ["h1000", "h100"]),
    "planner without time": (lambda: planned(time_limit_s=-1), ["time_limit_s", "seconds"]),
    "planner with a budget that is no number": (lambda: planned(memory_bytes="16 gigs"), ["'16 gigs'", "80GiB"]),
    "planner with a budget that nothing fits": (lambda: planned(memory_bytes=10), ["10 B", "devices"]),
    "planner fed an argument that is not there": (lambda: planned(fed="bathc"), ["'bathc'", "'x'"]),
    "pipeline on a mesh without stages": (lambda: pipelined(mesh={"data": 8}), ["'stage'", "axis='data'"]),
    "microbatches that do not divide": (lambda: pipelined(num_microbatches=3), ["16 examples", "num_microbatches=2"]),
    "schedule that is not there": (lambda: pipelined(schedule="1f2b"), ["'1f2b'", "'1f1b'"]),
    "text that is not JSON": (lambda: sp.Plan.from_json(plan().to_json()[:500]), ["not JSON", "cut short"]),
    "file that is no plan": (lambda: sp.Plan.from_json("{}"), ["plan"]),
}
WITHOUT_REASON = frozenset({"sharding rule that cannot be read", "sharding rule of other operands"})
"""Errors of texts, which show the line with a caret in place of a reason."""


OF_A_PLAN = frozenset(
    name
    for name in MISTAKES
    if name.endswith(("plan does not have", "is not known", "is no plan", "is negative", "is no number", "is not JSON", "without time"))
)
"""A plan answers without JAX too, whose filter of tracebacks drops our frames elsewhere: here they stand below the user's."""


def test_there_are_enough() -> None:
    assert len(MISTAKES) >= 60


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_says_what_where_why_and_how_to_put_it_right(name: str) -> None:
    run, words = MISTAKES[name]
    with pytest.raises(sp.ShardyError) as caught:
        run()
    error = caught.value
    missing = [
        part for part in ("what", "where", "why", "fix") if not getattr(error, part) and not (part == "why" and name in WITHOUT_REASON)
    ]
    assert not missing, f"no {missing} in:\n{error}"
    assert [word for word in words if word not in str(error)] == [], str(error)
    if name in OF_A_PLAN:
        return
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert not [file for file in frames if "/shardy_py/" in file.removeprefix(__file__.rpartition("/tests/")[0])], frames
