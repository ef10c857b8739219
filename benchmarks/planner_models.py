"""Seven models as the planner shards them, beside an expert's annotation: predicted step, bytes, peak, and seconds of planning.

Nothing is computed; shapes are enough. The table of docs/planner.md is what this prints.

    python benchmarks/planner_models.py --models=gpt2,resnet50 --devices=8,64
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp

MESHES = {8: (4, 2), 64: (8, 8), 256: (32, 8)}
AXES = ("data", "model")
ALL = AXES
HARDWARE = "v5e"
DATA_PARALLEL, FULLY_SHARDED = "batch over all devices, parameters whole", "batch and parameters over all devices"

MODELS = flags.DEFINE_list("models", None, "Names of models; by default all.")
DEVICES = flags.DEFINE_list("devices", ["8", "64", "256"], "Numbers of devices.")
SECONDS = flags.DEFINE_float("seconds", 60.0, "The planner's time limit.")

Constrain = Callable[..., jax.Array]


@dataclass(frozen=True)
class Model:
    """A step with its arguments, and how an expert annotates them.

    Attributes:
        step: Called with `constrain`, which pins a value inside in the expert's version and nothing in the planner's.
        arguments: Shapes.
        specs: The expert's `in_shardings`.
        results: The expert's `out_shardings`: what a step hands to the next one lies as it came.
        donated: `donate_argnums`.
        expert: The expert's annotation in words.
    """

    step: Callable[..., Any]
    arguments: tuple[Any, ...]
    specs: tuple[Any, ...]
    results: tuple[Any, ...]
    donated: tuple[int, ...]
    expert: str


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


# ---------------------------------------------------------------------- training


def adam(params: Any, moments: Any, grads: Any) -> tuple[Any, Any]:
    first, second = moments
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
    second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, grads)
    return jax.tree.map(lambda p, m, v: p - 1e-3 * m * lax.rsqrt(v + 1e-8), params, first, second), (first, second)


def training(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step of Adam: parameters in float32, computed with in bfloat16."""

    def step(params: Any, moments: Any, *batch: jax.Array, constrain: Constrain) -> Any:
        def half(params: Any) -> jax.Array:
            return loss(jax.tree.map(lambda p: p.astype(jnp.bfloat16), params), *batch, constrain=constrain)

        value, grads = jax.value_and_grad(half)(params)
        return *adam(params, moments, grads), value

    return step


def trained(loss: Callable[..., jax.Array], params: Any, specs: Any, batch: tuple[Any, ...], expert: str) -> Model:
    """A model whose batch the expert cuts over all devices."""
    state = (specs, (specs, specs))
    return Model(training(loss), (params, (params, params), *batch), (*state, *(P(ALL) for _ in batch)), (*state, None), (0, 1), expert)


def whole(params: Any) -> Any:
    """Parameters on every device."""
    return jax.tree.map(lambda _: P(), params)


def fully_sharded(params: Any, devices: int) -> Any:
    """Parameters cut over all devices, along the longest dimension that they divide.

    A table of tokens is cut along its width: lookups in one that is cut along its rows are summed up.
    """

    def cut(leaf: jax.ShapeDtypeStruct) -> P:
        dims = [dim for dim, size in enumerate(leaf.shape) if size % devices == 0]
        longest = max(dims, key=lambda dim: leaf.shape[dim], default=None)
        return P() if longest is None else P(*[None] * longest, ALL)

    return jax.tree.map(cut, params) | {"table": P(None, ALL)}


def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    logits = logits.astype(jnp.float32)
    own = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - own)


def attended(x: jax.Array, w: Any, constrain: Constrain) -> jax.Array:
    query, key, value = constrain(jnp.einsum("btd,cdhk->cbthk", x, w["qkv"]), None, ALL)
    scores = jnp.einsum("bthk,bshk->bhts", query, key).astype(jnp.float32) * query.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    mixed = jax.nn.softmax(jnp.where(causal, scores, -1e9)).astype(x.dtype)
    return constrain(jnp.einsum("bthk,hkd->btd", constrain(jnp.einsum("bhts,bshk->bthk", mixed, value), ALL), w["mix"]), ALL)


