"""Decodes a batch of sequences with a key-value cache that is donated, inside one `while_loop`.

Two annotations: the cache is split by sequence and by head. The cache of every layer is updated in place, and the
loop stops early when all sequences have ended. Tokens and cache have to equal those of the unsharded function.

    python examples/decode.py --tokens=24
"""

from __future__ import annotations

import os

# See train_lm.py: too few worker threads and collectives over different groups of devices block each other.
os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp

TOKENS = flags.DEFINE_integer("tokens", 24, "Tokens to decode at most, the prompt included.", lower_bound=4)
BATCH = flags.DEFINE_integer("batch", 8, "Sequences.", lower_bound=1)
LAYERS = flags.DEFINE_integer("layers", 2, "Transformer blocks.", lower_bound=1)
WIDTH, HEADS, VOCABULARY, END = 64, 4, 96, 0

Tree = dict[str, Any]


def make_params(layers: int) -> Tree:
    """Random weights; what is decoded makes no sense but is always the same."""
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray:
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    head = WIDTH // HEADS
    blocks = [
        {
            "query": weight(WIDTH, HEADS, head),
            "key": weight(WIDTH, HEADS, head),
            "value": weight(WIDTH, HEADS, head),
            "out": weight(HEADS, head, WIDTH),
            "up": weight(WIDTH, 4 * WIDTH),
            "down": weight(4 * WIDTH, WIDTH),
        }
        for _ in range(layers)
    ]
    return {"embed": weight(VOCABULARY, WIDTH) * 8, "blocks": blocks}


def empty_cache(layers: int, batch: int, length: int) -> Tree:
    """Keys and values of every layer: `[layer, sequence, position, head, feature]`."""
    shape = (layers, batch, length, HEADS, WIDTH // HEADS)
    return {"key": jnp.zeros(shape), "value": jnp.zeros(shape)}


def normalise(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def next_logits(params: Tree, cache: Tree, token: jax.Array, position: jax.Array) -> tuple[jax.Array, Tree]:
    """One token of every sequence through the network; the cache gains one position."""
    x = params["embed"][token]
    visible = jnp.arange(cache["key"].shape[2]) <= position
    for layer, block in enumerate(params["blocks"]):
        h = normalise(x)
        for name in ("key", "value"):
            new = jnp.einsum("bm,mhd->bhd", h, block[name])[None, :, None]
            cache = {**cache, name: jax.lax.dynamic_update_slice(cache[name], new, (layer, 0, position, 0, 0))}
        query = jnp.einsum("bm,mhd->bhd", h, block["query"])
        scores = jnp.einsum("bhd,bthd->bht", query, cache["key"][layer]) / np.sqrt(query.shape[-1])
        weights = jax.nn.softmax(jnp.where(visible, scores, -1e9))
        x = x + jnp.einsum("bhd,hdm->bm", jnp.einsum("bht,bthd->bhd", weights, cache["value"][layer]), block["out"])
        x = x + jax.nn.gelu(normalise(x) @ block["up"]) @ block["down"]
    return normalise(x) @ params["embed"].T, cache


def decode(params: Tree, cache: Tree, tokens: jax.Array, prompt: jax.Array) -> tuple[jax.Array, Tree, jax.Array]:
    """Fills `tokens` greedily after the first `prompt` ones; returns them, the cache and the number of positions filled."""

    def unfinished(carry: tuple[Any, ...]) -> jax.Array:
        position, tokens, _, ended = carry
        return (position + 1 < tokens.shape[1]) & ~ended.all()

    def advance(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        position, tokens, cache, ended = carry
        logits, cache = next_logits(params, cache, jax.lax.dynamic_index_in_dim(tokens, position, 1, keepdims=False), position)
        given = jax.lax.dynamic_index_in_dim(tokens, position + 1, 1, keepdims=False)
        chosen = jnp.where(position + 1 < prompt, given, jnp.where(ended, END, logits.argmax(-1).astype(tokens.dtype)))
        tokens = jax.lax.dynamic_update_index_in_dim(tokens, chosen, position + 1, 1)
        return position + 1, tokens, cache, ended | (chosen == END)

    start = (jnp.int32(0), tokens, cache, jnp.zeros(tokens.shape[0], bool))
    position, tokens, cache, _ = jax.lax.while_loop(unfinished, advance, start)
    return tokens, cache, position + 1


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)
    params = make_params(LAYERS.value)
    prompt = np.zeros((BATCH.value, TOKENS.value), np.int32)
    prompt[:, :3] = np.random.default_rng(1).integers(1, VOCABULARY, (BATCH.value, 3))

    step = sp.auto_shard(
        decode,
        mesh=jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2),
        in_shardings=(None, P(None, "data", None, "model"), P("data"), None),
        donate_argnums=1,
    )
    args = (params, empty_cache(LAYERS.value, BATCH.value, TOKENS.value), prompt, np.int32(3))
    plan = step.plan(*args)
    print(repr(plan), *(f"  {value}" for value in plan.inputs if "@" in str(value)), "  and the rest replicated", sep="\n")
    # Memory is reused only where an array already lies as planned, so the cache is put there first.
    args = jax.device_put(args, plan.input_shardings)
    tokens, cache, filled = step(*args)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(args[1])), "the donated cache is still there"
    print("cache", jax.tree.map(lambda leaf: str(leaf.sharding.spec), cache))
    print(f"filled {int(filled)} positions; the first sequence is {np.asarray(tokens[0]).tolist()}")

    expected = jax.jit(decode)(params, empty_cache(LAYERS.value, BATCH.value, TOKENS.value), prompt, np.int32(3))
    np.testing.assert_array_equal(tokens, expected[0])
    jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4), cache, expected[1])
    assert int(filled) == int(expected[2])
    print("tokens and cache agree with the unsharded run")


if __name__ == "__main__":
    app.run(main)
