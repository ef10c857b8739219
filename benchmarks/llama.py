"""A decoder of the Llama 3 family and its Adam step in plain JAX, described by shapes only.

Grouped-query attention, rotary positions, gated MLP, RMS norms, untied output matrix (arXiv:2407.21783, table 3). Matrices are bfloat16;
Adam's moments and the sums of matrix products are float32. With `experts` the MLP is a mixture of them, as in Mixtral and DeepSeek-V3.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
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
        gated: Whether the MLP has a gate; GPT-3's has none.
        experts: MLPs of a layer, of which each token takes some; none where the MLP is one.
        active: How many each token takes.
        shared: Experts that each token takes besides.
        is_sorted: Whether tokens are sorted by expert, for ragged products; else dispatched by one-hot products, with a capacity.
    """

    layers: int = 126
    width: int = 16384
    heads: int = 128
    key_heads: int = 8
    hidden: int = 53248
    vocabulary: int = 128256
    length: int = 8192
    batch: int = 1024
    gated: bool = True
    experts: int = 0
    active: int = 2
    shared: int = 0
    is_sorted: bool = False

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.width // self.heads


Names = str | tuple[str, ...] | None
"""Mesh axes of a dimension."""

GROUP, CAPACITY = 1024, 1.25
"""Tokens that are dispatched together, and what an expert takes of them, in parts of an even share."""


def block(c: Config, fsdp: Names, tensor: Names, experts: Names, keys: Names) -> dict[str, tuple[tuple[int, ...], P]]:
    """Shape and sharding of every weight of one block: fully sharded and tensor parallel, as MaxText lays this model out."""
    weights = {
        "attention_gain": ((c.width,), P()),
        "query": ((c.width, c.heads, c.head_size), P(fsdp, tensor, None)),
        "key": ((c.width, c.key_heads, c.head_size), P(fsdp, keys, None)),
        "value": ((c.width, c.key_heads, c.head_size), P(fsdp, keys, None)),
        "mix": ((c.heads, c.head_size, c.width), P(tensor, None, fsdp)),
        "mlp_gain": ((c.width,), P()),
    }
    if not c.experts:
        return weights | mlp(c, fsdp, tensor)
    weights |= {"router": ((c.width, c.experts), P())}
    shared = replace(c, hidden=c.shared * c.hidden)
    weights |= {f"shared_{name}": weight for name, weight in mlp(shared, fsdp, tensor).items() if c.shared}
    rest = tuple(name for name in ((fsdp,) if isinstance(fsdp, str) else fsdp or ()) if name != experts) or None
    return weights | {name: ((c.experts, *shape), P(experts, *spec)) for name, (shape, spec) in mlp(c, rest, tensor).items()}


def mlp(c: Config, fsdp: Names, tensor: Names) -> dict[str, tuple[tuple[int, ...], P]]:
    """Shape and sharding of every weight of an MLP."""
    into, out = ((c.width, c.hidden), P(fsdp, tensor)), ((c.hidden, c.width), P(tensor, fsdp))
    return {"gate": into, "up": into, "down": out} if c.gated else {"up": into, "down": out}


