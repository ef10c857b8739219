"""Small models whose training steps do not mention pipelines: a GPT with a tied embedding, ResNets, an encoder-decoder with long skips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


@dataclass(frozen=True)
class Model:
    """A training step with data.

    Attributes:
        step: (state, batch) to (state, loss).
        state: Parameters and optimizer state.
        batch: Makes the batch of a step, from its number.
        gradients: (params, batch) to (loss, gradients).
    """

    step: Callable[[Any, Any], tuple[Any, Any]]
    state: Any
    batch: Callable[[int], Any]
    gradients: Callable[[Any, Any], tuple[Any, Any]]


def _training(loss: Callable[[Any, Any], Any], params: Any, batch: Callable[[int], Any], rate: float) -> Model:
    optimizer = optax.adam(rate)

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        updates, moments = optimizer.update(grads, state["moments"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, value

    return Model(step, {"params": params, "moments": optimizer.init(params)}, batch, jax.value_and_grad(loss))


def _normalize(x: Any, scale: Any) -> Any:
    x = x - jnp.mean(x, -1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale


def gpt(layers: int = 8, width: int = 32, vocabulary: int = 64, length: int = 8, rows: int = 16, scan: bool = False) -> Model:
    """A GPT with one matrix for embedding and head; `scan` loops over stacked layers."""
    draw = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return jnp.asarray(draw.normal(size=shape) * 0.2 / np.sqrt(shape[0] / 8), "float32")

    def layer() -> dict[str, Any]:
        return {
            "qkv": weight(width, 3 * width), "out": weight(width, width), "up": weight(width, 4 * width), "down": weight(4 * width, width),
            "norm": jnp.ones((2, width)),
        }  # fmt: skip

    params: dict[str, Any] = {"embedding": weight(vocabulary, width), "position": weight(length, width), "norm": jnp.ones(width)}
    made = [layer() for _ in range(layers)]
    params["layers"] = jax.tree.map(lambda *xs: jnp.stack(xs), *made) if scan else made

    def block(x: Any, p: Any) -> Any:
        heads = 4
        h = _normalize(x, p["norm"][0]) @ p["qkv"]
        q, k, v = (a.reshape(*a.shape[:-1], heads, -1) for a in jnp.split(h, 3, -1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
        mask = jnp.tril(jnp.ones((length, length), bool))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), v)
        x = x + mixed.reshape(x.shape) @ p["out"]
        return x + jax.nn.gelu(_normalize(x, p["norm"][1]) @ p["up"]) @ p["down"]

    def loss(p: Any, batch: Any) -> Any:
        x = p["embedding"][batch["tokens"]] + p["position"]
        if scan:
            x, _ = jax.lax.scan(lambda c, layer: (block(c, layer), None), x, p["layers"])
        else:
            for one in p["layers"]:
                x = block(x, one)
        logits = _normalize(x, p["norm"]) @ p["embedding"].T
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]))

    def batch(number: int) -> Any:
        tokens = np.random.default_rng(number).integers(0, vocabulary, (rows, length + 1)).astype("int32")
        return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}

    return _training(loss, params, batch, 1e-3)


def resnet(blocks: int = 8, width: int = 8, size: int = 8, rows: int = 16, batch_norm: bool = False) -> Model:
    """A ResNet of Flax, with group normalization or, where asked for, batch normalization."""
    import flax.linen as nn

    class Block(nn.Module):
        features: int
        strides: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            def norm() -> Any:
                return nn.BatchNorm(use_running_average=False) if batch_norm else nn.GroupNorm(num_groups=4)

            y = nn.relu(norm()(nn.Conv(self.features, (3, 3), self.strides, use_bias=False)(x)))
            y = norm()(nn.Conv(self.features, (3, 3), use_bias=False)(y))
            if y.shape != x.shape:
                x = norm()(nn.Conv(self.features, (1, 1), self.strides, use_bias=False)(x))
            return nn.relu(x + y)

    class ResNet(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Conv(width, (3, 3))(x)
            for i in range(blocks):
                x = Block(width * 2 ** (2 * i // blocks), 2 if i == blocks // 2 else 1)(x)
            return nn.Dense(10)(jnp.mean(x, (1, 2)))

    model = ResNet()
    variables = model.init(jax.random.key(0), jnp.ones((1, size, size, 3)))

    def loss(p: Any, batch: Any) -> Any:
        logits = model.apply({**variables, "params": p}, batch["image"], mutable=["batch_stats"] if batch_norm else False)
        logits = logits[0] if batch_norm else logits
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]))

    def batch(number: int) -> Any:
        draw = np.random.default_rng(number)
        return {"image": draw.normal(size=(rows, size, size, 3)).astype("float32"), "label": draw.integers(0, 10, rows).astype("int32")}

    return _training(loss, variables["params"], batch, 1e-3)


def encoder_decoder(depth: int = 5, width: int = 24, rows: int = 16) -> Model:
    """A net in which every level of the encoder also goes to its counterpart in the decoder, and the input to the last layer."""
    draw = np.random.default_rng(1)

    def weight(*shape: int) -> Any:
        return jnp.asarray(draw.normal(size=shape) / np.sqrt(shape[0]), "float32")

    params = {
        "down": [weight(width, width) for _ in range(depth)],
        "up": [weight(2 * width, width) for _ in range(depth)],
        "gate": [weight(width, width) for _ in range(depth)],
        "last": weight(2 * width, 4),
    }

    def loss(p: Any, batch: Any) -> Any:
        x = batch["x"]
        levels = []
        for w in p["down"]:
            levels.append(x)
            x = jnp.tanh(x @ w)
        for w, gate, level in zip(p["up"], p["gate"], reversed(levels)):
            x = jax.nn.gelu(jnp.concatenate([x, level * jax.nn.sigmoid(level @ gate)], -1) @ w)
        logits = jnp.concatenate([x, batch["x"]], -1) @ p["last"]
        weights = batch["weight"]
        return jnp.sum(weights * jnp.sum((logits - batch["y"]) ** 2, -1)) / jnp.sum(weights)

    def batch(number: int) -> Any:
        draw = np.random.default_rng(number)
        return {
            "x": draw.normal(size=(rows, width)).astype("float32"),
            "y": draw.normal(size=(rows, 4)).astype("float32"),
            "weight": draw.uniform(size=rows).astype("float32"),
        }

    return _training(loss, params, batch, 1e-3)


MODELS: dict[str, Callable[[], Model]] = {
    "gpt": gpt,
    "gpt-scan": lambda: gpt(scan=True),
    "resnet": resnet,
    "encoder-decoder": encoder_decoder,
}
