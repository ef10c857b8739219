"""`verify`: a call as planned beside one device, and what XLA alone makes of it."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api.verifying import DifferenceError
from shardy_py.backends import xla_workarounds


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def loss(params, batch):
    hidden = jax.nn.relu(batch["x"] @ params["up"])
    return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)


def line(function, text):
    """`file:line` of the line of a function that holds the text."""
    lines, start = inspect.getsourcelines(function)
    (at,) = [i for i, found in enumerate(lines) if text in found]
    return f"{__file__}:{start + at}"


def test_train_step_agrees_and_keeps_its_arguments(mesh):
    @sp.auto_shard(mesh=mesh, in_shardings=({"up": P(None, "y"), "down": None}, P("x")), donate_argnums=0)
    def step(params, batch):
        grads = jax.grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = jax.tree.map(jnp.asarray, {"up": random(16, 32), "down": random(32, 16)})
    batch = {"x": random(8, 16), "y": random(8, 16)}
    found = step.verify(params, batch).check()
    assert found.agrees
    assert found.plain_xla.agrees
    assert found.first_difference is None
    assert found.run.ops > 10
    assert [c.path for c in found.outputs] == ["result['down']", "result['up']"]
    assert all(c.agrees and 0 <= c.max_abs < 1e-4 for c in found.outputs)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    placed = jax.device_put(params, step.plan(params, batch).input_shardings[0])
    assert step.verify(placed, batch, plain_xla=False).plain_xla is None
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(placed))
    assert "step on mesh x=2, y=4 agrees with the unsharded run" in str(found)
    assert "ops compared one by one" in str(found)


def depthwise(x, k):
    return (lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=16) ** 2).mean()


def test_names_the_op_that_xla_alone_gets_wrong(mesh):
    step = sp.auto_shard(jax.grad(depthwise, argnums=1), mesh=mesh, in_shardings=(P("x"), P()))
    found = step.verify(random(8, 8, 8, 16), random(3, 3, 1, 16)).check()
    if found.plain_xla.agrees:
        pytest.skip("this XLA is right")
    first = found.plain_xla.first_difference
    assert (first.op, first.location) == ("conv_general_dilated", line(depthwise, "conv_general_dilated"))
    assert first.alone
    assert first.result.factor == 4.0
    assert first.type == "float32[3,3,1,16]"
    assert first.operands[0].startswith("float32[8@x,")
    assert found.plain_xla.outputs[0].factor == 4.0
    assert "plain jax.jit is wrong" in str(found)
    assert "4 times what it should be" in str(found)


def test_result_of_the_wrong_size(mesh):
    step = sp.auto_shard(lambda x: lax.pad(x, 0.0, ((0, 1, 1),)), mesh=mesh, in_shardings=P(), out_shardings=P("x"))
    found = step.verify(random(8)).check()
    if found.plain_xla.agrees:
        pytest.skip("this XLA is right")
    assert found.plain_xla.first_difference.op == "pad"


@pytest.fixture
def wrong_tanh(monkeypatch):
    monkeypatch.setitem(xla_workarounds.WORKAROUNDS, "tanh", lambda eqn, named: lambda x: [2 * lax.tanh_p.bind(x, accuracy=None)])


def layers(w, x):
    @jax.jit
    def layer(w, x):
        return jnp.tanh(x @ w)

    return jax.nn.relu(layer(w, layer(w, x))).sum(0)


@pytest.mark.usefixtures("wrong_tanh")
def test_first_wrong_op(mesh):
    found = sp.auto_shard(layers, mesh=mesh, in_shardings=(P(None, "y"), P("x")), lowering="jit").verify(random(8, 8), random(16, 8))
    assert not found.agrees
    assert found.plain_xla.agrees
    first = found.first_difference
    assert (first.op, first.location, first.type) == ("tanh", line(layers, "jnp.tanh"), "float32[16@x,8@y]")
    assert first.result.factor == 2.0
    assert first.result.samples[0].got == pytest.approx(2 * first.result.samples[0].expected, rel=1e-5)
    with pytest.raises(DifferenceError, match="tanh") as caught:
        found.check()
    assert isinstance(caught.value, AssertionError)
    assert all(getattr(caught.value, part) for part in ("what", "where", "why", "fix"))


def scanned(x):
    def body(carry, y):
        carry = jnp.tanh(carry + y)
        return carry, carry.sum()

    return lax.scan(body, x[0], x)


def repeated(x):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1])), (0, x))


def branched(x):
    return lax.cond(x.sum() < 1e9, jnp.tanh, jnp.sin, x)


@pytest.mark.usefixtures("wrong_tanh")
@pytest.mark.parametrize(
    ("function", "op", "at"), [(scanned, "scan", "lax.scan"), (repeated, "while", "lax.while_loop"), (branched, "cond", "lax.cond")]
)
def test_loops_and_conditionals_are_judged_as_a_whole(function, op, at, mesh):
    found = sp.auto_shard(function, mesh=mesh, in_shardings=P(None, "x"), lowering="jit").verify(random(4, 8), plain_xla=False)
    first = found.first_difference
    assert (first.op, first.location) == (op, line(function, at))
    assert not found.agrees


@pytest.mark.usefixtures("wrong_tanh")
def test_op_that_the_outputs_hide(mesh):
    step = sp.auto_shard(lambda x: x + 1e-7 * jnp.tanh(x), mesh=mesh, in_shardings=P("x"), lowering="jit")
    x = random(16)
    found = step.verify(x, plain_xla=False)
    assert all(c.agrees for c in found.outputs)
    assert found.first_difference.op == "tanh"
    assert not found.agrees
    assert step.verify(x, plain_xla=False, every_op=False).agrees


@pytest.mark.usefixtures("wrong_tanh")
def test_integers_have_to_be_equal(mesh):
    step = sp.auto_shard(
        lambda x: (x + jnp.tanh(1e-3 * x).astype(jnp.int32) * 0 + (jnp.tanh(x * 1.0) > 1.5), x),
        mesh=mesh,
        in_shardings=P("x"),
        lowering="jit",
    )
    found = step.verify(jnp.arange(16) + 1_000_000, rtol=0.5)
    assert [c.agrees for c in found.outputs] == [False, True]
    assert found.outputs[0].max_abs == 1
    assert found.outputs[0].rtol == 0


def test_rounding_that_adam_amplifies(mesh):
    def model(params, x):
        h = x @ params["w"] + params["b"]  # the gradient of b is zero, but for rounding
        return jax.nn.relu((h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5)) @ params["out"]

    def step(params, x, y):
        grads = jax.grad(lambda p: jnp.mean((model(p, x) - y) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 1e-2 * g / (jnp.sqrt(g * g) + 1e-8), params, grads)  # the first step of Adam

    params = {"w": 0.1 * random(8, 16), "b": random(16), "out": 0.1 * random(16, 4)}
    sharded = sp.auto_shard(step, mesh=mesh, in_shardings=(None, P("x"), P("x")))
    found = sharded.verify(params, random(16, 8), random(16, 4)).check()
    by_path = {c.path: c for c in found.outputs}
    assert by_path["result['b']"].rounding > 1e-4
    assert not found.first_difference.alone
    assert "differs by rounding" in str(found)


def test_kinds_of_values(mesh):
    def many(key, x, n, scale, *, flag=True):
        low = x.astype(jnp.bfloat16)
        return {
            "key": key[::-1],
            "data": jax.random.key_data(key) * n,
            "nan": jnp.log(x),
            "complex": jnp.fft.fft(x),
            "low": (low @ low.T).astype(jnp.float32),
            "bool": x > 0 if flag else x < 0,
            "sorted": jnp.argsort(x, axis=0),
            "weak": scale * 2,
            "empty": x[:0],
        }

    step = sp.auto_shard(many, mesh=mesh, in_shardings={"x": P("x", "y")}, static_argnums=2, static_argnames="flag")
    x = random(8, 8)
    for scale in (1.5, jnp.asarray(2.0)):
        found = step.verify(jax.random.split(jax.random.key(0), 4), x, 3, scale, flag=False).check()
        assert found.plain_xla.agrees
    assert {c.path: c.dtype for c in found.outputs}["result['key']"] == "key<fry>"
    x[0, 0] = np.nan
    assert step.verify(jax.random.split(jax.random.key(0), 4), x, 3, 1.5, plain_xla=False).check().agrees


def test_annotations_and_constants(mesh):
    table = jax.device_put(random(16, 8), NamedSharding(mesh, P("x")))

    def f(x):
        x = sp.with_sharding_constraint(x + table, P("x", "y"))
        x = sp.propagation_barrier(x)
        return sp.manual_computation(lambda v: lax.psum(v, "x"), in_specs=P("x"), out_specs=P())(x).T

    assert sp.auto_shard(f, mesh=mesh).verify(random(16, 8)).check().run.ops >= 2


def test_lowering_by_shard_map(mesh):
    step = sp.auto_shard(scanned, mesh=mesh, in_shardings=P(None, "x"), lowering="shard_map")
    found = step.verify(random(4, 8)).check()
    assert found.plain_xla.agrees
    assert found.run.ops == 3


def test_explicit_axes_and_mappings():
    explicit = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    step = sp.auto_shard(lambda x, w: jnp.tanh(x @ w), mesh=explicit)
    assert step.verify(jax.device_put(random(16, 8), NamedSharding(explicit, P("x"))), random(8, 8)).check().plain_xla.agrees
    step = sp.auto_shard(lambda x, w: jnp.tanh(x @ w), mesh={"x": 2, "y": 4}, in_shardings=P("x"))
    assert step.verify(random(16, 8), random(8, 8)).check().plain_xla.agrees


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_under_set_mesh(kind):
    step = sp.auto_shard(lambda x: jnp.tanh(x).sum(0), in_shardings=P("x"))
    with jax.set_mesh(jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind,) * 2)):
        assert step.verify(random(8, 8)).check().plain_xla.agrees


def test_references_and_constant_results(mesh):
    def f(x):
        ref = jax.new_ref(x * 2)
        ref[0] = ref[1] + 1
        return ref[...].sum(0), 1.0, None, x

    assert sp.auto_shard(f, mesh=mesh, in_shardings=P("x")).verify(random(8, 8)).check().plain_xla.agrees


def test_nnx_modules_do_not_change(mesh):
    nnx = pytest.importorskip("flax.nnx")
    norm = nnx.BatchNorm(8, rngs=nnx.Rngs(0))
    before = jax.tree.map(np.asarray, nnx.state(norm))

    class Holder:
        @sp.auto_shard(mesh=mesh, in_shardings=(None, P("x")), static_argnums=0)
        def step(self, norm, x):
            return norm(x).sum()

    assert Holder().step.verify(norm, random(16, 8)).check().run.ops > 5
    assert jax.tree.all(jax.tree.map(np.array_equal, before, jax.tree.map(np.asarray, nnx.state(norm))))


def test_ops_that_cannot_be_compared(mesh, monkeypatch):
    def broken(self, flat, inputs):
        raise RuntimeError("UNIMPLEMENTED: something")

    monkeypatch.setattr("shardy_py.backends.first_difference.OpSearch.first", broken)
    found = sp.auto_shard(jnp.tanh, mesh=mesh, in_shardings=P("x")).verify(random(8), plain_xla=False).check()
    assert found.run.ops == 0
    assert "could not be compared one by one: RuntimeError: UNIMPLEMENTED" in str(found)


def test_needs_values(mesh):
    step = sp.auto_shard(jnp.tanh, mesh=mesh)
    with pytest.raises(TypeError, match="has no values"):
        step.verify(jax.ShapeDtypeStruct((8,), "float32"))
    with pytest.raises(TypeError, match="has no values"):
        jax.jit(step.verify)(random(8))


def test_a_process_without_devices_of_the_mesh_sees_no_difference(mesh, monkeypatch):
    """As in another process; tests/test_multi_process.py has real ones."""
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    found = sp.auto_shard(jnp.sin, mesh=mesh, in_shardings=P("x")).verify(random(8, 4))
    assert found.check() is found
    assert not found.outputs
    assert str(found) == "sin on mesh x=2, y=4 was not compared here: process 1 has none of the mesh's devices, which belong to process 0"
