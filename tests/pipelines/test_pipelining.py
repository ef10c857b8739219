"""Pipelines run on eight CPU devices: the numbers are those of the step on one."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

import shardy_py as sp
from shardy_py.cost.hardware_table import hardware as hardware_named
from shardy_py.pipelines import PipelineError
from tests.pipelines.steps import WIDTH, data, largest_gap, loop_loss, loss, net, norm_loss, params, per_microbatch


def step(p: Any, x: Any, y: Any) -> Any:
    """Everything that a result can be: an update, a sum, values per example, a number, an argument."""
    value, grads = jax.value_and_grad(loss)(p, x, y)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    new = jax.tree.map(lambda a, g: a - 0.1 * g * jnp.minimum(1.0, 0.1 / norm), p, grads)
    return new, {"loss": value, "norm": norm, "classes": net(p, x).argmax(-1), "rows": x.shape[0], "old": p["a"]}


MESHES = {
    "one device each": (2, None, "1f1b", 1),
    "zero bubble": (2, None, "zb-h1", 1),
    "two devices each": (2, {"stage": 2, "data": 2}, "gpipe", 1),
    "two stages on a mesh": (4, {"data": 2, "stage": 2}, "interleaved", 2),
}


@pytest.mark.parametrize("case", list(MESHES))
def test_a_step(case: str) -> None:
    stages, mesh, schedule, virtual = MESHES[case]
    run = sp.pipeline(step, num_stages=stages, num_microbatches=4, mesh=mesh, schedule=schedule, virtual=virtual)
    p = q = params()
    for _ in range(3):
        p, got = run(p, *data())
        q, wanted = step(q, *data())
        assert largest_gap((p, got), (q, wanted)) < 1e-5
    simulated = sp.pipelines.simulate(run.schedule)
    assert run.statistics.in_flight == simulated.in_flight
    assert run.statistics.stashed == simulated.stashed
    assert run.programs_per_stage == [3 if run.schedule.split_backward and s else 2 for s in range(stages)]


def test_a_loss() -> None:
    run = sp.pipeline(num_stages=3, num_microbatches=2)(loss)
    assert largest_gap(run(params(), *data()), jax.value_and_grad(loss)(params(), *data())) < 1e-6
    assert run.verify(params(), *data()) < 1e-5
    assert "loss" in repr(run)


@pytest.mark.parametrize("mesh", [None, {"stage": 2, "data": 2}], ids=["one device", "two devices"])
def test_results_per_example_that_the_backward_pass_reads(mesh: Any) -> None:
    def step(p: Any, x: Any, y: Any) -> Any:
        def fun(p: Any) -> Any:
            hidden = jnp.tanh(x @ p["a"])
            out = jnp.tanh(hidden @ p["b"])
            return jnp.mean((out @ p["c"] - y) ** 2), (hidden, out)

        return jax.value_and_grad(fun, has_aux=True)(p)

    run = sp.pipeline(step, num_stages=2, num_microbatches=4, mesh=mesh)
    assert largest_gap(run(params(), *data()), step(params(), *data())) < 1e-6


def test_stages_of_different_sizes() -> None:
    devices = np.asarray(jax.devices())
    meshes = [Mesh(devices[:4], ("data",)), Mesh(devices[4:5], ("data",))]
    run = sp.pipeline(loss, num_stages=2, num_microbatches=2, mesh=meshes)
    assert largest_gap(run(params(), *data()), jax.value_and_grad(loss)(params(), *data())) < 1e-6


def test_batch_normalization_over_microbatches() -> None:
    fun = jax.value_and_grad(norm_loss, has_aux=True)
    run = sp.pipeline(fun, num_stages=2, num_microbatches=4, batch_statistics="microbatch")
    assert largest_gap(run(params(), *data()), per_microbatch(fun, 4)(params(), *data())) < 1e-6


def test_a_loop_over_time() -> None:
    run = sp.pipeline(loop_loss, num_stages=2, num_microbatches=4)
    assert run.verify(params(), *data()) < 1e-5


@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
def test_random_numbers_are_those_of_one_device(key: Any) -> None:
    def drop(p: Any, x: Any, seed: Any) -> Any:
        h = jnp.tanh(x @ p["a"])
        return jnp.mean((jnp.where(jax.random.bernoulli(seed, 0.8, h.shape), h, 0.0) @ p["b"]) ** 2)

    assert sp.pipeline(drop, num_stages=2, num_microbatches=4).verify(params(), data()[0], key(3)) < 1e-5


def test_nnx_modules_are_changed() -> None:
    def make() -> tuple[Any, Any]:
        rngs = nnx.Rngs(0)
        model = nnx.Sequential(
            nnx.Linear(8, 16, rngs=rngs), nnx.relu, nnx.Linear(16, 16, rngs=rngs), nnx.relu, nnx.Linear(16, 8, rngs=rngs)
        )
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        value, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
        optimizer.update(model, grads)
        return value

    run = sp.pipeline(train, num_stages=2, num_microbatches=4)
    (ours, our_optimizer), (theirs, their_optimizer) = make(), make()
    for _ in range(3):
        assert abs(float(run(ours, our_optimizer, *data())) - float(nnx.jit(train)(theirs, their_optimizer, *data()))) < 1e-5
    assert our_optimizer.step.get_value() == 3
    assert largest_gap(jax.tree.leaves(nnx.state(ours)), jax.tree.leaves(nnx.state(theirs))) < 1e-3
    assert run.verify(ours, our_optimizer, *data()) < 1e-3


def test_arguments_may_lie_anywhere() -> None:
    """On other devices each, as numpy arrays of other types, as Python numbers."""

    def weighted(p: Any, x: Any, y: Any, scale: Any) -> Any:
        weights = jnp.abs(y[:, 0])
        return scale * jnp.sum(weights * jnp.sum((net(p, x) - y) ** 2, -1)) / jnp.sum(weights)

    x, y = data()
    p = {name: jax.device_put(leaf, jax.devices()[i]) for i, (name, leaf) in enumerate(params().items())}
    run = sp.pipeline(weighted, num_stages=2, num_microbatches=4)
    got = run(p, jax.device_put(x, jax.devices()[4]), jax.device_put(y, jax.devices()[5]), 0.5)
    assert largest_gap(got, jax.value_and_grad(weighted)(params(), x, y, 0.5)) < 1e-5
    assert largest_gap(run(p, x.astype("float64"), y, 0.5), got) < 1e-6
    explicit = NamedSharding(jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,)), PartitionSpec("d"))
    assert largest_gap(run(p, *jax.device_put((x, y), explicit), 0.5), got) < 1e-6


def test_prints_in_loops_and_branches_come_as_often_as_these_run(capfd: pytest.CaptureFixture[str]) -> None:
    def body(c: Any, t: Any) -> Any:
        jax.debug.print("trip {}", t[:, 0])
        return c + t, None

    def shown(h: Any) -> Any:
        jax.debug.print("branch {}", h[:, 0])
        return h

    def chatty(p: Any, x: Any, y: Any) -> Any:
        h = jax.lax.scan(body, jnp.zeros_like(y), jnp.stack([net(p, x), y]))[0]
        return jnp.mean(jax.lax.cond(p["a"][0, 0] > 9, shown, lambda h: h, h))

    jax.block_until_ready(sp.pipeline(chatty, num_stages=2, num_microbatches=4)(params(), *data()))
    jax.effects_barrier()
    words = capfd.readouterr().out.split()
    assert (words.count("trip"), words.count("branch")) == (8, 0)


def test_prints_come_once_per_microbatch_or_once_per_step(capfd: pytest.CaptureFixture[str]) -> None:
    def train(p: Any, x: Any, y: Any) -> Any:
        def noisy(p: Any) -> Any:
            value = loss(p, x, y)
            jax.debug.print("rows {}", x[:, 0] * 0 + 1)
            jax.debug.print("loss {}", value)
            return value

        value, grads = jax.value_and_grad(noisy)(p)
        jax.debug.print("size {}", sum(jnp.sum(g * g) for g in grads.values()))
        return jax.tree.map(lambda a, g: a - 0.1 * g, p, grads), value

    _, value = sp.pipeline(train, num_stages=2, num_microbatches=2)(params(), *data())
    jax.effects_barrier()
    lines = capfd.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines) == ["loss", "rows", "rows", "size"]
    assert all(line.count("1.") == 8 for line in lines if line.startswith("rows"))
    (printed,) = (float(line.split()[1]) for line in lines if line.startswith("loss"))
    assert abs(printed - float(value)) < 1e-5


@pytest.mark.parametrize("mesh", [{"stage": 2, "data": 8}, AbstractMesh((2, 8), ("stage", "data"))])
def test_a_report_needs_no_devices(mesh: Any) -> None:
    run = sp.pipeline(loss, num_stages=2, num_microbatches=2, mesh=mesh)
    assert len(run.report(params(), *data()).rows) == 2
    with pytest.raises(PipelineError, match="the mesh needs 16 devices and there are 8"):
        run(params(), *data())


@pytest.mark.parametrize(("reach", "latency"), [(8, 1e-5), (16, 1e-6), (12, 1e-5)])
def test_stages_beyond_the_reach_of_fast_links_take_the_network(reach: int, latency: float) -> None:
    hardware = hardware_named("h100")
    fabric, network = (dataclasses.replace(links, bandwidth=1e18) for links in (hardware.fabric, hardware.network))
    hardware = dataclasses.replace(hardware, fabric=dataclasses.replace(fabric, reach=reach, latency=1e-6), network=network)
    run = sp.pipeline(loss, num_stages=2, num_microbatches=2, mesh={"stage": 2, "data": 8}, schedule="gpipe", hardware=hardware)
    spans = run.report(params(), *data()).simulation.spans
    here, there = (next(span for span in spans if span.task == sp.pipelines.Task("F", stage, 0)) for stage in range(2))
    assert there.start - here.end == pytest.approx(latency, rel=1e-3)


@pytest.mark.parametrize("mesh", [{"stage": 2}, {"stage": 2, "data": 4}, "devices"])
def test_devices_of_another_process_are_refused(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has none of the devices; tests/test_multi_process.py has real ones."""
    given = jax.make_mesh((2, 2), ("stage", "data"), devices=jax.devices()[:4]) if mesh == "devices" else mesh
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "local_devices", list)
    run = sp.pipeline(loss, num_stages=2, num_microbatches=2, mesh=given)
    assert len(run.report(params(), *data()).rows) == 2
    with pytest.raises(PipelineError, match="devices of process 0") as error:
        run(params(), *data())
    assert "in process 1 of 1" in str(error.value)


