"""Twelve programs as users write them, whose plans are written as code and pasted into this file: see test_as_code.

Each entry of `PROGRAMS` has the function, its abstract arguments and what its plan is made of.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from jax import P, lax


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def linear(x, w):
    return x @ w


def mlp_step(params, batch):
    def loss(params):
        hidden = jax.nn.relu(linear(batch["x"], params["up"]))
        return jnp.mean((linear(hidden, params["down"]) - batch["y"]) ** 2)

    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


MLP = {"up": f32(32, 128), "down": f32(128, 32)}, {"x": f32(64, 32), "y": f32(64, 32)}


def norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def attention(x, p):
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, p[name]) for name in ("q", "k", "v"))
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    return jnp.einsum("bthk,hkd->btd", jnp.einsum("bhts,bshk->bthk", weights, v), p["out"])


def block(x, p):
    x = x + attention(norm(x, p["ln1"]), p)
    h = norm(x, p["ln2"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def gpt_step(params, tokens):
    def loss(params):
        x = params["emb"][tokens[:, :-1]]
        for layer in params["layers"]:
            x = block(x, layer)
        logits = x @ params["emb"].T
        return cross_entropy(logits, tokens[:, 1:])

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def gpt_layer(d=32, heads=4, hidden=64):
    of_heads = f32(d, heads, d // heads)
    attention = {"q": of_heads, "k": of_heads, "v": of_heads, "out": f32(heads, d // heads, d)}
    return {**attention, "ln1": f32(d), "ln2": f32(d), "gate": f32(d, hidden), "up": f32(d, hidden), "down": f32(hidden, d)}


GPT = {"emb": f32(64, 32), "layers": [gpt_layer(), gpt_layer()]}, i32(8, 17)

STACKED = {"emb": f32(64, 32), "layers": jax.tree.map(lambda leaf: f32(4, *leaf.shape), gpt_layer())}
ADAM = optax.adam(1e-3)


def adam_step(params, state, tokens):
    def loss(params):
        x = params["emb"][tokens[:, :-1]]
        x, _ = lax.scan(lambda x, p: (jax.checkpoint(block)(x, p), None), x, params["layers"])
        return cross_entropy(x @ params["emb"].T, tokens[:, 1:])

    grads = jax.grad(loss)(params)
    updates, state = ADAM.update(grads, state, params)
    return optax.apply_updates(params, updates), state


def moe_step(params, x):
    def loss(params):
        gates = jax.nn.softmax(x @ params["router"], -1)
        chosen = jax.nn.one_hot(jnp.argmax(gates, -1), 4)
        position = (jnp.cumsum(chosen, 0) * chosen - 1).max(-1).astype(jnp.int32)
        dispatch = jnp.einsum("te,tc->tec", chosen, jax.nn.one_hot(position, 16))
        expert_in = jnp.einsum("tec,td->ecd", dispatch, x)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", expert_in, params["up"]))
        expert_out = jnp.einsum("ecf,efd->ecd", hidden, params["down"])
        combined = jnp.einsum("tec,ecd->td", dispatch * gates[:, :, None], expert_out)
        return jnp.mean((combined - x) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


MOE = {"router": f32(16, 4), "up": f32(4, 16, 32), "down": f32(4, 32, 16)}, f32(64, 16)


def decode(params, tokens, keys, values, length):
    def more(state):
        return state[1] < length

    def step(state):
        tokens, i, keys, values, written = state
        x = params["emb"][tokens]
        q, k, v = ((x @ params[name]).reshape(-1, 1, 4, 8) for name in ("q", "k", "v"))
        keys = lax.dynamic_update_slice(keys, k, (0, i, 0, 0))
        values = lax.dynamic_update_slice(values, v, (0, i, 0, 0))
        scores = jnp.einsum("bqhd,bshd->bhqs", q, keys)
        scores = jnp.where(jnp.arange(keys.shape[1]) <= i, scores, -jnp.inf)
        mixed = jnp.einsum("bhqs,bshd->bqhd", jax.nn.softmax(scores), values).reshape(-1, 32)
        tokens = jnp.argmax(mixed @ params["emb"].T, -1).astype(jnp.int32)
        return tokens, i + 1, keys, values, lax.dynamic_update_index_in_dim(written, tokens, i, 1)

    start = (tokens, 0, keys, values, jnp.zeros((tokens.shape[0], 16), jnp.int32))
    return lax.while_loop(more, step, start)


CACHE = f32(8, 16, 4, 8)
DECODE = {"q": f32(32, 32), "k": f32(32, 32), "v": f32(32, 32), "emb": f32(64, 32)}, i32(8), CACHE, CACHE, i32()


def convolution_step(params, images, labels):
    def loss(params):
        x = images
        for kernel in params["kernels"]:
            x = lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.gelu(x)
        return cross_entropy(x.mean((1, 2)) @ params["head"], labels)

    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


CONVOLUTION = {"kernels": [f32(3, 3, 4, 16), f32(3, 3, 16, 16)], "head": f32(16, 8)}, f32(8, 16, 16, 4), i32(8)


def gru(params, xs, h):
    def step(h, x):
        z = jax.nn.sigmoid(x @ params["wz"] + h @ params["uz"])
        c = jnp.tanh(x @ params["wc"] + (z * h) @ params["uc"])
        h = (1 - z) * h + z * c
        return h, h

    return lax.scan(step, h, xs)


GRU = {"wz": f32(16, 32), "uz": f32(32, 32), "wc": f32(16, 32), "uc": f32(32, 32)}, f32(6, 8, 16), f32(8, 32)


def recommender(table, ids, w):
    def loss(table, w):
        rows = jnp.take(table, ids, axis=0, mode="clip")
        return jax.nn.sigmoid(rows.sum(1) @ w).sum()

    return jax.grad(loss, argnums=(0, 1))(table, w)


def state_step(state, batch):
    def loss(params):
        return jnp.mean((state.apply_fn(params, batch["x"]) - batch["y"]) ** 2)

    return state.apply_gradients(grads=jax.grad(loss)(state.params))


def apply(params, x):
    for name in ("first", "second"):
        x = jnp.tanh(x @ params[name]["kernel"] + params[name]["bias"])
    return x


def train_state():
    layer = {"kernel": jnp.ones((32, 32)), "bias": jnp.ones(32)}
    return TrainState.create(apply_fn=apply, params={"first": layer, "second": layer}, tx=optax.adam(1e-3))


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        def dense(features, names):
            return nn.Dense(features, kernel_init=nn.with_logical_partitioning(nn.initializers.lecun_normal(), names))

        h = nn.gelu(dense(64, ("embed", "mlp"))(x))
        h = nn.with_logical_constraint(h, ("batch", "mlp"))
        return x + dense(16, ("mlp", "embed"))(h)


def named_step(variables, x):
    grads = jax.grad(lambda variables: jnp.mean(jnp.square(Model().apply(variables, x))))(variables)
    return jax.tree.map(lambda p, g: p - 0.1 * g, variables, grads)


def spectrum(x, kernel):
    mixed = jnp.fft.ifft(jnp.fft.fft(x) * jnp.fft.fft(kernel)).real
    ordered = jnp.sort(mixed, axis=-1)
    return jnp.concatenate([mixed, ordered], axis=0), jnp.cumsum(x, axis=0)


@dataclass(frozen=True)
class Example:
    """A program: the function, its arguments, and the arguments of `auto_shard`."""

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    specs: Any = None
    more: dict[str, Any] = field(default_factory=dict)
    adapted: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda fun: fun


def unboxed(fun):
    @functools.wraps(fun)
    def run(*args):
        return fun(*nn.meta.unbox(args))

    return run


def boxed(args):
    """Arguments that give each dimension of each array a name."""
    leaves, tree = jax.tree.flatten(args)
    names = [tuple(f"{leaf.ndim} {number} {dim}" for dim in range(leaf.ndim)) for number, leaf in enumerate(leaves)]
    return tree.unflatten(nn.LogicallyPartitioned(leaf, of) if of else leaf for leaf, of in zip(leaves, names, strict=True))


def with_names(this: Example) -> Example:
    """The program with a name for each dimension of its arguments."""
    return Example(unboxed(this.fun), boxed(this.args), this.specs, this.more, unboxed)


def layer_specs(*front):
    heads, columns, rows = P(*front, None, "model"), P(*front, None, "model"), P(*front, "model")
    return {"q": heads, "k": heads, "v": heads, "out": rows, "ln1": None, "ln2": None, "gate": columns, "up": columns, "down": rows}


PROGRAMS: dict[str, Callable[[], Example]] = {
    "mlp": lambda: Example(mlp_step, MLP, ({"up": P(None, "model"), "down": P("model")}, P("data"))),
    "gpt": lambda: Example(gpt_step, GPT, ({"emb": P("model"), "layers": [layer_specs(), layer_specs()]}, P("data"))),
    "adam": lambda: Example(
        adam_step,
        (STACKED, jax.eval_shape(ADAM.init, STACKED), GPT[1]),
        ({"emb": P("model"), "layers": layer_specs(None)}, None, P("data")),
    ),
    "moe": lambda: Example(moe_step, MOE, ({"router": None, "up": P("model"), "down": P("model")}, P("data"))),
    "decode": lambda: Example(
        decode, DECODE, ({"q": P(None, "model"), "k": P(None, "model"), "v": P(None, "model"), "emb": None}, P("data"), None, None, None)
    ),
    "convolution": lambda: Example(
        convolution_step, CONVOLUTION, ({"kernels": P(None, None, None, "model"), "head": None}, P("data"), None)
    ),
    "gru": lambda: Example(gru, GRU, (P(None, "model"), P(None, "data"), None)),
    "recommender": lambda: Example(recommender, (f32(128, 16), i32(16, 4), f32(16, 1)), (P("model"), P("data"), None)),
    "train state": lambda: Example(
        state_step, (jax.eval_shape(train_state), MLP[1]), (None, P("data")), {"rules": [("kernel", P("model"))]}
    ),
    "named": lambda: Example(
        named_step,
        (jax.eval_shape(Model().init, jax.random.key(0), f32(32, 16)), f32(32, 16)),
        (None, P("data")),
        {"logical_axis_rules": [("batch", "data"), ("mlp", "model"), ("embed", None)]},
    ),
    "spectrum": lambda: Example(spectrum, (f32(16, 32), f32(32)), (P("data"), None)),
    "fully sharded": lambda: Example(
        mlp_step, MLP, ({"up": P(("data", "model")), "down": P(None, ("data", "model"))}, P(("data", "model")))
    ),
}
