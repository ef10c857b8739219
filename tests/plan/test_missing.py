"""Why an axis is not on a dimension."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan
from shardy_py.plan.explanation import KINDS, Missing

MESH = {"data": 2, "model": 4}
U = P.UNCONSTRAINED


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def planned(fun, *args, mesh=MESH, **options) -> Plan:
    return sp.auto_shard(fun, mesh=mesh, **options).plan(*args)


def lacks(plan: Plan, target: str, axis: str, dim: int = 0) -> Missing:
    why = plan.explain(target, axis, dim=dim)
    assert why.chains == ()
    (missing,) = why.missing
    assert (missing.dim, missing.axis) == (dim, axis)
    assert missing.kind in KINDS
    assert missing.message in " ".join(str(why).split())
    assert str(missing) == f"dimension {dim} lacks {axis!r}, {missing.kind}: {missing.message}"
    return missing


def test_conflict_names_the_winner_and_where_it_comes_from() -> None:
    def add(a, b):
        return (a + jnp.sin(b)) * 2

    plan = planned(add, f32(8, 8), f32(8, 8), in_shardings=(P("data", U), P("model", U)))
    missing = lacks(plan, "result", "model")
    assert missing.kind == "conflict"
    assert (missing.value, missing.stopped, missing.source, missing.source_dim, missing.through) == ("%1", 0, "%0", 0, "add")
    assert missing.location.endswith(f"test_missing.py:{add.__code__.co_firstlineno + 1}")
    assert [(r.value, r.annotation) for r in missing.winner] == [("a", "in_shardings")]
    assert "dimension 0 of a has 'data' there" in missing.message
    assert missing.message.endswith("dimension 0 of result would get it from there")
    assert missing.fix == "constrain dimension 0 of %1 to 'model', or take 'data' from in_shardings of a"


def test_conflict_tells_which_priority_decided() -> None:
    def late(w, x):
        return sp.with_sharding_constraint(x, P("model", U), priority=1) + w

    plan = planned(late, f32(8, 8), f32(8, 8), in_shardings=(P("data", U), None))
    assert "(with the user priority 0, 'model' has 1)" in lacks(plan, "result", "model").message


def test_closed_says_by_whom() -> None:
    plan = planned(lambda a, b: a + b, f32(8, 8), f32(8, 8), in_shardings=(P("data"), P(None, "model")))
    missing = lacks(plan, "a", "model", 1)
    assert (missing.kind, missing.value, missing.stopped) == ("closed", "a", 1)
    assert (missing.source, missing.through) == ("b", "add")
    assert "dimension 1 of a is closed by in_shardings" in missing.message
    assert missing.fix == "name 'model' in in_shardings, or leave the dimension open: P.UNCONSTRAINED"
    constrained = planned(lambda a: sp.with_sharding_constraint(jnp.sin(a), P(None)) * 2, f32(8), in_shardings=P("data"))
    assert "closed by with_sharding_constraint" in lacks(constrained, "result", "data").message
    far = planned(lambda a, b: (a * 2, b), f32(8, 8), f32(8), in_shardings=(P("data"), P("model")))
    assert "none of its neighbours has 'model' to give" in lacks(far, "a", "model", 1).message


def test_used_on_another_dimension() -> None:
    plan = planned(lambda x: x @ x.T, f32(8, 8), in_shardings=P("data"))
    assert plan.explain("result").sharding == "float32[8@data,8]"
    missing = lacks(plan, "result", "data", 1)
    assert missing.kind == "used"
    assert missing.winner[-1].value == "x"
    assert plan.explain("result", "data").missing == ()


def test_indivisible_names_the_nearest_sizes() -> None:
    def joined(a, b):
        return sp.with_sharding_constraint(jnp.concatenate([a, b]), P("model"))

    plan = planned(joined, f32(5, 2), f32(5, 2))
    missing = lacks(plan, "a", "model")
    assert missing.kind == "indivisible"
    assert "5 is not a multiple of 4 (model)" in missing.message
    assert missing.fix == "make it 4 or 8"
    assert missing.winner[-1].annotation == "with_sharding_constraint"
    why = plan.explain("a")
    assert [m.kind for m in why.missing if m.axis == "model"] == ["indivisible", "used"]
    assert "it is replicated" in str(why)


def test_parts_of_axes_are_cut() -> None:
    plan = planned(lambda a: (a * 2).reshape(6, 10), f32(60), in_shardings=P("model"))
    assert lacks(plan, "result", "model").kind == "cut"


def test_a_more_significant_part_comes_first() -> None:
    plan = planned(lambda x: x.T.reshape(-1), f32(4, 4), in_shardings=P("model"))
    assert lacks(plan, "result", "model").kind == "major"


def test_blocked_and_missing_rules() -> None:
    def opaque(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    missing = lacks(planned(opaque, f32(8, 4), in_shardings=P("data")), "result", "data")
    assert (missing.kind, missing.through, missing.source) == ("no-rule", "pure_callback", "x")
    assert missing.fix == "give it a rule with shardy_py.sharding_rule"

    @sp.sharding_rule("a b -> a b", blocked_propagation="a")
    def sine(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    missing = lacks(planned(lambda x: sine(x) + 1, f32(8, 4), in_shardings=P("data")), "result", "data")
    assert missing.kind == "blocked"


def test_what_runs_on_one_device() -> None:
    def opaque(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1

    plan = planned(opaque, f32(8, 4), in_shardings=P("data"))
    missing = lacks(plan, "%0", "model")
    assert (missing.kind, missing.through, missing.location) == ("one-device", "pure_callback", plan.values[1].location)
    assert "runs on one device" in str(plan.explain("%0"))
    assert all(str(plan.explain(value, axis)) for value in plan.values for axis in (None, "data", "model"))


def test_barriers() -> None:
    plan = planned(lambda w, x: w + sp.propagation_barrier(x, "forward"), f32(8), f32(8), in_shardings=(P("model"), None))
    assert lacks(plan, "x", "model").kind == "barrier"
    plan = planned(lambda w, x: w + sp.propagation_barrier(x, "none"), f32(8), f32(8), in_shardings=(P("model"), None))
    missing = lacks(plan, "x", "model")
    assert missing.kind == "barrier"
    assert "lets nothing pass" in missing.message


def test_unrelated_names_the_nearest_and_the_op_between() -> None:
    plan = planned(lambda w, x: x @ w, f32(16, 32), f32(8, 16), in_shardings=(P(None, "model"), P("data", U)))
    missing = lacks(plan, "x", "model", 1)
    assert (missing.kind, missing.source, missing.source_dim, missing.through) == ("unrelated", "w", 1, "dot_general")
    alone = planned(lambda a, b: (a * 2, b * 2), f32(8), f32(8), in_shardings=(P("data"), None))
    assert lacks(alone, "b", "data").message == "no value that computes with b has 'data'"


def test_scalars_on_the_way_need_no_rule() -> None:
    plan = planned(lambda x: jnp.ones(4) * (x[0] * 2), f32(8), in_shardings=P("data"))
    missing = plan.explain("result", "data").missing[0]
    assert (missing.kind, missing.fix) == ("unrelated", "")
    assert "no rule relates it to a dimension with 'data'" in missing.message


def test_absent() -> None:
    plan = planned(lambda a: a * 2, f32(8), in_shardings=P("data"))
    assert lacks(plan, "a", "model").message == "no annotation names 'model'"
    replicated = planned(lambda a: a * 2, f32(8)).explain("result")
    assert [(m.axis, m.kind) for m in replicated.missing] == [("data", "absent"), ("model", "absent")]


def test_manual_axes() -> None:
    def f(x, w):
        mesh = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        inner = jax.shard_map(lambda a: jnp.sin(a) * 2, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
        return inner(x) + w

    plan = planned(f, f32(8, 8), f32(8, 8), in_shardings=(None, None))
    sine = next(v.path for v in plan.values if v.primitive == "sin")
    assert lacks(plan, sine, "data").kind == "manual"


def test_dimensions_with_one_reason_share_a_line() -> None:
    plan = planned(lambda x: jax.pure_callback(np.sin, x, x) + 1, f32(8, 4, 2), in_shardings=P("data"))
    assert "dimensions 0, 1, 2 lack 'data', no-rule" in str(plan.explain("result", "data"))


@pytest.mark.parametrize("strategy", ["basic", "aggressive"])
def test_conservative(strategy: str) -> None:
    options = sp.Options(conservative=True, strategy=strategy)  # type: ignore[arg-type]
    plan = planned(lambda a: (a * 2).reshape(2, 30), f32(60), in_shardings=P("model"), options=options)
    for dim in range(2):
        assert lacks(plan, "result", "model", dim).kind in KINDS