def test_a_state_is_computed_where_it_is_kept() -> None:
    run = sp.pipeline(loss, num_stages=2, num_microbatches=2)
    run.build(params(), *data())
    state = run.init(lambda scale: jax.tree.map(lambda p: scale * p, params()), 1.0)
    assert {name: x.sharding for name, x in state.items()} == run.shardings()[0]
    assert len({x.sharding for x in state.values()}) == 2
    assert abs(float(run(state, *data())[0]) - float(loss(params(), *data()))) < 1e-6
    with pytest.raises(PipelineError, match="the pipeline was built for"):
        run.init(lambda: 1.0)


@pytest.mark.parametrize("mesh", [None, {"stage": 4, "data": 2}])
def test_stages_hold_their_rows_of_stacked_parameters(mesh: Any) -> None:
    def deep(p: Any, x: Any, y: Any) -> Any:
        h, _ = jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), x, p["layers"])
        return jnp.mean((h - y) ** 2)

    optimizer = optax.adam(1e-2)

    def train(state: Any, x: Any, y: Any) -> Any:
        p, moments = state
        value, gradients = jax.value_and_grad(deep)(p, x, y)
        changes, moments = optimizer.update(gradients, moments, p)
        return (optax.apply_updates(p, changes), moments), value

    def start() -> Any:
        p = {"layers": jnp.stack([params()["b"] * 0.3] * 8)}
        return p, optimizer.init(p)

    run = sp.pipeline(train, num_stages=4, num_microbatches=4, mesh=mesh, donate_argnums=0)
    state, other = start(), start()
    for _ in range(3):
        state, value = run(state, *data())
        other, wanted = train(other, *data())
        assert largest_gap((state, value), (other, wanted)) < 1e-5
    one = WIDTH * WIDTH * 4
    rows = run.report().rows
    held = [row.parameter_bytes for row in rows]
    assert 8 * one <= sum(held) <= 9 * one  # a cut within a layer has both its stages read it
    assert max(held) <= 3 * one
    assert sum(row.gradient_bytes for row in rows) == 8 * one + 4


