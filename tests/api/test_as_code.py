"""`plan.as_code`: a plan as code, pasted into the program that it is of and run by plain `jax.jit`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import re
import sys
import types
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in
from tests.api import pasted_programs
from tests.api.pasted_programs import PROGRAMS, Example, boxed, with_names

FILE = pasted_programs.__file__
MESH = {"data": 2, "model": 4}


@functools.cache
def example(name: str) -> Example:
    return PROGRAMS[name]()


def decorated(this: Example, **more: Any) -> Any:
    return sp.auto_shard(this.fun, mesh=MESH, in_shardings=this.specs, lowering="jit", **this.more, **more)


def numbers(args: tuple[Any, ...]) -> Any:
    draw = np.random.default_rng(0)

    def one(leaf: Any) -> Any:
        if np.issubdtype(leaf.dtype, np.integer):
            return np.full(leaf.shape, 5, leaf.dtype) if not leaf.shape else draw.integers(0, 8, leaf.shape).astype(leaf.dtype)
        return (0.2 * draw.random(leaf.shape)).astype(leaf.dtype)

    return jax.tree.map(one, args)


@functools.cache
def unsharded(name: str) -> tuple[tuple[Any, ...], list[Any]]:
    """Arguments of a program, and the leaves of what it gives for them."""
    args = numbers(example(name).args)
    return args, jax.tree.leaves(jax.jit(example(name).fun)(*args))


def moved(compiled: Any) -> int:
    return sum(c.received_bytes * (c.trips or 1) for c in collectives_in(compiled.as_text()))


@functools.cache
def propagated(name: str) -> tuple[Any, int]:
    """The plan of a program without a planner, and the bytes that it moves."""
    this = example(name)
    planned = decorated(this)
    return planned.plan(*this.args), moved(planned.lower(*this.args).compile())


@functools.cache
def chosen(name: str) -> tuple[Any, int]:
    """The same of the planner's plan."""
    this = example(name)
    planned = sp.auto_shard(this.fun, mesh=MESH, planner=sp.Planner(hardware=SLOW, time_limit_s=60), lowering="jit")
    return planned.plan(*this.args), moved(planned.lower(*this.args).compile())


def pasted(code: Any, this: Example) -> tuple[Any, dict[str, Any]]:
    """The function of the program with the edits of some code, and what its setup defines."""
    module = sys.modules["patched"] = types.ModuleType("patched")
    exec(compile(code.patched(FILE), FILE + " patched", "exec"), module.__dict__)
    names = {**vars(module), **dict(zip(inspect.signature(this.fun).parameters, this.args))}
    names[this.fun.__name__] = this.adapted(names[this.fun.__name__])
    exec(code.setup, names)
    return this.adapted(getattr(module, this.fun.__name__)), names


def stated_bytes(remarks: Any, pattern: str) -> float:
    """What remarks say of bytes, in all."""
    stated = [found for remark in remarks for found in re.findall(pattern + r" ([\d.]+) (B|KiB)", remark)]
    return sum(float(number) * {"B": 1, "KiB": 1024}[unit] for number, unit in stated)


def runs_as_planned(name: str, plan: Any, least: int, style: Any = "constraints", most: float = 1.0, has_names: bool = False) -> None:
    """The pasted program gives the numbers of the function, shards its results as planned, and moves what is stated."""
    this = example(name)
    code = plan.as_code(style)
    args, wanted = unsharded(name)
    if has_names:
        this, args = with_names(this), boxed(args)
    fun, names = pasted(code, this)
    by_name = nn.logical_axis_rules(names["rules"]) if style == "logical" else contextlib.nullcontext()
    with jax.set_mesh(names["mesh"]), by_name:
        specs = {} if style == "explicit" else {"in_shardings": names["in_shardings"]}
        placed = jax.device_put(args, names["in_shardings"]) if style == "explicit" else args
        compiled = jax.jit(fun, out_shardings=names["out_shardings"], **specs).lower(*placed).compile()
        result = compiled(*placed)
    for one, other in zip(jax.tree.leaves(result), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-5)
    for one, value in zip(jax.tree.leaves(result), jax.tree.leaves(plan.output_shardings), strict=True):
        assert one.sharding.is_equivalent_to(jax.NamedSharding(one.sharding.mesh, value.spec), one.ndim)
    assert 0.99 * stated_bytes(code.remarks, "moves at least") <= moved(compiled)
    assert moved(compiled) <= most * least + 1.01 * stated_bytes(code.remarks, "it may move")
    assert most == 1.0 or any("make values in several shardings" in remark for remark in code.remarks)
    assert any("XLA alone partitions reduce_window_sum" in remark for remark in code.remarks) == (name in APART)


