"""Work once per microbatch and work once per step, and steps that microbatches cannot reproduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardy_py as sp
from shardy_py.pipelines import PipelineError
from tests.pipelines.steps import data, loss, net, norm_loss, params


def build(fun: Any, *args: Any, **options: Any) -> Any:
    return sp.pipeline(fun, **{"num_stages": 2, "num_microbatches": 4, **options}).build(*(args or (params(), *data())))


def test_optimizer_runs_once() -> None:
    def step(p: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(p, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        return jax.tree.map(lambda a, g: a - 0.1 * g / norm, p, grads), value

    made = build(step).split
    assert [v.aval.shape for v in made.sums] == [(), (8, 8), (8, 8), (8, 8)]
    assert not made.dims
    assert {node.eqn.primitive.name for node in made.update} >= {"sqrt", "sub"}
    assert "sqrt" not in {node.eqn.primitive.name for node in made.micro.nodes}


def test_tied_gradients_are_added_after_the_microbatches() -> None:
    def tied(p: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ p["a"]) @ p["a"].T)

    made = build(tied, params(), data()[0])
    assert "add_any" in {node.eqn.primitive.name for node in made.split.update}
    assert sorted(program.stage for program in made.programs.values() for v in program.sums if v.aval.shape) == [0, 1]


def test_weights_of_a_mean_are_known_beforehand() -> None:
    def weighted(p: Any, x: Any, y: Any) -> Any:
        weights = jnp.abs(y[:, 0])
        return jnp.sum(weights * jnp.sum((net(p, x) - y) ** 2, -1)) / jnp.sum(weights)

    made = build(weighted).split
    assert len(made.prologue) == 1
    assert made.prologue[0].aval.shape == ()


def shares(p: Any, x: Any, y: Any) -> Any:
    """Weights of examples, which are divided by their sum, and classes by their frequency."""
    weights, classes = jnp.abs(y[:, 0]), jnp.abs(y[:, 1] * 4).astype("int32")
    counts = jnp.zeros(8).at[classes].add(1.0)
    return jnp.sum(jnp.sum((net(p, x) - y) ** 2, -1) * (weights / weights.sum()) * counts[classes])


def shares_of_steps(p: Any, x: Any, y: Any) -> Any:
    """A loop that gives a sum over examples, known beforehand, and values of examples."""
    total, doubled = jax.lax.scan(lambda c, t: (c + t.sum(), 2 * t), 0.0, jnp.abs(y).T)
    return jnp.sum((net(p, x) - y) ** 2 * doubled.T / total)


def numbers_of_examples(p: Any, x: Any, y: Any) -> Any:
    """Integers that are computed with the number of examples, an exponent among them, and features that are rolled."""
    rows = x.shape[0]
    numbers = jnp.abs(y[:, 0] * 9).astype("int32") % rows
    scale = jnp.full((), rows, "int32") * jnp.ones((), "int32") + jnp.minimum(numbers, rows // 2)
    return jnp.sum(jnp.roll(net(p, x), 1, 1) * scale[:, None]) / (rows * scale.sum()) + jnp.mean(jnp.tanh(x @ p["a"]) ** rows)


def captured_arrays(p: Any, x: Any, y: Any) -> Any:
    """Arrays of NumPy with the number of examples inside, and numbers of rows."""
    picked = net(p, x)[np.arange(x.shape[0]), jnp.abs(y[:, 0]).astype("int32")]
    return jnp.mean(picked) + jnp.mean(net(p, x) * np.array([1.0, x.shape[0]] * 4, "float32") * np.ones((x.shape[0], 1), "float32"))


@pytest.mark.parametrize("fun", [shares, shares_of_steps, numbers_of_examples, captured_arrays])
def test_numbers_that_are_those_of_the_whole_batch(fun: Any) -> None:
    run = sp.pipeline(jax.value_and_grad(fun), num_stages=2, num_microbatches=4)
    assert run.verify(params(), *data()) < 1e-5


def on_the_host(x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda x: np.tanh(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")


def host_loss(activation: Callable[[jax.Array], jax.Array]) -> Callable[..., jax.Array]:
    """A loss with an activation that the host computes, and a derivative written by hand."""
    act = jax.custom_vjp(activation)
    act.defvjp(lambda x: (act(x), act(x)), lambda y, g: (g * (1 - y * y),))
    return lambda p, x, y: jnp.mean((act(act(x @ p["a"]) @ p["b"]) - y) ** 2)


def test_a_callback_takes_the_examples_of_a_microbatch_by_its_rule() -> None:
    with pytest.raises(PipelineError, match=r"pure_callback takes the examples of .* all at once") as caught:
        build(jax.value_and_grad(host_loss(on_the_host)))
    assert "sp.sharding_rule" in str(caught.value)
    ruled = sp.sharding_rule("b i -> b i")(on_the_host)
    run = sp.pipeline(jax.value_and_grad(host_loss(ruled)), num_stages=2, num_microbatches=4)
    assert run.verify(params(), *data()) < 1e-5


def test_results_per_example() -> None:
    made = build(lambda p, x, y: (jax.grad(loss)(p, x, y), net(p, x).argmax(-1)))
    assert [v.aval.shape for v in made.split.dims] == [(4,)]


def test_layers_in_a_loop_come_apart() -> None:
    def deep(p: Any, x: Any) -> Any:
        return jnp.mean(jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, p)[0])

    made = build(deep, jnp.stack([*params().values()] * 2), data()[0], num_stages=3)
    assert "scan" not in {node.eqn.primitive.name for node in made.split.micro.nodes}
    counts = [0, 0, 0]
    for node, s, back in zip(made.split.micro.nodes, made.assigned.stage, made.assigned.backward):
        if node.eqn.primitive.name == "dot_general" and not back and s is not None:
            counts[s] += 1
    assert counts == [2, 2, 2]


def test_statistics_of_the_batch() -> None:
    with pytest.raises(PipelineError, match=r"a statistic of the batch, is used by single examples") as caught:
        build(jax.value_and_grad(norm_loss, has_aux=True))
    assert "steps.py" in str(caught.value)
    made = build(jax.value_and_grad(norm_loss, has_aux=True), batch_statistics="microbatch")
    assert (8,) in [v.aval.shape for v in made.split.sums]


@pytest.mark.parametrize(
    ("fun", "what"),
    [
        (lambda p, x, y: (jax.grad(loss)(p, x, y), jnp.max(net(p, x))), "reduce_max makes one value of all examples"),
        (lambda p, x, y: jnp.mean(jax.nn.logsumexp(net(p, x) @ net(p, x).T, -1)), "examples meet each other"),
        (lambda p, x, y: jnp.mean((jnp.cumsum(net(p, x), 0) - y) ** 2), "cumsum runs along the examples"),
        (lambda p, x, y: jnp.mean((net(p, x)[1:] - y[:-1]) ** 2), "slice runs along the examples"),
        (lambda p, x, y: jnp.mean(jnp.sum(net(p, x).reshape(2, -1), 1) ** 2), "reshape regroups the examples"),
        (lambda p, x, y: jnp.mean((net(p, x).reshape(-1, 4, 8).transpose(1, 0, 2).reshape(-1, 8) - y) ** 2), "reshape regroups"),
        (lambda p, x, y: jnp.mean(net(p, x)[: x.shape[0] // 2] ** 2), "slice runs along the examples"),
        (lambda p, x, y: jnp.mean(net(p, x)[::2] ** 2), "slice runs along the examples"),
        (lambda p, x, y: jnp.mean(net(p, x)[::-1] * y), "rev runs along the examples"),
        (lambda p, x, y: jnp.mean(net(p, jnp.take(x, jnp.argsort(y[:, 0]), 0))), "sort runs along the examples"),
        (lambda p, x, y: jnp.mean(net(p, x)[jnp.abs(y[:, 0]).astype("int32")]), "gather picks examples"),
        (lambda p, x, y: jnp.mean((x.T.reshape(-1) - x.reshape(-1)) ** 2 * p["a"][0, 0]), "reshape regroups"),
        (lambda p, x, y: jnp.mean((net(p, jnp.concatenate([x, y]))[: x.shape[0]] - y) ** 2), "concatenate runs along the examples"),
        (lambda p, x, y: jax.lax.scan(lambda c, r: (jnp.tanh(c @ p["a"] + r), None), jnp.zeros(8), x)[0].sum(), "carries something"),
        (lambda p, x, y: jnp.mean(jax.lax.cumsum(jnp.fft.fft(x @ p["a"], axis=0).real, 1)), "runs along the examples"),
        (lambda p, x, y: net(p, x), "no gradient"),
        (
            lambda p, x, y: jnp.mean(jax.lax.cond(p["a"][0, 0] > 0, lambda h: h - h.mean(0), lambda h: h, net(p, x))),
            "a statistic of the batch",
        ),
        (
            lambda p, x, y: jnp.mean(net(p, jax.lax.while_loop(lambda c: c.sum() > 0, lambda c: c - 1, x))),
            "ends by a value of all examples",
        ),
    ],
)
def test_what_microbatches_cannot_do(fun: Any, what: str) -> None:
    with pytest.raises(PipelineError, match=what) as caught:
        build(fun)
    assert "fix:" in str(caught.value)


@pytest.mark.parametrize(
    "fun",
    [
        lambda p, x, y: jnp.mean((net(p, jnp.stack([x, y], 1).reshape(-1, 8)).reshape(-1, 2, 8)[:, 0] - y) ** 2),
        lambda p, x, y: jnp.mean((x.T @ jnp.ones((x.shape[0], 1)) + p["a"]) ** 2) + jnp.mean(net(p, x)),
        lambda p, x, y: jnp.mean(jnp.sort(net(p, x), -1) * y),
    ],
)
def test_what_keeps_examples_together(fun: Any) -> None:
    build(fun)


@pytest.mark.parametrize(
    "fun",
    [
        pytest.param(lambda p, x, y: jnp.mean((net(p, x) * jnp.arange(x.shape[0])[:, None] - y) ** 2), id="positions"),
        pytest.param(lambda p, x, y: jnp.mean(net(p, x) * np.linspace(0, 1, 16)[:, None].astype("float32")), id="captured array"),
        pytest.param(lambda p, x, y: jnp.mean(net(p, x)[jnp.arange(16), jnp.abs(y[:, 0]).astype("int32")]), id="a row and its label"),
        pytest.param(lambda p, x, y: jnp.mean(net(p, x)[jnp.arange(16)] * y), id="all rows by number"),
        pytest.param(lambda p, x, y: jnp.mean(jnp.tanh(jax.lax.dynamic_update_slice(net(p, x), p["a"][:2], (5, 0)))), id="update"),
        pytest.param(lambda p, x, y: jnp.mean(jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, x.shape), net(p, x), y)), id="draws"),
        pytest.param(
            lambda p, x, y: jnp.mean(jnp.tanh(jax.lax.ragged_dot(x, jnp.stack([p["a"], p["b"]]), jnp.array([5, 11]))) @ p["c"]),
            id="ragged",
        ),
        pytest.param(
            lambda p, x, y: jnp.mean(jax.lax.scan(lambda c, t: (c / c.shape[0] + t, None), net(p, x), jnp.ones(3))[0]),
            id="size of the batch in a loop",
        ),
        pytest.param(
            lambda p, x, y: jnp.mean(jax.lax.cond(p["a"][0, 0] > 9, lambda h: h * 2, lambda h: jnp.zeros_like(h), net(p, x) @ p["a"])),
            id="branch without examples",
        ),
    ],
)
def test_positions_of_examples(fun: Any) -> None:
    assert sp.pipeline(jax.value_and_grad(fun), num_stages=2, num_microbatches=4).verify(params(), *data()) < 1e-5


def test_one_row_is_a_sum() -> None:
    run = sp.pipeline(lambda p, x, y: (jax.grad(loss)(p, x, y), net(p, x)[3]), num_stages=2, num_microbatches=4)
    assert run.verify(params(), *data()) < 1e-5


@pytest.mark.parametrize(
    ("args", "options", "what"),
    [
        ((), {"num_microbatches": 5}, "16 examples cannot be cut into 5 microbatches"),
        ((params(), data()[0], data()[1][:8]), {}, "has 16 rows and .* has 8"),
        ((params(), data()[0][:0], data()[1][:0]), {}, "0 examples cannot be cut"),
        ((), {"batch_argnums": (3,)}, "batch_argnums names argument 3"),
        ((), {"num_stages": 64}, "64 stages and 11 operations"),
        ((), {"mesh": {"stage": 2, "data": 0}}, "mesh axis 'data' has size 0"),
        ((), {"mesh": {"stage": 2, "data": "all"}}, "mesh axis 'data' has size 'all'"),
        ((), {"num_stages": None}, "the number of stages is not known"),
        ((), {"mesh": {"pipe": 2}}, "no axis 'stage'"),
        ((), {"mesh": {"stage": 4}}, "axis 'stage' of the mesh has size 4"),
        ((), {"num_stages": 3, "virtual": 2, "schedule": "circular"}, "3 stages cannot lie 2 on a mesh"),
        ((), {"schedule": sp.pipelines.schedule("1f1b", 2, 8)}, "the schedule is for 2 meshes"),
        ((), {"schedule": "2f2b"}, "unknown schedule '2f2b'"),
        ((), {"memory_bytes": "0.5kB"}, r"stage 'stage0' needs .* per device, .* more than there is"),
    ],
)
def test_bad_calls(args: Any, options: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what) as caught:
        build(loss, *args, **options)
    assert "fix:" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"num_microbatches": 0}, "num_microbatches is 0"),
        ({"num_stages": -1}, "num_stages is -1"),
        ({"batch_statistics": "batch"}, "batch_statistics is 'batch'"),
    ],
)
def test_bad_options(options: Any, what: str) -> None:
    with pytest.raises(PipelineError, match=what):
        sp.pipeline(loss, **{"num_stages": 2, "num_microbatches": 4, **options})


def test_no_batch() -> None:
    with pytest.raises(PipelineError, match="there is no batch"):
        build(lambda p: jnp.sum(p["a"]), params())


def test_host_memory_is_refused() -> None:
    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return jax.device_put(w - grad, jax.memory.Space.Host), loss

    run, w = sp.pipeline(step, num_stages=1, num_microbatches=2, mesh={"stage": 1}), jnp.ones((4, 4))
    with pytest.raises(ValueError, match=r"the result is moved to the host's memory\n  where: result\[0\] of"):
        run(w, jnp.ones((8, 4)))
    with pytest.raises(ValueError, match=r"the argument is in the host's memory\n  where: w, argument of"):
        run(jax.device_put(w, jax.memory.Space.Host), jnp.ones((8, 4)))