def arguments(
    c: Config,
    *,
    scanned: bool,
    fsdp: Names = "fsdp",
    tensor: Names = "model",
    keys: Names = "model",
    experts: Names = None,
    batch: Names = ("data", "fsdp"),
) -> tuple[Tree, Tree]:
    """Arguments of the step as shapes, and their `in_shardings`.

    Args:
        c: Sizes.
        scanned: Whether layers are stacked.
        fsdp: The mesh axes over which parameters are cut and gathered.
        tensor: Those over which heads, hidden layers and the vocabulary are cut.
        keys: Those over which heads of keys and values are, of which there are fewer.
        experts: Those over which experts are.
        batch: Those over which sequences are.
    """
    stack = (c.layers,) if scanned else ()
    weights = block(c, fsdp, tensor, experts, keys)
    shapes = {name: jax.ShapeDtypeStruct(stack + shape, jnp.bfloat16) for name, (shape, _) in weights.items()}
    specs = {name: P(*(None,) * len(stack), *spec) for name, (_, spec) in weights.items()}
    params = {
        "table": jax.ShapeDtypeStruct((c.vocabulary, c.width), jnp.bfloat16),
        "blocks": shapes if scanned else [shapes] * c.layers,
        "gain": jax.ShapeDtypeStruct((c.width,), jnp.bfloat16),
        "output": jax.ShapeDtypeStruct((c.width, c.vocabulary), jnp.bfloat16),
    }
    param_specs = {
        "table": P(tensor, fsdp),
        "blocks": specs if scanned else [specs] * c.layers,
        "gain": P(),
        "output": P(fsdp, tensor),
    }
    moments = jax.eval_shape(OPTIMIZER.init, params)
    tokens = jax.ShapeDtypeStruct((c.batch, c.length + 1), jnp.int32)
    return (params, moments, tokens), (param_specs, None, P(batch))


def moment_specs(moments: Tree, param_specs: Tree) -> Tree:
    """Shardings of the moments: those of the parameters."""
    return (moments[0]._replace(count=P(), mu=param_specs, nu=param_specs), *moments[1:])


def parameters(c: Config) -> int:
    """How many parameters there are."""
    each = sum(math.prod(shape) for shape, _ in block(c, None, None, None, None).values())
    return int(c.layers * each + 2 * c.vocabulary * c.width + c.width)


Pin = Callable[[jax.Array, str], jax.Array]
"""Constrains a value inside, by what it is: "stream", "heads", "hidden", "logits" or "queued"."""


def pin_stream(x: jax.Array, kind: str) -> jax.Array:
    """Activations are cut by sequences only; without this they would be cut as the weights are, and sums over "fsdp" be sent."""
    return sp.with_sharding_constraint(x, P(("data", "fsdp"))) if kind == "stream" else x


def unpinned(x: jax.Array, kind: str) -> jax.Array:
    """For a planner, which needs no constraint."""
    del kind
    return x


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


def apply_mlp(h: jax.Array, weights: Tree, hidden: Callable[[jax.Array], jax.Array], product: Callable[..., jax.Array]) -> jax.Array:
    inner = product(h, weights["up"])
    inner = jax.nn.silu(product(h, weights["gate"])) * inner if "gate" in weights else jax.nn.gelu(inner)
    return product(hidden(inner), weights["down"])


def choose_experts(h: jax.Array, weights: Tree, c: Config) -> tuple[jax.Array, jax.Array]:
    """The experts of each token, and their shares."""
    shares, chosen = jax.lax.top_k(jax.nn.softmax((h @ weights["router"]).astype(jnp.float32)), c.active)
    return (shares / shares.sum(-1, keepdims=True)).astype(h.dtype), chosen