APART = ("moe", "spectrum")
"""Programs with a cumulative sum along a cut dimension, which the library partitions by itself."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_constraints_of_a_propagated_plan(name: str) -> None:
    plan, least = propagated(name)
    runs_as_planned(name, plan, least)
    assert not plan.as_code().edits


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "named"])
def test_explicit_types_of_a_propagated_plan(name: str) -> None:
    """All but the model of Flax, whose layers have parameters of their own in the ops that JAX has no rules for."""
    runs_as_planned(name, *propagated(name), "explicit")


SLOW = sp.Hardware("slow", {"float32": 1e9}, 1e8, 16 << 30, 1e9, sp.Fabric("ring", 1e8, 1e-7), sp.Fabric("switch", 1e7, 1e-7))
"""So slow that small arrays are worth sharding."""

SETTLED_OTHERWISE = {"train state": 1.7}
"""Programs in which one line makes values in several shardings, for which XLA moves more whatever lines say -> how much more."""

REFUSED = {"adam": "optax.apply_updates(params, updates)", "decode": "lax.dynamic_update_slice(keys, "}
"""Programs whose types no lines can state -> what stands in the line that is to blame."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_constraints_of_a_plan_that_was_chosen(name: str) -> None:
    plan, least = chosen(name)
    runs_as_planned(name, plan, least, most=SETTLED_OTHERWISE.get(name, 1.0))
    lines = {value.location for value in plan.values}
    assert len(plan.as_code().edits) <= len(lines) / 2, "propagation shards the values of most lines"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "named"])
def test_explicit_types_of_a_plan_that_was_chosen(name: str) -> None:
    plan, least = chosen(name)
    if name in REFUSED:
        with pytest.raises(sp.ShardyError, match="JAX refuses the types of values at") as error:
            plan.as_code("explicit")
        assert REFUSED[name] in linecache.getline(FILE, int(re.findall(r"pasted_programs.py:(\d+)", str(error.value))[0]))
    else:
        runs_as_planned(name, plan, least, "explicit", SETTLED_OTHERWISE.get(name, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "named"])
def test_rules_for_names_of_each_dimension(name: str) -> None:
    this = with_names(example(name))
    planned = decorated(this)
    runs_as_planned(name, planned.plan(*this.args), propagated(name)[1], "logical", has_names=True)


def test_rules_for_names() -> None:
    this = example("named")
    for more in ({}, {"planner": sp.Planner(hardware=SLOW, time_limit_s=60), "in_shardings": None, "logical_axis_rules": None}):
        planned = sp.auto_shard(this.fun, mesh=MESH, lowering="jit", **{"in_shardings": this.specs, **this.more, **more})
        plan = planned.plan(*this.args)
        runs_as_planned("named", plan, moved(planned.lower(*this.args).compile()), "logical")
        assert "rules = [('embed', None), ('mlp', " in plan.as_code("logical").setup


def test_constraints_of_the_user_are_of_jax_then() -> None:
    def constrained(x: Any) -> Any:
        y = sp.with_sharding_constraint(x * 2, jax.P(jax.P.UNCONSTRAINED, "model"), priority=1)
        return y + 1

    plan = sp.auto_shard(constrained, mesh=MESH, in_shardings=jax.P("data")).plan(np.ones((8, 8), np.float32))
    for style, function in (("constraints", "jax.lax.with_sharding_constraint"), ("explicit", "jax.reshard")):
        (edit,) = plan.as_code(style).edits
        assert edit.text.strip() == f"y = {function}(x * 2, jax.P('data', 'model'))"


