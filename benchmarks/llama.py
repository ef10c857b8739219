"""A decoder of the Llama 3 family and its Adam step in plain JAX, described by shapes only.

Grouped-query attention, rotary positions, gated MLP, RMS norms, untied output matrix (arXiv:2407.21783, table 3). Matrices are bfloat16;
Adam's moments and the sums of matrix products are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

import shardy_py as sp

Tree = Any
OPTIMIZER = optax.adam(8e-5, b2=0.95, mu_dtype=jnp.float32)


@dataclass(frozen=True)
class Config:
    """Sizes; the defaults are those of the 405B model.

    Attributes:
        layers: Blocks.
        width: Model dimension.
        heads: Query heads.
        key_heads: Key and value heads.
        hidden: Width of the MLP.
        vocabulary: Tokens.
        length: Tokens per sequence.
        batch: Sequences per step.
    """

    layers: int = 126
    width: int = 16384
    heads: int = 128
    key_heads: int = 8
    hidden: int = 53248
    vocabulary: int = 128256
    length: int = 8192
    batch: int = 1024

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.width // self.heads


BLOCK_SPECS = {
    "attention_gain": P(),
    "query": P("fsdp", "model", None),
    "key": P("fsdp", "model", None),
    "value": P("fsdp", "model", None),
    "mix": P("model", None, "fsdp"),
    "mlp_gain": P(),
    "gate": P("fsdp", "model"),
    "up": P("fsdp", "model"),
    "down": P("model", "fsdp"),
}
"""Fully sharded and tensor parallel, as MaxText lays this model out."""


def block_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of one block."""
    return {
        "attention_gain": (c.width,),
        "query": (c.width, c.heads, c.head_size),
        "key": (c.width, c.key_heads, c.head_size),
        "value": (c.width, c.key_heads, c.head_size),
        "mix": (c.heads, c.head_size, c.width),
        "mlp_gain": (c.width,),
        "gate": (c.width, c.hidden),
        "up": (c.width, c.hidden),
        "down": (c.hidden, c.width),
    }


def arguments(c: Config, *, scanned: bool) -> tuple[Tree, Tree]:
    """Arguments of the step as shapes, and their `in_shardings` for a mesh with axes "data", "fsdp" and "model"."""
    stack = (c.layers,) if scanned else ()
    block = {name: jax.ShapeDtypeStruct(stack + shape, jnp.bfloat16) for name, shape in block_shapes(c).items()}
    specs = {name: P(*(None,) * len(stack), *spec) for name, spec in BLOCK_SPECS.items()}
    params = {
        "table": jax.ShapeDtypeStruct((c.vocabulary, c.width), jnp.bfloat16),
        "blocks": block if scanned else [block] * c.layers,
        "gain": jax.ShapeDtypeStruct((c.width,), jnp.bfloat16),
        "output": jax.ShapeDtypeStruct((c.width, c.vocabulary), jnp.bfloat16),
    }
    param_specs = {
        "table": P("model", "fsdp"),
        "blocks": specs if scanned else [specs] * c.layers,
        "gain": P(),
        "output": P("fsdp", "model"),
    }
    moments = jax.eval_shape(OPTIMIZER.init, params)
    tokens = jax.ShapeDtypeStruct((c.batch, c.length + 1), jnp.int32)
    return (params, moments, tokens), (param_specs, None, P(("data", "fsdp")))


def parameters(c: Config) -> int:
    """How many parameters there are."""
    block = sum(jnp.prod(jnp.array(shape, dtype=float)).item() for shape in block_shapes(c).values())
    return int(c.layers * block + 2 * c.vocabulary * c.width + c.width)


def tokens_split(x: jax.Array) -> jax.Array:
    """Activations are cut by sequences only; without this they would be cut as the weights are, and sums over "fsdp" be sent."""
    return sp.with_sharding_constraint(x, P(("data", "fsdp")))


def rms_norm(x: jax.Array, gain: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (gain * (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-5))).astype(x.dtype)


def rotate(x: jax.Array) -> jax.Array:
    """Rotary position embedding of `[batch, length, ..., feature]`."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 500_000.0 ** (-jnp.arange(half) / half)
    angle = angle.reshape(x.shape[1], *(1,) * (x.ndim - 3), half)
    sin, cos = jnp.sin(angle).astype(x.dtype), jnp.cos(angle).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def apply_block(x: jax.Array, weights: Tree) -> jax.Array:
    h = rms_norm(x, weights["attention_gain"])
    query = rotate(jnp.einsum("blm,mhd->blhd", h, weights["query"]))
    key = rotate(jnp.einsum("blm,mkd->blkd", h, weights["key"]))
    value = jnp.einsum("blm,mkd->blkd", h, weights["value"])
    batch, length, heads, size = query.shape
    grouped = query.reshape(batch, length, key.shape[2], heads // key.shape[2], size)
    scores = jnp.einsum("bqkgd,bpkd->bkgqp", grouped, key, preferred_element_type=jnp.float32) * size**-0.5
    past = jnp.arange(length)[:, None] >= jnp.arange(length)[None, :]
    attention = jax.nn.softmax(jnp.where(past, scores, -1e30), axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bkgqp,bpkd->bqkgd", attention, value).reshape(batch, length, heads, size)
    x = tokens_split(x + jnp.einsum("blhd,hdm->blm", mixed, weights["mix"]))
    h = rms_norm(x, weights["mlp_gain"])
    return tokens_split(x + (jax.nn.silu(h @ weights["gate"]) * (h @ weights["up"])) @ weights["down"])


def loss(params: Tree, tokens: jax.Array) -> jax.Array:
    x = tokens_split(jnp.take(params["table"], tokens[:, :-1], axis=0))
    block = jax.checkpoint(apply_block)
    if isinstance(params["blocks"], list):
        for weights in params["blocks"]:
            x = block(x, weights)
    else:
        x, _ = jax.lax.scan(lambda x, weights: (block(x, weights), None), x, params["blocks"])
    logits = (rms_norm(x, params["gain"]) @ params["output"]).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def train_step(params: Tree, moments: Tree, tokens: jax.Array) -> tuple[Tree, Tree, jax.Array]:
    value, gradients = jax.value_and_grad(loss)(params, tokens)
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments, value
