"""Trains a character-level Flax transformer on 8 devices, sharded from three annotations.

The text is the reference manual that Python carries for `help()`. The plan is printed before anything runs, then the
loss; at the end the same steps run unsharded on one device and the losses have to agree.

    python examples/train_lm.py --steps=60
"""

from __future__ import annotations

import os
import pathlib

# Collectives over different groups of devices wait for each other for ever when the CPU client has fewer worker
# threads than about twice its devices. It reads the number from NPROC, once, when jax is imported.
os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import time
from collections.abc import Callable, Iterator
from pydoc_data.topics import topics
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp

STEPS = flags.DEFINE_integer("steps", 60, "Training steps.", lower_bound=1)
DEVICES = flags.DEFINE_integer("devices", 8, "CPU devices; half of a multiple of four.", lower_bound=2)
BATCH = flags.DEFINE_integer("batch", 32, "Sequences per step.", lower_bound=1)
LENGTH = flags.DEFINE_integer("length", 64, "Characters per sequence.", lower_bound=2)
LAYERS = flags.DEFINE_integer("layers", 2, "Transformer blocks.", lower_bound=1)
WIDTH = flags.DEFINE_integer("width", 128, "Width of the residual stream; a multiple of the heads.", lower_bound=8)
HEADS = flags.DEFINE_integer("heads", 4, "Attention heads.", lower_bound=1)
LOWERING = flags.DEFINE_enum("lowering", "auto", ["auto", "jit", "shard_map"], "How the plan runs.")
FULL_PLAN = flags.DEFINE_bool("full_plan", False, "Print all of the plan, in place of a few lines.")
PAGE = flags.DEFINE_string("page", "", "File for the page of the plan; none if empty.")
COMPARE = flags.DEFINE_bool("compare", True, "Run the same steps unsharded and compare the losses.")

State = dict[str, Any]
Batch = dict[str, np.ndarray]


class Attention(nn.Module):
    """Causal self-attention."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]

        def project(name: str) -> jax.Array:
            return nn.DenseGeneral((self.heads, width // self.heads), use_bias=False, name=name)(x)

        query, key, value = project("query"), project("key"), project("value")
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(width // self.heads)
        causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = nn.softmax(jnp.where(causal, scores, -1e9))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return nn.DenseGeneral(width, axis=(-2, -1), use_bias=False, name="out")(mixed)


class Block(nn.Module):
    """Attention and MLP, each on a normalised copy of the residual stream."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + Attention(self.heads, name="attention")(nn.LayerNorm()(x))
        hidden = nn.gelu(nn.Dense(4 * x.shape[-1], name="up")(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1], name="down")(hidden)


class Transformer(nn.Module):
    """Embeds characters, applies the blocks, predicts the next character with the same embedding."""

    vocabulary: int
    layers: int
    width: int
    heads: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = nn.Embed(self.vocabulary, self.width, name="embed")
        positions = self.param("positions", nn.initializers.normal(0.02), (tokens.shape[1], self.width))
        x = embed(tokens) + positions
        for i in range(self.layers):
            x = Block(self.heads, name=f"block_{i}")(x)
        return embed.attend(nn.LayerNorm()(x))


