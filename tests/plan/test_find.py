"""Which value `Plan.explain` takes a target for."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.facade import Plan
from shardy_py.plan.record import PlanError


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def net(params, x):
    with jax.named_scope("mlp"):
        with jax.named_scope("up"):
            hidden = checkpoint_name(jnp.tanh(x @ params["up"]), "activation")
        out, more = hidden @ params["down"], 1
    return (out**2).sum() * more


@pytest.fixture(scope="module")
def plan() -> Plan:
    step = sp.auto_shard(jax.grad(net), mesh={"data": 2, "model": 4}, in_shardings=({"up": P(None, "model"), "down": None}, P("data")))
    return step.plan({"up": f32(16, 32), "down": f32(32, 16)}, f32(8, 16))


def found(plan: Plan, target: str) -> tuple[str, str]:
    why = plan.explain(target)
    return why.target, why.primitive


def test_paths_and_names(plan: Plan) -> None:
    assert found(plan, "params['up']") == ("params['up']", "")
    assert found(plan, "result['down']") == ("result['down']", "")
    assert found(plan, "%0") == ("%0", "dot_general")
    assert plan.explain("x").asked == ""


def test_what_a_place_gives_to_the_rest(plan: Plan) -> None:
    """The derivative keeps `1 - tanh**2` behind the value; the transposed computation has the same lines and scopes."""
    line = net.__code__.co_firstlineno
    for target in ("activation", "hidden", "mlp/up", "up", f"test_find.py:{line + 3}", f"{__file__}:{line + 3}"):
        why = plan.explain(target)
        assert (why.primitive, why.asked) == ("tanh", target)
        assert why.location.endswith(f"test_find.py:{line + 3}")
        assert why.as_text().startswith(f"{target} is {why.target} (tanh, test_find.py:{line + 3}): float32[8@data,32@model]")
    assert any("dot_general" in other for other in plan.explain("hidden").nearby)
    assert "also made there: %0 dot_general" in str(plan.explain("hidden"))
    for target in ("mlp", "out", "more"):
        assert found(plan, target)[1] == "dot_general"


def inner(x):
    y = jnp.sin(x)
    return y * 2


def test_lines_and_variables_of_calls() -> None:
    def outer(x):
        called = inner(x)
        return jnp.cos(called).sum()

    plan = sp.auto_shard(jax.grad(outer), mesh={"data": 2}, in_shardings=P("data")).plan(f32(8))
    assert found(plan, "y") == ("%0", "sin")
    assert found(plan, "called")[1] == "mul"
    assert found(plan, f"test_find.py:{outer.__code__.co_firstlineno + 1}")[1] == "mul"


def test_loops_come_before_what_is_in_them() -> None:
    def f(x):
        y = jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) * 2, x)
        return y + 1

    plan = sp.auto_shard(f, mesh={"data": 2}, in_shardings=P("data")).plan(f32(8))
    assert found(plan, "y")[1] in ("scan", "while")


def test_nothing_found(plan: Plan) -> None:
    line = net.__code__.co_firstlineno
    with pytest.raises(PlanError, match=r"no value 'params'[\s\S]*one of params\['down'\], params\['up'\]"):
        plan.explain("params")
    with pytest.raises(PlanError, match=rf"fix: one of test_find.py:{line + 5}, "):
        plan.explain(f"test_find.py:{line + 400}")
    for target in ("", "/", "hiden", "%999", "file.py:", "a b", "result[3]"):
        with pytest.raises(PlanError, match="the plan has no value"):
            plan.explain(target)


def test_a_source_that_cannot_be_read() -> None:
    names: dict = {}
    exec(compile("import jax.numpy as jnp\ndef f(x):\n    y = jnp.sin(x)\n    return y * 2\n", "nowhere.py", "exec"), names)
    plan = sp.auto_shard(names["f"], mesh={"data": 2}, in_shardings=P("data")).plan(f32(8))
    assert found(plan, "nowhere.py:3")[1] == "sin"
    with pytest.raises(PlanError):
        plan.explain("y")


def test_what_libraries_make_has_the_line_that_calls_them(tmp_path: pathlib.Path) -> None:
    library = tmp_path / "site-packages" / "layers.py"
    library.parent.mkdir()
    library.write_text("import jax.numpy as jnp\n\n\ndef squash(x):\n    return jnp.tanh(x)\n")
    names: dict = {}
    exec(compile(library.read_text(), str(library), "exec"), names)

    def f(x):
        y = names["squash"](x)
        return y * 2

    plan = sp.auto_shard(f, mesh={"data": 2}, in_shardings=P("data")).plan(f32(8))
    assert plan.explain("y").location.endswith(f"test_find.py:{f.__code__.co_firstlineno + 1}")
    assert found(plan, "layers.py:5")[1] == "tanh"
