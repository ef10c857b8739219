"""A decoder-only language model and its AdamW step in plain JAX, of any depth, described by shapes only."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

Tree = Any
HEAD_SIZE = 32
OPTIMIZER = optax.adamw(3e-4, b2=0.95)


def layer_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of one block."""
    heads = width // HEAD_SIZE
    return {
        "attention_gain": (width,),
        "query_key_value": (3, width, heads, HEAD_SIZE),
        "mix": (heads, HEAD_SIZE, width),
        "mlp_gain": (width,),
        "gate": (width, 3 * width),
        "up": (width, 3 * width),
        "down": (3 * width, width),
    }


LAYER_SPECS = {"query_key_value": P(None, None, "model", None), "gate": P(None, "model"), "up": P(None, "model")}


def shapes_and_specs(depth: int, width: int, *, scanned: bool, vocabulary: int = 2048) -> tuple[Tree, Tree]:
    """Parameters as `ShapeDtypeStruct`s and the specs of those that are annotated (None elsewhere)."""

    def block() -> Tree:
        stack = (depth,) if scanned else ()
        return {name: jax.ShapeDtypeStruct(stack + shape, jnp.float32) for name, shape in layer_shapes(width).items()}

    def block_specs() -> Tree:
        found = {name: LAYER_SPECS.get(name) for name in layer_shapes(width)}
        return {name: P(None, *spec) if scanned and spec is not None else spec for name, spec in found.items()}

    table = jax.ShapeDtypeStruct((vocabulary, width), jnp.float32)
    gain = jax.ShapeDtypeStruct((width,), jnp.float32)
    params = {"table": table, "blocks": block() if scanned else [block() for _ in range(depth)], "gain": gain}
    specs = {"table": P("model", None), "blocks": block_specs() if scanned else [block_specs() for _ in range(depth)], "gain": None}
    return params, specs


def arguments(depth: int, width: int, *, scanned: bool, batch: int = 16, length: int = 64) -> tuple[Tree, Tree]:
    """Arguments of `train_step` as shapes, and their `in_shardings` for a mesh with axes "data" and "model"."""
    params, specs = shapes_and_specs(depth, width, scanned=scanned)
    moments = jax.eval_shape(OPTIMIZER.init, params)
    tokens = jax.ShapeDtypeStruct((batch, length + 1), jnp.int32)
    return (params, moments, tokens), (specs, None, P("data"))


def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    return gain * x / jnp.sqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)


def rotate(x: jax.Array) -> jax.Array:
    """Rotary position embedding of `[batch, length, heads, feature]`."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angle)[:, None, :], jnp.cos(angle)[:, None, :]
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def apply_block(x: jax.Array, weights: Tree) -> jax.Array:
    query, key, value = jnp.einsum("blm,pmhd->pblhd", rms_norm(x, weights["attention_gain"]), weights["query_key_value"])
    scores = jnp.einsum("bqhd,bkhd->bhqk", rotate(query), rotate(key)) * HEAD_SIZE**-0.5
    length = x.shape[1]
    past = jnp.arange(length)[:, None] >= jnp.arange(length)[None, :]
    attention = jax.nn.softmax(jnp.where(past, scores, -jnp.inf), axis=-1)
    x += jnp.einsum("bhqk,bkhd,hdm->bqm", attention, value, weights["mix"])
    h = rms_norm(x, weights["mlp_gain"])
    return x + (jax.nn.silu(h @ weights["gate"]) * (h @ weights["up"])) @ weights["down"]


def loss(params: Tree, tokens: jax.Array) -> jax.Array:
    x = jnp.take(params["table"], tokens[:, :-1], axis=0)
    if isinstance(params["blocks"], list):
        for weights in params["blocks"]:
            x = apply_block(x, weights)
    else:
        x, _ = jax.lax.scan(lambda x, weights: (apply_block(x, weights), None), x, params["blocks"])
    logits = rms_norm(x, params["gain"]) @ params["table"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def train_step(params: Tree, moments: Tree, tokens: jax.Array) -> tuple[Tree, Tree, jax.Array]:
    value, gradients = jax.value_and_grad(loss)(params, tokens)
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments, value