def read_text() -> tuple[np.ndarray, int]:
    """The manual as character numbers, and how many different ones there are, rounded up to a multiple of 8."""
    characters = np.array([ord(c) for c in "\n".join(topics.values())])
    alphabet, numbers = np.unique(characters, return_inverse=True)
    return numbers.astype(np.int32), -(-len(alphabet) // 8) * 8


def batches(text: np.ndarray, size: int, length: int) -> Iterator[Batch]:
    """Random pieces of the text, the same ones at every call."""
    random = np.random.default_rng(0)
    while True:
        pieces = np.stack([text[i : i + length + 1] for i in random.integers(0, len(text) - length - 1, size)])
        yield {"inputs": pieces[:, :-1], "targets": pieces[:, 1:]}


def training(vocabulary: int, donate: bool = True) -> tuple[Any, Callable[..., Any], Callable[[], State]]:
    """The sharded step, the step as it is, and what makes the first state."""
    model = Transformer(vocabulary, LAYERS.value, WIDTH.value, HEADS.value)
    optimizer = optax.adamw(optax.warmup_constant_schedule(0.0, 4e-3, 20))

    def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        def loss_of(params: Any) -> jax.Array:
            logits = model.apply({"params": params}, batch["inputs"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()

        loss, grads = jax.value_and_grad(loss_of)(state["params"])
        updates, optimizer_state = optimizer.update(grads, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": optimizer_state}, loss

    def first_state() -> State:
        params = model.init(jax.random.key(0), jnp.zeros((1, LENGTH.value), jnp.int32))["params"]
        return {"params": params, "optimizer": optimizer.init(params)}

    # Three annotations: the batch, the attention heads and the hidden layer. Everything else follows.
    step = sp.auto_shard(
        train_step,
        mesh=jax.make_mesh((2, DEVICES.value // 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2),
        in_shardings=(None, P("data")),
        rules=[
            ("attention/query/kernel", P(None, "model", None)),
            ("up/kernel", P(None, "model")),
        ],
        lowering=LOWERING.value,
        donate_argnums=0 if donate else None,
    )
    return step, train_step, first_state


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", DEVICES.value)
    text, vocabulary = read_text()
    step, train_step, first_state = training(vocabulary)

    def train(step_function: Any, state: State) -> list[float]:
        data, losses = batches(text, BATCH.value, LENGTH.value), []
        for _ in range(STEPS.value):
            state, loss = step_function(state, next(data))
            losses.append(float(loss))
        return losses

    plan = step.plan(jax.eval_shape(first_state), next(batches(text, BATCH.value, LENGTH.value)))
    print(plan.as_text() if FULL_PLAN.value else described(plan), flush=True)
    if PAGE.value:
        pathlib.Path(PAGE.value).parent.mkdir(parents=True, exist_ok=True)
        plan.save_html(PAGE.value, hardware="h100")
        print(f"page       {PAGE.value}: open it in a browser", flush=True)
    start = time.perf_counter()
    # Placed where the plan wants it, the state is donated from the first step on, and there is one compilation.
    losses = train(step, jax.device_put(first_state(), plan.input_shardings[0]))
    seconds = time.perf_counter() - start
    print(f"training   loss {losses[0]:.4f} -> {losses[-1]:.4f} in {STEPS.value} steps, {seconds:.1f} s with compilation", flush=True)
    if STEPS.value >= 20 and not losses[-1] < losses[0] - 0.3:
        raise SystemExit("the loss did not fall")

    if COMPARE.value:
        unsharded = train(jax.jit(train_step, donate_argnums=0), first_state())
        np.testing.assert_allclose(losses, unsharded, rtol=2e-3)
        print(f"unsharded  loss {unsharded[-1]:.4f} on one device, largest difference {np.abs(np.subtract(losses, unsharded)).max():.1e}")


def described(plan: Any) -> str:
    """The plan in a few lines."""
    params = [value for value in plan.inputs if value.path.startswith("state['params']")]
    size = sum(int(np.prod(value.shape)) for value in params)
    down = next(value for value in params if "down" in value.path and "kernel" in value.path)
    cause = plan.explain(down.path).chains[0][-1]
    reused = sum(leaf.aliased is not None for leaf in plan.donation)
    peak = plan.memory_analysis().peak_memory_in_bytes
    sent = sum(collective.total_bytes or 0 for collective in plan.collectives)
    rows = {
        "model": f"a transformer of {size:,} parameters in {LAYERS.value} blocks, with Adam: {len(plan.inputs)} arrays",
        "mesh": ", ".join(f"{name}={size}" for name, size in plan.mesh.shape.items()) + " of CPU devices",
        "annotated": "the batch, the query kernels and the up kernels; all others follow",
        "so": f"{down}, because of {cause.annotation} of {cause.value}",
        "memory": f"{peak / 2**20:.1f} MiB at the peak on each device; {reused} of {len(plan.donation)} donated arrays are reused",
        "sends": f"{sent / 2**20:.1f} MiB to each device in a step, in {len(plan.collectives)} collectives",
        "findings": ", ".join(finding.kind for finding in plan.findings if finding.severity != "info") or "none",
    }
    return "\n".join(f"{title:9}  {text}" for title, text in rows.items())


if __name__ == "__main__":
    app.run(main)