def test_donation() -> None:
    def train(p: Any, x: Any, y: Any) -> Any:
        return jax.tree.map(lambda a, g: a - 0.1 * g, p, jax.grad(loss)(p, x, y))

    run = sp.pipeline(train, num_stages=2, num_microbatches=2, donate_argnums=0)
    first = run(params(), *data())
    second = run(first, *data())
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first))
    assert largest_gap(second, train(train(params(), *data()), *data())) < 1e-6
    with pytest.raises(PipelineError, match=r"the buffer of p\['a'\] has been deleted"):
        run(first, *data())


def test_one_microbatch_and_one_stage() -> None:
    run = sp.pipeline(loss, num_stages=1, num_microbatches=1)
    assert run.verify(params(), *data()) < 1e-6


@pytest.mark.parametrize("fun", [loss, loop_loss])
def test_microbatches_of_one_example(fun: Any) -> None:
    x, y = data()
    run = sp.pipeline(fun, num_stages=2, num_microbatches=4)
    assert run.verify(params(), x[:4], y[:4]) < 1e-5


def test_a_difference_is_found() -> None:
    run = sp.pipeline(jax.value_and_grad(norm_loss, has_aux=True), num_stages=2, num_microbatches=2, batch_statistics="microbatch")
    with pytest.raises(PipelineError, match="the pipeline gives another result"):
        run.verify(params(), *data())