def test_a_plan_that_a_region_runs_has_the_same_code() -> None:
    this = example("convolution")
    texts = {
        str(sp.auto_shard(this.fun, mesh=MESH, in_shardings=this.specs, lowering=lowering).plan(*this.args).as_code())
        for lowering in ("jit", "shard_map")
    }
    assert len(texts) == 1


def test_what_a_loop_starts_with_is_resharded() -> None:
    def walk(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda h, row: (jnp.tanh(h @ w + row), h.var(-1)), jnp.zeros((8, 16)), x)

    args = np.ones((4, 8, 16), np.float32), np.ones((16, 16), np.float32)
    plan = sp.auto_shard(walk, mesh=MESH, in_shardings=(jax.P(None, "data"), jax.P(None, "model"))).plan(*args)
    (edit,) = plan.as_code("explicit").edits
    assert "jax.reshard(jnp.zeros((8, 16)), jax.P('data', 'model'))" in edit.text


def test_lines_that_cannot_state_a_type_are_an_error() -> None:
    def three(x: Any, ws: Any) -> Any:
        return [x @ w for w in ws]

    args = np.ones((8, 16), np.float32), [np.ones((16, 16), np.float32)] * 3
    specs = (jax.P(None, "model"), [jax.P("model"), jax.P("model", "data"), jax.P()])
    with pytest.raises(sp.ShardyError, match=f"JAX refuses the types of values at {__file__}:"):
        sp.auto_shard(three, mesh=MESH, in_shardings=specs).plan(*args).as_code("explicit")


def test_a_function_that_says_shardings_in_types_needs_its_arguments_alone() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    layer = sp.auto_shard(
        lambda x, w: jnp.dot(x, w, out_sharding=jax.P("data")), mesh=mesh, in_shardings=(jax.P("data", "model"), jax.P("model"))
    )
    plan = layer.plan(np.ones((8, 16), np.float32), np.ones((16, 16), np.float32))
    code = plan.as_code("explicit")
    assert not code.edits
    assert "in_shardings = (jax.P('data', 'model'), jax.P('model'))" in code.setup
    with pytest.raises(sp.ShardyError, match="says shardings in types"):
        plan.as_code()


def test_expressions_of_several_lines() -> None:
    def product(x: Any, w: Any, v: Any) -> Any:
        return jnp.dot(
            x,  # by columns
            w,
        ) + jnp.dot(x, v)

    args = (np.ones((8, 8), np.float32),) * 3
    plan = sp.auto_shard(product, mesh=MESH, in_shardings=(jax.P(None, "model"), jax.P("model"), jax.P("model"))).plan(*args)
    (edit,) = plan.as_code("explicit").edits
    assert edit.text.strip() == "return jnp.dot(x, w, out_sharding=jax.P()) + jnp.dot(x, v, out_sharding=jax.P())"
    assert edit.last - edit.first == 3
    assert f"# {__file__}:{edit.first}-{edit.last}\n" in str(edit)


def test_code_that_cannot_be_written() -> None:
    plan = decorated(example("mlp")).plan(*example("mlp").args)
    with pytest.raises(sp.ShardyError, match="there is no style 'lines'"):
        plan.as_code("lines")
    with pytest.raises(sp.ShardyError, match="the plan was read from a file"):
        sp.Plan.from_json(plan.to_json()).as_code()
    with pytest.raises(sp.ShardyError, match="no array of the arguments names its dimensions"):
        plan.as_code("logical")
    by_name = sp.auto_shard(lambda *, x: x, mesh=MESH).plan(x=np.ones(8))
    with pytest.raises(sp.ShardyError, match="keyword arguments x"):
        by_name.as_code()
