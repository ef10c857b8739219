"""`Plan.explain`: why values have their axes."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.errors import ShardyError
from shardy_py.facade import Plan
from shardy_py.plan.explainer import explainer_of
from shardy_py.plan.explanation import Reason
from shardy_py.plan.record import PlanError
from tests.plan.explained_replay import Replay, holds

MESH = {"data": 2, "model": 4}
U = P.UNCONSTRAINED


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def planned(fun, *args, **options) -> Plan:
    return sp.auto_shard(fun, mesh=MESH, **options).plan(*args)


def only(plan: Plan, target: str, axis: str | None = None) -> tuple[Reason, ...]:
    (chain,) = plan.explain(target, axis).chains
    return chain


def causes(chain: tuple[Reason, ...]) -> list[str]:
    return [reason.cause for reason in chain]


def told(chain: tuple[Reason, ...]) -> list[tuple[str, int, str]]:
    return [(reason.value, reason.dim, reason.through or reason.annotation) for reason in chain]


def line(fun, offset: int = 1) -> str:
    return f"test_explain.py:{fun.__code__.co_firstlineno + offset}"


def test_each_step_names_rule_factor_place_and_priorities() -> None:
    def dot(w, x):
        return jnp.tanh(x @ w)

    plan = planned(dot, f32(16, 32), f32(8, 16), in_shardings=(P(None, "model"), P("data")))
    last, tanh, product, given = only(plan, "result", "model")
    assert (last.value, last.dim, last.cause) == ("result", 1, "result")
    assert (tanh.value, tanh.through, tanh.cause, tanh.op_priority) == ("%1", "tanh", "propagated", 2)
    assert product.rule == "#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=32, k=16} reduction={k}>"
    assert (product.factor, product.location.rpartition("/")[2], product.axes) == ("j", line(dot), ("model",))
    assert (given.cause, given.annotation, given.value, given.dim, given.needs) == ("annotation", "in_shardings", "w", 1, ())
    assert [r.needs for r in (last, tanh, product)] == [(1,), (2,), (3,)]
    assert [r.step for r in (last, tanh, product)] == sorted((r.step for r in (last, tanh, product)), reverse=True)
    assert given.step == -1


def test_what_annotations_are_called() -> None:
    mesh = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def f(a, b, c, d):
        return sp.with_sharding_constraint(a, P("model")), b + 1, c + 1, jax.jit(jnp.tanh, in_shardings=NamedSharding(mesh, P("data")))(d)

    given = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    step = sp.auto_shard(
        f, mesh=mesh, in_shardings=(P("data"), None, None, None), out_shardings=(None, None, P("model"), None), rules=[("b", P("model"))]
    )
    plan = step.plan(f32(8), f32(8), f32(8), f32(8))

    def end(target: str) -> str:
        return only(plan, target)[-1].annotation

    assert end("a") == "in_shardings"
    assert end("b") == "rules[0] ('b')"
    assert end("c") == "out_shardings"
    assert end("result[0]") == "with_sharding_constraint"
    assert end("result[3]") == "in_shardings of jit tanh"
    tanh = jax.jit(jnp.tanh, in_shardings=NamedSharding(mesh, P("data")))
    looped = sp.auto_shard(lambda x: jax.lax.fori_loop(0, 2, lambda _, c: tanh(c), x), mesh=mesh).plan(f32(8))
    assert only(looped, "x")[-1].annotation == "in_shardings of jit tanh"
    (own,) = sp.auto_shard(lambda x: x, mesh=mesh).plan(given).explain("x").chains[0]
    assert own.annotation == "the sharding of the argument"


def test_through_a_scan() -> None:
    def stack(ws, x):
        def body(c, w):
            return jnp.tanh(c @ w), None

        return jax.lax.scan(body, x, ws)[0]

    plan = planned(stack, f32(3, 16, 16), f32(8, 16), in_shardings=(P(None, None, "model"), P("data")))
    assert causes(only(plan, "result", "data")) == ["result", "entry", "annotation"]
    chain = only(plan, "result", "model")
    assert [c for c in causes(chain) if c != "propagated"][:3] == ["result", "carry", "exit"]
    assert (chain[-1].value, chain[-1].annotation) == ("ws", "in_shardings")
    assert "scan" in {reason.through for reason in chain}


def test_through_loops_branches_and_derivative_rules() -> None:
    @jax.custom_vjp
    def double(x):
        return x * 2

    double.defvjp(lambda x: (x * 2, x), lambda x, g: (g * jnp.cos(x),))

    def f(x, w):
        y = jax.lax.while_loop(lambda c: c.sum() < 10.0, lambda c: c * 2 + w, x)
        z = jax.lax.cond(y.sum() > 0, lambda a: a * 2, lambda a: a + w, y)
        return jax.checkpoint(lambda v: jnp.sin(double(v)))(z).sum()

    grad = jax.grad(lambda w, x: jax.checkpoint(lambda v: jnp.sin(double(v)))(x * w).sum())
    plan = planned(grad, f32(8, 16), f32(8, 16), in_shardings=(None, P("data")))
    assert only(plan, "w", "data")[-1].value == "x"
    assert only(plan, "result", "data")[-1].value == "x"
    plan = planned(f, f32(8, 16), f32(8, 16), in_shardings=(P("data"), None))
    w = only(plan, "w")
    assert {"while", "cond"} & {reason.through for reason in w}
    assert (w[-1].value, w[-1].annotation) == ("x", "in_shardings")
    for value in plan.values:
        assert all(chain[-1].cause == "annotation" for chain in plan.explain(value).chains)


def test_groups_barriers_and_named_computations() -> None:
    def update(w, m, x):
        w, m = sp.sharding_group(w, m)
        x = sp.propagation_barrier(x, "forward")
        return sp.named_computation(jnp.tanh, name="squash")(w + x), m

    plan = planned(update, f32(64), f32(64), f32(64), in_shardings=(P("model"), None, P("model")))
    group, given = only(plan, "m")
    assert (group.cause, group.location.rpartition("/")[2], given.value) == ("group", line(update), "w")
    inside = only(plan, "result[0]")
    assert [(r.cause, r.through) for r in inside if r.cause in ("entry", "exit")] == [("exit", "squash"), ("entry", "squash")]
    backward = planned(lambda x: sp.propagation_barrier(x, "forward") * 2, f32(64), in_shardings=P("model"))
    assert "barrier" in causes(only(backward, "result"))


def test_priorities() -> None:
    def f(w, x):
        return sp.with_sharding_constraint(x @ w, P(U, "model"), priority=1)

    plan = planned(f, f32(16, 32), f32(8, 16), in_shardings=(None, P("data")))
    assert {reason.user_priority for reason in only(plan, "result", "data")} == {0}
    chain = only(plan, "w")
    assert {reason.user_priority for reason in chain} == {1}
    assert chain[-1].annotation == "with_sharding_constraint"
    assert "user priority 1" in str(plan.explain("w"))


def test_manual_computations() -> None:
    def f(x, w):
        h = x @ w
        local = jax.shard_map(
            lambda a: a * 2,
            mesh=AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2),
            in_specs=P("data"),
            out_specs=P("data"),
            axis_names={"data"},
        )
        return jnp.tanh(local(h))

    plan = planned(f, f32(8, 16), f32(16, 32), in_shardings=(None, P(None, "model")))
    assert only(plan, "x")[-1].annotation == "in_specs of shard_map"
    assert only(plan, "result", "data")[-1].annotation == "out_specs of shard_map"
    chain = only(plan, "result", "model")
    assert [(r.cause, r.through) for r in chain if r.cause in ("entry", "exit")] == [("exit", "shard_map"), ("entry", "shard_map")]
    assert chain[-1].value == "w"


def test_a_closed_constraint_is_taken_by_the_value_it_is_on() -> None:
    plan = planned(lambda x: sp.with_sharding_constraint(x * 2, P("data")), f32(8))
    assert causes(only(plan, "x")) == ["propagated", "constraint", "annotation"]
    assert only(plan, "x")[-1].annotation == "with_sharding_constraint"


def test_an_axis_that_comes_in_parts_needs_all_of_them() -> None:
    plan = sp.auto_shard(lambda x: x.reshape(-1) * 2, mesh={"a": 2, "b": 2}, in_shardings=P("a", "b")).plan(f32(2, 4))
    first, second = plan.explain("result").chains
    assert (first[0].axes, second[0].axes) == (("a",), ("a", "b"))
    (parts,) = [reason for reason in second if len(reason.needs) > 1]
    assert {(second[i].value, second[i].dim, second[i].axis) for i in parts.needs} == {("x", 0, "a"), ("x", 1, "b")}
    holder = explainer_of(plan).history.results[0]
    assert holds(Replay(plan), second, holder)
    assert not holds(Replay(plan), tuple(r for r in second if (r.value, r.dim) != ("x", 0)), holder)
    assert "the axis comes in parts" in str(plan.explain("result", "b"))


def test_other_sources() -> None:
    plan = planned(lambda x, y, z: (x + y).sum() + z, f32(8), f32(8), f32(8), in_shardings=(P("data"), P("data"), P("data")))
    why = plan.explain("%0")
    assert why.chains[0][-1].value == "x"
    assert [str(source) for source in why.also] == ["in_shardings of y"]
    assert why.connected == ()
    assert "also from: in_shardings of y" in str(why)
    blocked = planned(
        lambda x, y, z: (x + y, jnp.tanh(y) + z), f32(8), f32(8), f32(8), in_shardings=(P("data"), P("model"), P("data"))
    ).explain("x")
    assert [source.value for source in blocked.connected] == ["z"]


def test_text() -> None:
    def long(x):
        for _ in range(6):
            x = jnp.sin(x) * 2
        return x

    plan = planned(long, f32(8), in_shardings=P("data"))
    name = f"test_explain.py:{long.__code__.co_firstlineno + 2}"
    assert str(plan.explain("result")) == "\n".join(
        [
            "result: float32[8@data]",
            "  'data' on dimension 0: in_shardings of x",
            "    result  dim 0  returned",
            f"    %11     dim 0  mul           {name}",
            "    ...  10 more: sin x5, mul x5",
            f"    %0      dim 0  sin           {name}",
            "    x       dim 0  in_shardings",
        ]
    )
    assert len(plan.explain("result").chains[0]) == 14
    assert repr(plan.explain("result")) == str(plan.explain("result"))
    assert str(plan.explain("%0").chains[0][0]).startswith("%0 has 'data' on dimension 0: through sin at ")


def test_scalars() -> None:
    plan = planned(lambda x: x.sum(), f32(8), in_shardings=P("data"))
    for axis in (None, "data"):
        assert str(plan.explain("result", axis)) == "result: float32[]\n  it has no dimensions that an axis could be on"


def test_json() -> None:
    plan = planned(lambda x, y: (x + y, y.sum()), f32(8, 4), f32(8, 4), in_shardings=(P("data"), P("model")))
    for target, axis in (("result[0]", "model"), ("x", None), ("x", "model"), ("result[0]", None)):
        why = plan.explain(target, axis)
        data = json.loads(why.to_json(indent=1))
        assert data == json.loads(json.dumps(why.to_dict()))
        assert (data["format"], data["version"], data["target"]) == ("shardy_py.explanation", 1, target)


def test_a_stored_plan_explains_as_the_plan_itself() -> None:
    def stack(ws, x):
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum(0)), x, ws)

    plan = planned(stack, f32(3, 16, 16), f32(8, 16), in_shardings=(P(None, None, "model"), P("data")))
    stored = Plan.from_json(plan.to_json())
    for value in plan.values:
        for axis in (None, *MESH):
            assert stored.explain(value.path, axis) == plan.explain(value.path, axis)


def test_without_provenance() -> None:
    plan = planned(lambda x: x * 2, f32(8), in_shardings=P("data"), options=sp.Options(provenance=False))
    with pytest.raises(PlanError, match=r"why x is float32\[8@data\][\s\S]*provenance=False"):
        plan.explain("x")
    with pytest.raises(PlanError, match="provenance=False"):
        Plan.from_json(plan.to_json()).explain("x")


def test_wrong_axes_and_dimensions() -> None:
    plan = planned(lambda x: x * 2, f32(8), in_shardings=P("data"))
    with pytest.raises(PlanError, match="unknown mesh axis 'modle'"):
        plan.explain("x", "modle")
    with pytest.raises(PlanError, match="x has no dimension 1"):
        plan.explain("x", dim=1)
    with pytest.raises(TypeError, match="got int"):
        plan.explain(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["basic", "aggressive", "basic-then-aggressive"])
def test_options(strategy: str) -> None:
    def f(w, x):
        return jnp.tanh(x @ w).reshape(4, 2, -1)

    for conservative in (False, True):
        options = sp.Options(strategy=strategy, conservative=conservative, op_priority=not conservative)  # type: ignore[arg-type]
        plan = planned(f, f32(16, 32), f32(8, 16), in_shardings=(P(None, "model"), P("data")), options=options)
        for value in plan.values:
            for axis in (None, *MESH):
                assert plan.explain(value, axis).target == value.path
        assert only(plan, "result", "model")[-1].value == "w"


def test_a_log_that_does_not_fit() -> None:
    plan = planned(lambda x, y: jnp.sin(x) + y, f32(8), f32(8), in_shardings=(P("data"), None))
    number = max(reason.step for reason in only(plan, "y"))
    step = plan.log[number]
    log = [*plan.log[:number], step._replace(tensors=(step.target,) * len(step.tensors)), *plan.log[number + 1 :]]
    with pytest.raises(ShardyError, match=f"does not fit its program[\\s\\S]*step {number}"):
        dataclasses.replace(plan, log=log).explain("y")


@pytest.mark.parametrize("width", [60, 80, 116, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    weights = {"transformer_layers": [{"feed_forward": {"up_projection": f32(64, 128)}}, {"feed_forward": {"up_projection": f32(64, 128)}}]}

    def forward(params, batch):
        first, second = (layer["feed_forward"]["up_projection"] for layer in params["transformer_layers"])
        return jnp.tanh(jnp.tanh(batch @ first) @ first.T) @ second

    plan = planned(forward, weights, f32(8, 64), in_shardings=({"transformer_layers": P(None, "model")}, P("data")))
    path = "params['transformer_layers'][1]['feed_forward']['up_projection']"
    for why in (plan.explain("result"), plan.explain(path), plan.explain(path, "data"), plan.explain("batch", "model")):
        text = why.as_text(width=width)
        assert all(len(line) <= width or " " not in line.strip() or path in line for line in text.splitlines())
        assert text.split() == why.as_text(width=1000).split()
    assert str(plan.explain("result")) == plan.explain("result").as_text(width=116)