def test_calls_that_are_refused() -> None:
    run = sp.pipeline(loss, num_stages=2, num_microbatches=2)
    with pytest.raises(PipelineError, match="cannot be part of another program"):
        jax.jit(run)(params(), *data())
    with pytest.raises(PipelineError, match="donate_argnums names argument 5"):
        sp.pipeline(loss, num_stages=2, num_microbatches=2, donate_argnums=5)(params(), *data())
    with pytest.raises(PipelineError, match="mesh is 3"):
        sp.pipeline(loss, num_stages=2, num_microbatches=2, mesh=3)(params(), *data())
    with pytest.raises(TypeError, match=r"loss\(.*missing a required argument: 'y'"):
        run(params(), data()[0])
    with pytest.raises(TypeError, match=r"p\['act'\] is .*, which is not an array"):
        run({**params(), "act": "relu"}, *data())
    with pytest.raises(TypeError, match="batch_argnums is 'x'"):
        sp.pipeline(loss, num_stages=2, num_microbatches=2, batch_argnums="x")  # pyright: ignore
    with pytest.raises(TypeError, match="schedule is 3"):
        sp.pipeline(loss, num_stages=2, num_microbatches=2, schedule=3)  # pyright: ignore
    with pytest.raises(TypeError, match="takes a function, not 3"):
        sp.pipeline(3, num_stages=2, num_microbatches=2)  # pyright: ignore
    with pytest.raises(PipelineError, match="'y' can only be passed by name"):
        sp.pipeline(lambda p, x, *, y: loss(p, x, y), num_stages=2, num_microbatches=2)(params(), data()[0], y=data()[1])


def test_arguments_by_name_and_the_automatic_schedule() -> None:
    run = sp.pipeline(loss, num_stages=2, num_microbatches=4, schedule="auto")
    x, y = data()
    assert largest_gap(run(params(), y=y, x=x), jax.value_and_grad(loss)(params(), x, y)) < 1e-6
    assert run.verify(params(), y=y, x=x) < 1e-5
    found = run.report(params(), y=y, x=x).simulation
    for name in ("1f1b", "gpipe", "zb-h2"):
        other = sp.pipeline(loss, num_stages=2, num_microbatches=4, schedule=name)
        assert found.makespan <= other.report(params(), x, y).simulation.makespan * 1.3


def test_nothing_to_tell_before_a_call() -> None:
    run = sp.pipeline(loss, num_stages=2, num_microbatches=2)
    for ask in (lambda: run.statistics, lambda: run.schedule, lambda: run.programs_per_stage, run.report):
        with pytest.raises(PipelineError, match="nothing has"):
            ask()