def dispatched(h: jax.Array, weights: Tree, c: Config, pin: Pin) -> jax.Array:
    """Experts take what one-hot products bring them, of each group of tokens at most a capacity."""
    batch, length, width = h.shape
    size = min(length, GROUP)
    capacity = max(int(CAPACITY * c.active * size / c.experts), 4)
    tokens = h.reshape(batch, length // size, size, width)
    shares, chosen = choose_experts(tokens, weights, c)
    to_expert = jax.nn.one_hot(chosen, c.experts, dtype=jnp.float32)
    flat = to_expert.reshape(batch, length // size, size * c.active, c.experts)
    place = jnp.sum((jnp.cumsum(flat, 2) - 1) * flat, -1).reshape(chosen.shape)
    to_place = jax.nn.one_hot(place.astype(jnp.int32), capacity, dtype=h.dtype)
    to_expert = to_expert.astype(h.dtype)
    queued = pin(jnp.einsum("bngec,bngd->ebncd", jnp.einsum("bngke,bngkc->bngec", to_expert, to_place), tokens), "queued")
    product = functools.partial(jnp.einsum, "ebncd,edf->ebncf")
    answered = pin(apply_mlp(queued, weights, lambda x: x, product), "queued")
    combine = jnp.einsum("bngke,bngkc->bngec", to_expert * shares[..., None], to_place)
    return jnp.einsum("bngec,ebncd->bngd", combine, answered).reshape(h.shape)


def sorted_by_expert(h: jax.Array, weights: Tree, c: Config) -> jax.Array:
    """Experts take the tokens that are sorted to them, as many as there are."""
    tokens = h.reshape(-1, h.shape[-1])
    shares, chosen = choose_experts(tokens, weights, c)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=c.experts).astype(jnp.int32)
    answered = apply_mlp(tokens[order // c.active], weights, lambda x: x, lambda x, w: jax.lax.ragged_dot(x, w, sizes))
    return jnp.zeros_like(tokens).at[order // c.active].add(answered * shares.reshape(-1)[order, None]).reshape(h.shape)


def apply_block(x: jax.Array, weights: Tree, c: Config, pin: Pin) -> jax.Array:
    h = rms_norm(x, weights["attention_gain"])
    query = rotate(pin(jnp.einsum("blm,mhd->blhd", h, weights["query"]), "heads"))
    key = rotate(jnp.einsum("blm,mkd->blkd", h, weights["key"]))
    value = jnp.einsum("blm,mkd->blkd", h, weights["value"])
    batch, length, heads, size = query.shape
    grouped = query.reshape(batch, length, key.shape[2], heads // key.shape[2], size)
    scores = jnp.einsum("bqkgd,bpkd->bkgqp", grouped, key, preferred_element_type=jnp.float32) * size**-0.5
    past = jnp.arange(length)[:, None] >= jnp.arange(length)[None, :]
    attention = jax.nn.softmax(jnp.where(past, scores, -1e30), axis=-1).astype(x.dtype)
    mixed = pin(jnp.einsum("bkgqp,bpkd->bqkgd", attention, value).reshape(batch, length, heads, size), "heads")
    x = pin(x + jnp.einsum("blhd,hdm->blm", mixed, weights["mix"]), "stream")
    h = rms_norm(x, weights["mlp_gain"])
    if not c.experts:
        return pin(x + apply_mlp(h, weights, lambda inner: pin(inner, "hidden"), jnp.matmul), "stream")
    shared = {name.removeprefix("shared_"): w for name, w in weights.items() if name.startswith("shared_")}
    routed = sorted_by_expert(h, weights, c) if c.is_sorted else dispatched(h, weights, c, pin)
    x = pin(x + routed, "stream")
    return pin(x + apply_mlp(h, shared, lambda inner: pin(inner, "hidden"), jnp.matmul), "stream") if shared else x


def loss(params: Tree, tokens: jax.Array, c: Config, pin: Pin) -> jax.Array:
    x = pin(jnp.take(params["table"], tokens[:, :-1], axis=0), "stream")
    layer = jax.checkpoint(functools.partial(apply_block, c=c, pin=pin))
    if isinstance(params["blocks"], list):
        for weights in params["blocks"]:
            x = layer(x, weights)
    else:
        x, _ = jax.lax.scan(lambda x, weights: (layer(x, weights), None), x, params["blocks"])
    logits = pin(rms_norm(x, params["gain"]) @ params["output"], "logits").astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def train_step(params: Tree, moments: Tree, tokens: jax.Array, c: Config = Config(), pin: Pin = pin_stream) -> tuple[Tree, Tree, jax.Array]:
    value, gradients = jax.value_and_grad(loss)(params, tokens, c, pin)
    updates, moments = OPTIMIZER.update(gradients, moments, params)
    return optax.apply_updates(params, updates), moments, value
