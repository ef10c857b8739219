"""Residuals that stages keep for their backward passes, and those that they recompute."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.pipelines.jaxprs import reads
from shardy_py.pipelines.residuals import LONGEST, MOVES, REDUCTIONS, Layout, communicates
from tests.pipelines.steps import data, loss, params
from tests.pipelines.test_models import models


def kept(built: Any, stage: int) -> list[tuple[str, tuple[int, ...]]]:
    """Primitive and shape of what a stage keeps of its own forward pass."""
    forward = built.programs["F", stage]
    made = {v: node.eqn.primitive.name for node in forward.nodes for v in node.eqn.outvars}
    late = {v for (role, s), program in built.programs.items() if s == stage and role != "F" for v in program.inputs}
    return [(made[v], v.aval.shape) for v in forward.outputs if v in late]


def again(built: Any, stage: int) -> list[Any]:
    return [node.eqn for (role, s), program in built.programs.items() if s == stage and role != "F" for node in program.recomputed]


def longest(program: Any) -> int:
    """The most computing equations in a row that a program makes again."""
    steps: dict[Any, int] = {}
    for node in program.recomputed:
        count = max((steps.get(v, 0) for v in reads(node.eqn)), default=0) + (node.eqn.primitive.name not in MOVES)
        steps.update(dict.fromkeys(node.eqn.outvars, count))
    return max(steps.values(), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("ways", [1, 2])
def test_a_layer_keeps_its_products_and_what_it_adds_to(ways: int) -> None:
    """Of a transformer layer: the two values it normalizes, queries with keys and values, scores, what they mix, the hidden layer."""
    layers, width, rows, length, heads = 6, 16, 2, 8, 4
    model = models().gpt(layers=layers, width=width, vocabulary=40, rows=4 * rows)
    mesh = {"stage": 3, "data": ways} if ways > 1 else None
    built = sp.pipeline(model.gradients, num_stages=3, num_microbatches=4, mesh=mesh).build(model.state["params"], model.batch(0))
    sizes = [shape for s in range(3) for _, shape in kept(built, s) if len(shape) > 2]
    wide, scores = (rows, length, width), (rows, heads, length, length)
    assert sizes.count((rows, length, 3 * width)) == sizes.count((rows, length, 4 * width)) == sizes.count(scores) == layers
    # What arrives from another stage is none of a stage's own; the last norm is of no layer.
    assert 3 * layers + 1 - 2 <= sizes.count(wide) <= 3 * layers + 1
    assert len(sizes) == 3 * layers + sizes.count(wide) + 1, "beside these the logits"
    assert not any(name in REDUCTIONS for s in range(3) for name, shape in kept(built, s) if len(shape) > 2)


def test_convolutions_are_all_that_a_resnet_keeps() -> None:
    model = models().resnet(blocks=4)
    built = sp.pipeline(model.gradients, num_stages=2, num_microbatches=8).build(model.state["params"], model.batch(0))
    assert {name for name, _ in kept(built, 0)} <= {"conv_general_dilated", "add"}, "the first has a bias"
    assert len(kept(built, 0)) <= 6
    assert {eqn.primitive.name for eqn in again(built, 0)} >= {"reduce_sum", "rsqrt", "max"}


def test_large_reductions_are_kept() -> None:
    """To read a large value once more takes longer than to keep the few numbers that come of it."""

    def net(p: Any, x: Any, y: Any) -> Any:
        h = x @ p["a"]
        h = jax.nn.softmax(h) @ p["b"]
        return jnp.mean((h @ p["c"] - y) ** 2)

    for width, few in ((8, True), (1024, False)):
        struct = jax.ShapeDtypeStruct((width, width), jnp.float32)
        rows = jax.ShapeDtypeStruct((4 * width, width), jnp.float32)
        built = sp.pipeline(net, num_stages=2, num_microbatches=4).build(dict.fromkeys("abc", struct), rows, rows)
        made = [eqn.primitive.name for eqn in again(built, 0)]
        assert ("reduce_sum" in made) == few, width


@pytest.mark.parametrize("spec", [P("data"), P(None, "data")])
def test_no_sum_over_devices_is_made_again(spec: P) -> None:
    def net(p: Any, x: Any, y: Any) -> Any:
        h = x @ p["a"]
        h = jax.nn.softmax(h) @ p["b"]
        return jnp.mean((h @ p["c"] - y) ** 2)

    x, y = data()
    columns = spec == P(None, "data")
    shardings = ({"a": P(None, "data") if columns else None, "b": None, "c": None}, None if columns else spec, None)
    run = sp.pipeline(net, num_stages=2, num_microbatches=2, mesh={"stage": 2, "data": 2}, in_shardings=shardings)
    built = run.build(params(), x, y)
    layout = Layout(built.places.specs, {"data": 2})
    assert not any(communicates(eqn, layout.axes) for s in range(2) for eqn in again(built, s))
    sums = [eqn for eqn in again(built, 0) if eqn.primitive.name == "reduce_sum"]
    assert len(sums) == (0 if columns else 1)
    assert any(len(shape) < 2 or 1 in shape for _, shape in kept(built, 0)) == columns
    got, wanted = run(params(), x, y), jax.value_and_grad(net)(params(), x, y)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)):
        assert abs(a - b).max() < 1e-5


def test_both_parts_of_a_backward_pass_make_what_they_need() -> None:
    """gelu is wanted by both: its derivative for the gradient of the input, its value for that of the weights."""

    def net(p: Any, x: Any, y: Any) -> Any:
        for name in "abc":
            with sp.stage(name):
                x = jax.nn.gelu(x @ p[name])
        return jnp.mean((x - y) ** 2)

    whole, apart = (sp.pipeline(net, num_microbatches=4, schedule=schedule).build(params(), *data()) for schedule in ("1f1b", "zb-h1"))
    for s in (1, 2):
        assert kept(apart, s) == kept(whole, s)
        read = [v for role in "bW" for v in apart.programs[role, s].inputs]
        assert all(v in read for v in apart.programs["F", s].outputs if v in whole.programs["B", s].inputs)
    assert [name for name, _ in kept(whole, 1)] == ["dot_general"]


def test_chains_that_are_made_again_are_bounded() -> None:
    steps = 110

    def net(p: Any, x: Any, y: Any) -> Any:
        with sp.stage("in"):
            x = x @ p["a"]
        with sp.stage("chain"):
            for _ in range(steps):
                x = jnp.tanh(x)
        with sp.stage("out"):
            return jnp.mean((x @ p["b"] - y) ** 2)

    run = sp.pipeline(net, num_microbatches=4)
    built = run.build(params(), *data())
    assert LONGEST // 2 <= longest(built.programs["B", 1]) <= LONGEST
    assert len(kept(built, 1)) == steps // LONGEST
    rows = run.report(params(), *data()).rows
    # Arithmetic alone: the backward pass has two equations for each of the chain.
    assert rows[1].backward_seconds < 3 * rows[1].forward_seconds


def test_checkpoints_of_the_user_stay() -> None:
    def net(p: Any, x: Any, y: Any) -> Any:
        x = jnp.tanh(x @ p["a"])
        x = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x @ p["b"]) @ p["c"]))(x)
        return jnp.mean((x @ p["b"] - y) ** 2)

    built = sp.pipeline(net, num_stages=1, num_microbatches=4).build(params(), *data())
    products = [node for node in built.programs["B", 0].nodes if node.eqn.primitive.name == "dot_general"]
    # Two for each of four products but the first, which needs no gradient of its input, and again the two of the checkpoint.
    assert len(products) == 2 * 4 - 1 + 2
    assert not any(node in built.programs["B", 0].recomputed for node in products)
    assert [name for name, _ in kept(built, 0)][:2] == ["tanh", "sin"], "what it takes and what it gives"
    assert len(kept(built, 0)) == 3


def test_builds_are_alike() -> None:
    def listed(built: Any) -> list[Any]:
        return [
            (key, [str(node.eqn.primitive) for node in program.nodes], [v.aval.str_short() for v in (*program.inputs, *program.outputs)])
            for key, program in built.programs.items()
        ]

    model = models().gpt(layers=2, width=16)
    first, second = (
        listed(sp.pipeline(model.gradients, num_stages=2, num_microbatches=4).build(model.state["params"], model.batch(0)))
        for _ in range(2)
    )
    assert first == second


def test_random_masks_are_kept() -> None:
    """Numbers that were drawn are not drawn again; the mask is a byte per element, they are four."""

    def net(p: Any, x: Any, key: Any) -> Any:
        x = x @ p["a"]
        x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), jnp.tanh(x), 0.0)
        return jnp.mean((x @ p["b"]) ** 2)

    x, _ = data()
    built = sp.pipeline(net, num_stages=1, num_microbatches=4).build(params(), x, jax.random.key(0))
    forward = built.programs["F", 0]
    late = set(built.programs["B", 0].inputs)
    assert sorted(str(v.aval.dtype) for v in forward.outputs if v in late and v.aval.shape) == ["bool", "float32", "float32"]


@pytest.mark.parametrize(
    ("function", "shape", "spec", "out", "expected"),
    [
        (lambda x: x + 1, (4, 8), P("a", "b"), P("a", "b"), False),
        (lambda x: x + 1, (4, 8), P("a"), P(None, "a"), True),
        (lambda x: x + 1, (4, 8), P(), P("a"), False),
        (lambda x: x.T, (4, 8), P("a", "b"), P("b", "a"), False),
        (lambda x: x.T, (4, 8), P("a", "b"), P("a", "b"), True),
        (lambda x: jnp.sum(x, 0), (4, 8), P("a"), P(), True),
        (lambda x: jnp.sum(x, 1), (4, 8), P("a"), P("a"), False),
        (lambda x: jnp.argmax(x, 0), (4, 8), P(None, "b"), P("b"), False),
        (lambda x: x.reshape(4, 2, 4), (4, 8), P("a", "b"), P("a", "b"), False),
        (lambda x: x.reshape(32), (4, 8), P("a"), P("a"), False),
        (lambda x: x.reshape(32), (4, 8), P("a", "b"), P(("a", "b")), True),
        (lambda x: x[None], (4, 8), P("a"), P(None, "a"), False),
        (lambda x: jax.lax.broadcast_in_dim(x, (3, 4, 8), (1, 2)), (4, 8), P("a"), P(None, "a"), False),
        (lambda x: x[:, 2:], (4, 8), P("a"), P("a"), False),
        (lambda x: x[:, 2:], (4, 8), P(None, "a"), P(None, "a"), True),
        (lambda x: jax.lax.rev(x, (0,)), (4, 8), P("a"), P("a"), True),
        (lambda x: jax.lax.rev(x, (0,)), (4, 8), P(None, "a"), P(None, "a"), False),
        (lambda x: jax.lax.concatenate([x, x], 1), (4, 8), P("a"), P("a"), False),
        (lambda x: jax.lax.concatenate([x, x], 1), (4, 8), P(None, "a"), P(None, "a"), True),
        (lambda x: jax.lax.pad(x, 0.0, ((1, -1, 0), (0, 0, 0))), (4, 8), P("a"), P("a"), True),
    ],
)
def test_what_needs_other_devices(function: Any, shape: tuple[int, ...], spec: P, out: P, expected: bool) -> None:
    (eqn,) = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(shape, jnp.float32)).jaxpr.eqns
    specs = {eqn.invars[0]: spec, eqn.outvars[0]: out}
    assert communicates(eqn, Layout(specs, {"a": 2, "b": 2}).axes) == expected
    assert not communicates(eqn, Layout(specs, {"a": 1, "b": 1}).axes)


def test_numbers_with_much_made_again() -> None:
    run = sp.pipeline(loss, num_stages=3, num_microbatches=4)
    got, wanted = run(params(), *data()), jax.value_and_grad(loss)(params(), *data())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)):
        assert abs(a - b).max() < 1e-5
