"""`Plan.as_text`: small plans to the letter, large ones by their length and what they say they leave out."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.errors import ShardyError
from shardy_py.facade import Plan

MESH = {"data": 2, "model": 4}


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


SOURCE = """\
def loss(params, batch):
    for layer in params["layers"]:
        batch = (batch @ layer["up"]) @ layer["down"]
    return jnp.sum(batch)
def step(state, batch):
    grads = jax.grad(loss)(state["params"], batch)
    mu = jax.tree.map(lambda m, g: 0.9 * m + g, state["mu"], grads)
    return {"params": jax.tree.map(lambda p, m: p - m, state["params"], mu), "mu": mu}
"""


def trained(layers: int, width: int = 64) -> Plan:
    """A training step whose lines are those of a file `step.py`."""
    names: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(compile(SOURCE, "/home/me/step.py", "exec"), names)
    params = {"layers": [{"up": f32(width, 4 * width), "down": f32(4 * width, width), "bias": f32(1, width)} for _ in range(layers)]}
    state = {"params": params, "mu": params}
    sharded = sp.auto_shard(names["step"], mesh=MESH, in_shardings=(None, P("data")), rules=[("up", P(None, "model"))], lowering="jit")
    return sharded.plan(state, f32(32, width))


TEXT = """\
plan of step on mesh data=2, model=4
XLA partitions: at least 164 KiB a device, as our own partitioner would move; plan.compile_for()
  asks XLA
inputs  25 arrays, 262 KiB on each device
  state                                 24 arrays              258 KiB
    ['mu']['layers'][0..3]['bias']      float32[1,64]            256 B  x4
    ['mu']['layers'][0..3]['down']      float32[256@model,64]   16 KiB  x4
    ['mu']['layers'][0..3]['up']        float32[64,256@model]   16 KiB  x4
    ['params']['layers'][0..3]['bias']  float32[1,64]            256 B  x4
    ['params']['layers'][0..3]['down']  float32[256@model,64]   16 KiB  x4
    ['params']['layers'][0..3]['up']    float32[64,256@model]   16 KiB  x4
  batch                                 float32[32@data,64]      4 KiB
outputs  24 arrays, 258 KiB on each device
  result  24 arrays, as state  258 KiB
values  66 arrays on 3 source lines
  step.py:3
    dot_general  float32[32@data,256@model]   4 KiB  x8
    dot_general  float32[32@data,64]          4 KiB  x6
    dot_general  float32[64,256@model]       16 KiB  x4
    transpose    float32[256@model,64]       16 KiB  x4
    dot_general  float32[256@model,64]       16 KiB  x4
    transpose    float32[64,256@model]       16 KiB  x4
  step.py:7
    mul          float32[1,64]                256 B  x4
    add          float32[1,64]                256 B  x4
    mul          float32[256@model,64]       16 KiB  x4
    add          float32[256@model,64]       16 KiB  x4
    mul          float32[64,256@model]       16 KiB  x4
    add          float32[64,256@model]       16 KiB  x4
  step.py:8
    sub          float32[1,64]                256 B  x4
    sub          float32[256@model,64]       16 KiB  x4
    sub          float32[64,256@model]       16 KiB  x4
collectives  14, which bring 164 KiB to each device in a call
  16 KiB  all_reduce(data)   step.py:7  float32[64,64] of %26 and 7 more  transpose
   6 KiB  all_reduce(model)  step.py:3  float32[16,64] of %1 and 5 more  dot_general