def language_model(block: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The loss of a stack of blocks between a table and its transpose."""

    def loss(params: Any, tokens: jax.Array, constrain: Constrain) -> jax.Array:
        x = constrain(params["table"][tokens[:, :-1]], ALL)
        body = jax.checkpoint(lambda x, w: constrain(block(x, w, constrain), ALL))
        x, _ = lax.scan(lambda x, w: (body(x, w), None), x, params["blocks"])
        return cross_entropy(constrain(x @ params["table"].T, ALL), tokens[:, 1:])

    return loss


def gpt2(devices: int) -> Model:
    layers, width, heads, length, vocabulary = 12, 768, 12, 1024, 50304

    def block(x: jax.Array, w: Any, constrain: Constrain) -> jax.Array:
        x = x + attended(normed(x, w["scale"]), w, constrain)
        return x + jax.nn.gelu(constrain(normed(x, w["scale"]) @ w["up"], ALL)) @ w["down"]

    blocks = {
        "scale": f32(layers, width),
        "qkv": f32(layers, 3, width, heads, width // heads),
        "mix": f32(layers, heads, width // heads, width),
        "up": f32(layers, width, 4 * width),
        "down": f32(layers, 4 * width, width),
    }
    params = {"table": f32(vocabulary, width), "blocks": blocks}
    return trained(language_model(block), params, fully_sharded(params, devices), (i32(8 * devices, length + 1),), FULLY_SHARDED)


def moe(devices: int) -> Model:
    layers, width, hidden, experts, heads, length, vocabulary = 8, 1024, 4096, 16, 16, 1024, 32768
    capacity = 2 * length // experts

    def block(x: jax.Array, w: Any, constrain: Constrain) -> jax.Array:
        x = x + attended(normed(x, w["scale"]), w, constrain)
        y = normed(x, w["scale"])
        gates = jax.nn.softmax((y @ w["router"]).astype(jnp.float32))
        chosen = jax.nn.one_hot(jnp.argmax(gates, -1), experts)
        place = (jnp.cumsum(chosen, 1) - 1) * chosen
        dispatch = (chosen[..., None] * jax.nn.one_hot(place.astype(jnp.int32), capacity)).astype(x.dtype)
        queued = constrain(jnp.einsum("gtec,gtd->egcd", dispatch, y), "model", "data")
        active = jax.nn.relu(jnp.einsum("egcd,edf->egcf", queued, w["up"]))
        answered = constrain(jnp.einsum("egcf,efd->egcd", active, w["down"]), "model", "data")
        combine = dispatch * jnp.max(gates, -1)[..., None, None].astype(x.dtype)
        return x + jnp.einsum("gtec,egcd->gtd", combine, answered)

    blocks = {
        "scale": f32(layers, width),
        "qkv": f32(layers, 3, width, heads, width // heads),
        "mix": f32(layers, heads, width // heads, width),
        "router": f32(layers, width, experts),
        "up": f32(layers, experts, width, hidden),
        "down": f32(layers, experts, hidden, width),
    }
    params = {"table": f32(vocabulary, width), "blocks": blocks}
    specs = whole(params)
    specs["blocks"] |= {"up": P(None, "model", "data"), "down": P(None, "model", None, "data")}
    expert = "tokens over all devices, experts over model, their weights over data"
    return trained(language_model(block), params, specs, (i32(4 * devices, length + 1),), expert)


def ssm(devices: int) -> Model:
    layers, width, heads, head, state, chunk, length, vocabulary = 12, 1024, 32, 64, 64, 128, 2048, 32768

    def block(x: jax.Array, w: Any, constrain: Constrain) -> jax.Array:
        y = normed(x, w["scale"])
        batch, chunks = x.shape[0], length // chunk
        values = constrain(y @ w["value"], ALL).reshape(batch, chunks, chunk, heads, head)
        into, out = (constrain(y @ w[name], ALL).reshape(batch, chunks, chunk, state) for name in ("into", "out"))
        decay = -jax.nn.softplus(constrain(y @ w["decay"], ALL).astype(jnp.float32)).reshape(batch, chunks, chunk, heads)
        run = jnp.cumsum(decay, 2)
        between = jnp.exp(jnp.where(jnp.tril(jnp.ones((chunk, chunk), bool))[..., None], run[:, :, :, None] - run[:, :, None], -jnp.inf))
        scores = jnp.einsum("bctn,bcsn->bcts", out, into)[..., None] * between.astype(x.dtype)
        within = jnp.einsum("bctsh,bcshp->bcthp", scores, values)
        left = jnp.exp(run[:, :, -1:] - run).astype(x.dtype)
        states = jnp.einsum("bcsn,bcsh,bcshp->cbhpn", into, left, values)
        keep = jnp.exp(run[:, :, -1]).astype(x.dtype).swapaxes(0, 1)
        start = jnp.zeros(states.shape[1:], x.dtype)
        _, before = lax.scan(lambda s, each: (s * each[0][..., None, None] + each[1], s), start, (keep, states))
        across = jnp.einsum("bctn,bcth,cbhpn->bcthp", out, jnp.exp(run).astype(x.dtype), before)
        mixed = (within + across).reshape(batch, length, heads * head) * jax.nn.silu(constrain(y @ w["gate"], ALL))
        return x + mixed @ w["mix"]

    inner = heads * head
    blocks = {
        "scale": f32(layers, width),
        "value": f32(layers, width, inner),
        "gate": f32(layers, width, inner),
        "into": f32(layers, width, state),
        "out": f32(layers, width, state),
        "decay": f32(layers, width, heads),
        "mix": f32(layers, inner, width),
    }
    params = {"table": f32(vocabulary, width), "blocks": blocks}
    return trained(language_model(block), params, fully_sharded(params, devices), (i32(4 * devices, length + 1),), FULLY_SHARDED)


# ---------------------------------------------------------------------- images


def convolved(x: jax.Array, w: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def batch_normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, (0, 1, 2))
    return ((wide - mean) * lax.rsqrt(jnp.mean(wide * wide, (0, 1, 2)) - mean * mean + 1e-5)).astype(x.dtype) * scale


def resnet50(devices: int) -> Model:
    stages = ((3, 64), (4, 128), (6, 256), (3, 512))

    def block(x: jax.Array, w: Any, stride: int = 1) -> jax.Array:
        y = jax.nn.relu(batch_normed(convolved(x, w["in"]), w["scale_in"]))
        y = jax.nn.relu(batch_normed(convolved(y, w["mid"], stride), w["scale_mid"]))
        y = batch_normed(convolved(y, w["out"]), w["scale_out"])
        return jax.nn.relu(y + (convolved(x, w["short"], stride) if "short" in w else x))

    def loss(params: Any, images: jax.Array, labels: jax.Array, constrain: Constrain) -> jax.Array:
        x = convolved(images, params["stem"], 2)
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for number, stage in enumerate(params["stages"]):
            x = constrain(block(x, stage["first"], 1 if number == 0 else 2), ALL)
            x, _ = lax.scan(lambda x, w: (block(x, w), None), x, stage["rest"])
        return cross_entropy(jnp.mean(x, (1, 2)) @ params["head"], labels)

    def weights(before: int, width: int, *layers: int) -> Any:
        filters = {"in": (1, 1, before, width), "mid": (3, 3, width, width), "out": (1, 1, width, 4 * width)}
        filters |= {"scale_in": (width,), "scale_mid": (width,), "scale_out": (4 * width,)}
        filters |= {} if layers else {"short": (1, 1, before, 4 * width)}
        return {name: f32(*layers, *shape) for name, shape in filters.items()}

    params: dict[str, Any] = {"stem": f32(7, 7, 3, 64), "head": f32(2048, 1000), "stages": []}
    before = 64
    for count, width in stages:
        params["stages"].append({"first": weights(before, width), "rest": weights(4 * width, width, count - 1)})
        before = 4 * width
    batch = bf16(32 * devices, 224, 224, 3), i32(32 * devices)
    return trained(loss, params, whole(params), batch, DATA_PARALLEL)


def unet(devices: int) -> Model:
    widths = (128, 256, 512, 512)

    def block(x: jax.Array, w: Any) -> jax.Array:
        y = convolved(jax.nn.silu(normed(x, w["scale"])), w["first"])
        y = convolved(jax.nn.silu(y), w["second"])
        return y + (x @ w["short"] if "short" in w else x)

    def loss(params: Any, noisy: jax.Array, noise: jax.Array, constrain: Constrain) -> jax.Array:
        x, skips = convolved(noisy, params["stem"]), []
        for w in params["down"]:
            x = block(x, w)
            skips.append(x)
            x = constrain(lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4, ALL)
        x = block(x, params["middle"])
        for w, skip in zip(params["up"], reversed(skips)):
            x = constrain(block(jnp.concatenate([x.repeat(2, 1).repeat(2, 2), skip], -1), w), ALL)
        return jnp.mean((convolved(x, params["leave"]) - noise).astype(jnp.float32) ** 2)

    def weights(before: int, width: int) -> Any:
        weights = {"scale": f32(before), "first": f32(3, 3, before, width), "second": f32(3, 3, width, width)}
        return weights if before == width else weights | {"short": f32(before, width)}

    pairs = list(zip((widths[0], *widths), widths))
    up = [weights(after + width, width) for width, after in zip(reversed(widths), (widths[-1], *reversed(widths)))]
    params = {
        "stem": f32(3, 3, 4, widths[0]),
        "down": [weights(*pair) for pair in pairs],
        "middle": weights(widths[-1], widths[-1]),
        "up": up,
        "leave": f32(3, 3, widths[0], 4),
    }
    images = bf16(16 * devices, 64, 64, 4)
    return trained(loss, params, whole(params), (images, images), DATA_PARALLEL)


# ---------------------------------------------------------------------- others


def decoder(devices: int) -> Model:
    layers, width, heads, groups, hidden, length, vocabulary = 32, 4096, 32, 8, 14336, 2048, 128256
    head = width // heads

    def step(params: Any, cache: Any, token: jax.Array, position: jax.Array, constrain: Constrain) -> Any:
        x = constrain(params["table"][token], "data")

        def layer(x: jax.Array, each: Any) -> Any:
            w, keys, values = each
            y = normed(x, w["scale"])
            query = (y @ w["query"]).reshape(-1, groups, heads // groups, head)
            key, value = ((y @ w[name]).reshape(-1, 1, groups, head) for name in ("key", "value"))
            keys, values = (lax.dynamic_update_slice_in_dim(old, new, position, 1) for old, new in ((keys, key), (values, value)))
            scores = jnp.einsum("bgqk,bsgk->bgqs", query, keys).astype(jnp.float32) * head**-0.5
            mixed = jax.nn.softmax(jnp.where(jnp.arange(length) <= position, scores, -1e9)).astype(x.dtype)
            x = x + jnp.einsum("bgqs,bsgk->bgqk", mixed, values).reshape(-1, width) @ w["mix"]
            y = normed(x, w["scale"])
            return constrain(x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], "data"), (keys, values)

        x, cache = lax.scan(layer, x, (params["blocks"], *cache))
        return jnp.argmax(x @ params["head"], -1), cache

    blocks = {
        "scale": bf16(layers, width),
        "query": bf16(layers, width, width),
        "key": bf16(layers, width, groups * head),
        "value": bf16(layers, width, groups * head),
        "mix": bf16(layers, width, width),
        "gate": bf16(layers, width, hidden),
        "up": bf16(layers, width, hidden),
        "down": bf16(layers, hidden, width),
    }
    columns, rows = P(None, None, "model"), P(None, "model", None)
    specs = {"scale": P(), "query": columns, "key": columns, "value": columns, "mix": rows, "gate": columns, "up": columns, "down": rows}
    params = {"table": bf16(vocabulary, width), "blocks": blocks, "head": bf16(width, vocabulary)}
    sequences = 8 * devices
    cache = (bf16(layers, sequences, length, groups, head),) * 2
    cached = (P(None, "data", None, "model"),) * 2
    annotated = ({"table": P("model"), "blocks": specs, "head": P(None, "model")}, cached, P("data"), P())
    expert = "sequences over data, heads and hidden layer over model (Megatron)"
    return Model(step, (params, cache, i32(sequences), i32()), annotated, (None, cached), (1,), expert)


def graph(devices: int) -> Model:
    nodes, degree, width, layers = 16384 * int(math.sqrt(devices)), 16, 256, 4

    def loss(params: Any, x: jax.Array, senders: jax.Array, receivers: jax.Array, wanted: jax.Array, constrain: Constrain) -> jax.Array:
        for w in params:
            messages = jax.nn.relu(x[senders] @ w["message"])
            summed = constrain(jax.ops.segment_sum(messages, receivers, nodes), None)
            x = jax.nn.relu(x @ w["own"] + summed @ w["sum"])
        return jnp.mean((x - wanted).astype(jnp.float32) ** 2)

    params = [{name: f32(width, width) for name in ("message", "own", "sum")}] * layers
    features, edges = bf16(nodes, width), i32(nodes * degree)
    state = (whole(params), (whole(params), whole(params)))
    arguments = (params, (params, params), features, edges, edges, features)
    annotated = (*state, P(), P(ALL), P(ALL), P())
    return Model(training(loss), arguments, annotated, (*state, None), (0, 1), "edges over all devices, nodes and parameters whole")


CASES = {"gpt2": gpt2, "resnet50": resnet50, "moe": moe, "unet": unet, "ssm": ssm, "decoder": decoder, "graph": graph}


def pinned(mesh: AbstractMesh, x: jax.Array, *spec: Any) -> jax.Array:
    return lax.with_sharding_constraint(x, jax.NamedSharding(mesh, P(*spec)))


def free(x: jax.Array, *spec: Any) -> jax.Array:
    return x


def figures(plan: Any) -> tuple[float, float, int]:
    """Seconds of a step where nothing overlaps, bytes that a device receives, peak of a device."""
    cost, memory = plan.cost_analysis(HARDWARE), plan.memory_analysis(HARDWARE)
    return cost.step_seconds.high, cost.communicated_bytes, memory.peak_memory_in_bytes


def row(name: str, devices: int) -> str:
    """A row of the table."""
    model = CASES[name](devices)
    mesh = AbstractMesh(MESHES[devices], AXES, axis_types=(AxisType.Auto,) * len(AXES))
    settings = {"mesh": mesh, "lowering": "jit", "donate_argnums": model.donated}
    annotated = functools.partial(model.step, constrain=functools.partial(pinned, mesh))
    expert = sp.auto_shard(annotated, in_shardings=model.specs, out_shardings=model.results, **settings)
    theirs = figures(expert.plan(*model.arguments))
    planner = sp.Planner(hardware=HARDWARE, time_limit_s=SECONDS.value)
    began = time.process_time()
    plan = sp.auto_shard(functools.partial(model.step, constrain=free), planner=planner, **settings).plan(*model.arguments)
    seconds = time.process_time() - began
    ours = figures(plan)
    search = plan.search
    assert search is not None
    cells = [f"{name}, {devices}", model.expert]
    for one, other, scale in zip(ours, theirs, (1e-3, 2**20, 2**30)):
        cells.append(f"{one / scale:.3g} / {other / scale:.3g}")
    cells += [f"{search.gap:.1%}", f"{seconds:.0f}"]
    return f"| {' | '.join(cells)} |"


def main(argv: list[str]) -> None:
    """Prints the table."""
    jax.config.update("jax_platforms", "cpu")
    print("| model, devices | the expert's annotation | step, ms | received, MiB | peak, GiB | gap | planning, s |")
    print("|---|---|---|---|---|---|---|")
    for name in MODELS.value or CASES:
        for devices in map(int, DEVICES.value):
            print(row(name, devices), flush=True)


if __name__ == "__main__":
    app.run(main)