findings  1 note
  info: unmatched-rule: no rule matches 'state/params/layers/0..3/bias'; propagation leaves them
    whole [state['params']['layers'][0..3]['bias'], step.py:5]"""


@pytest.fixture(scope="module")
def four() -> Plan:
    return trained(4)


def test_the_text_of_a_training_step(four: Plan) -> None:
    assert four.as_text() == str(four) == TEXT


def test_values_can_be_left_out(four: Plan) -> None:
    text = four.as_text(values=False)
    assert text.splitlines() == [line for line in TEXT.splitlines() if line in text.splitlines()]
    assert "values" not in text
    assert "collectives  14" in text


def test_depth(four: Plan) -> None:
    assert four.as_text(depth=2, values=False).splitlines()[3:10] == [
        "inputs  25 arrays, 262 KiB on each device",
        "  state['mu'] ...      12 arrays            129 KiB",
        "  state['params'] ...  12 arrays            129 KiB",
        "  batch                float32[32@data,64]    4 KiB",
        "outputs  24 arrays, 258 KiB on each device",
        "  result['mu'] ...      12 arrays  129 KiB",
        "  result['params'] ...  12 arrays  129 KiB",
    ]


def test_a_cut_list_begins_with_the_largest(four: Plan) -> None:
    lines = four.as_text(limit=5).splitlines()
    assert lines[3:10] == [
        "inputs  25 arrays, 262 KiB on each device",
        "  state                             24 arrays              258 KiB",
        "    ['mu']['layers'][0..3]['down']  float32[256@model,64]   16 KiB  x4",
        "    ['mu']['layers'][0..3]['up']    float32[64,256@model]   16 KiB  x4",
        "    ... and 16 more arrays, of 16 KiB or less each",
        "  ... and 1 more array of 4 KiB",
        "outputs  24 arrays, 258 KiB on each device",
    ]
    assert "  ... and 36 more arrays, of 16 KiB or less each" in lines
    assert "  ... and 6 more collectives, of 6 KiB or less each" in lines


def test_replicated_values_come_before_others_of_their_size() -> None:
    def f(a, b, c):
        return a, b, c

    plan = sp.auto_shard(f, mesh=MESH, in_shardings=(P("data"), P(), None)).plan(f32(512, 8), f32(256, 8), f32(64, 8))
    lines = plan.as_text(limit=2).splitlines()
    assert lines[2:4] == ["  b  float32[256,8]  8 KiB", "  ... and 2 more arrays, of 8 KiB or less each"]


@pytest.mark.parametrize("where", ["*'up'*", "['up']"])
def test_where_a_path(four: Plan, where: str) -> None:
    assert four.as_text(where=where).splitlines() == [
        f"plan of step on mesh data=2, model=4, where {where!r}",
        "inputs  8 arrays, 128 KiB on each device",
        "  state['mu']['layers'][0..3]['up']      float32[64,256@model]  16 KiB  x4",
        "  state['params']['layers'][0..3]['up']  float32[64,256@model]  16 KiB  x4",
        "outputs  8 arrays, 128 KiB on each device",
        "  result['mu']['layers'][0..3]['up']      float32[64,256@model]  16 KiB  x4",
        "  result['params']['layers'][0..3]['up']  float32[64,256@model]  16 KiB  x4",
    ]


def test_where_a_primitive_and_a_line(four: Plan) -> None:
    text = four.as_text(where="dot_general")
    assert "inputs" not in text
    assert "values  22 arrays on 1 source line" in text
    assert "collectives  6" in text
    assert [line for line in four.as_text(where="step.py:8").splitlines() if "sub" in line] == [
        "    sub  float32[1,64]           256 B  x4",
        "    sub  float32[256@model,64]  16 KiB  x4",
        "    sub  float32[64,256@model]  16 KiB  x4",
    ]


def test_where_a_function(four: Plan) -> None:
    text = four.as_text(where=lambda value: value.kind == "input" and "bias" in value.path)
    assert text.splitlines()[1:4] == [
        "inputs  8 arrays, 2 KiB on each device",
        "  state['mu']['layers'][0..3]['bias']      float32[1,64]  256 B  x4",
        "  state['params']['layers'][0..3]['bias']  float32[1,64]  256 B  x4",
    ]
    assert "values" not in text
    assert "unmatched-rule" in text  # of these paths


def test_where_nothing_is(four: Plan) -> None:
    assert four.as_text(where="down[") == "plan of step on mesh data=2, model=4, where 'down['\n  nothing of 115 values is like that"


def test_wrong_settings_say_what_is_right(four: Plan) -> None:
    with pytest.raises(TypeError, match="where is 3, a int; it is a string"):
        four.as_text(where=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShardyError, match="limit is 0"):
        four.as_text(limit=0)
    with pytest.raises(ShardyError, match="depth is -1"):
        four.as_text(depth=-1)


def test_sentences_are_broken_at_the_width(four: Plan) -> None:
    for width in (60, 140):
        lines = four.as_text(width=width).splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("findings"))
        assert max(map(len, lines[start:])) <= width


def test_collectives_of_a_partitioned_program() -> None:
    def f(w, v, x):
        return (x @ w) @ v

    plan = sp.auto_shard(f, mesh=MESH, in_shardings=(P(None, "model"), P("model"), P("data")), lowering="shard_map").plan(
        f32(64, 128), f32(128, 64), f32(32, 64)
    )
    assert plan.as_text().splitlines()[-2:] == [
        "collectives  1, which brings 6 KiB to each device in a call",
        f"  6 KiB  all_reduce(model)  test_text_of_plans.py:{f.__code__.co_firstlineno + 1}  float32[16,64] of %1  dot_general",
    ]
    assert plan.as_text(where="f:9*") == "plan of f on mesh data=2, model=4, where 'f:9*'\n  nothing of 6 values is like that"


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return x + nn.Dense(64, name="down", use_bias=False)(nn.relu(nn.Dense(256, name="up", use_bias=False)(x)))


class Stack(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i in range(6):
            x = Block(name=f"block_{i}")(x)
        return nn.LayerNorm(name="norm", use_bias=False, use_scale=False)(x)


def test_modules() -> None:
    model = Stack()
    params = jax.eval_shape(model.init, jax.random.key(0), f32(8, 64))
    sharded = sp.auto_shard(model.apply, mesh=MESH, in_shardings=(None, P("data")), rules=[("up/kernel", P(None, "model"))])
    plan = sharded.plan(params, f32(8, 64))
    lines = plan.as_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("values"))
    assert lines[start + 1 : start + 3] == ["  Stack/", "    block_0..5/"]
    assert sum("dot_general" in line for line in lines[start:]) - sum("all_reduce" in line for line in lines) == 2
    text = plan.as_text(where="Stack/block_3*")
    assert "  Stack/block_3/" in text
    assert {v.module for v in plan.values if v.primitive == "max"} == {"Stack/norm", *(f"Stack/block_{i}" for i in range(6))}


@pytest.mark.slow
def test_twenty_thousand_values_stay_readable() -> None:
    def f(xs):
        for _ in range(40):
            xs = [jnp.sin(x) for x in xs]
        return xs

    plan = sp.auto_shard(f, mesh=MESH, in_shardings=P("data")).plan([f32(8 * (i + 1), 4) for i in range(500)])
    text = plan.as_text()
    assert len(text.splitlines()) < 200
    assert max(map(len, text.splitlines())) <= 100
    assert "inputs  500 arrays" in text
    assert "values  20,000 arrays on 1 source line" in text
    assert "    ... and 443 more arrays, of 27.7 KiB or less each" in text
    assert "  result  500 arrays, as xs" in text
    assert "    ... and 17,720 more arrays, of 27.7 KiB or less each" in text
    assert len(plan.as_text(limit=None).splitlines()) == 4 + 3 * 501 + 4


def test_states_of_optax() -> None:
    params = {"blocks": [{"w": f32(64, 64), "v": f32(64, 32), "b": f32(64), "c": f32(32), "d": f32(16)} for _ in range(3)]}
    optimizer = optax.adam(1e-3)

    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    plan = sp.auto_shard(step, mesh=MESH, in_shardings=(P(), None, P())).plan(params, jax.eval_shape(optimizer.init, params), params)
    assert plan.as_text(values=False).splitlines()[8:] == [
        "  state[0]                31 arrays                             147 KiB",
        "    .count                int32[]                                   4 B",
        "    .mu['blocks'][0..2]   5 arrays, as params['blocks'][0..2]  24.4 KiB  x3",
        "    .nu['blocks'][0..2]   5 arrays, as params['blocks'][0..2]  24.4 KiB  x3",
        "  grads['blocks'][0..2]   5 arrays, as params['blocks'][0..2]  24.4 KiB  x3",
        "outputs  46 arrays, 220 KiB on each device",
        "  result                 46 arrays                             220 KiB",
        "    [0]['blocks'][0..2]  5 arrays, as params['blocks'][0..2]  24.4 KiB  x3",
        "    [1][0]               31 arrays, as state[0]                147 KiB",
    ]
