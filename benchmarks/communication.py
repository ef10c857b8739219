"""Compares the bytes that plans predict with those that the collectives of the compiled programs move, over many annotations of one model.

The model is that of `gpt.py`, small; its weights and its batch are annotated in 30 ways: data parallel, Megatron, fully sharded, and
specs drawn at random. The two must be the same.

    python benchmarks/communication.py
    python benchmarks/communication.py --scanned --plans=10 --collectives
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The same collectives, compiled sooner.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

import functools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import gpt
import jax
from absl import app, flags
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in

PLANS = flags.DEFINE_integer("plans", 30, "Annotations.", lower_bound=1)
DEPTH = flags.DEFINE_integer("depth", 2, "Layers.", lower_bound=1)
WIDTH = flags.DEFINE_integer("model_width", 128, "A multiple of 128.", lower_bound=128)
SCANNED = flags.DEFINE_bool("scanned", False, "One scan over stacked layers in place of a list of layers.")
FIRST = flags.DEFINE_integer("first", 0, "Number of the first annotation.", lower_bound=0)
COLLECTIVES = flags.DEFINE_bool("collectives", False, "List what is predicted and what is compiled, by kind.")

AXES = {"data": 2, "model": 4}
MEGATRON = {
    "query_key_value": P(None, None, "model"),
    "mix": P("model"),
    "gate": P(None, "model"),
    "up": P(None, "model"),
    "down": P("model"),
}
BOTH = ("data", "model")
FULLY_SHARDED = {
    "query_key_value": P(None, BOTH),
    "mix": P(None, None, BOTH),
    "gate": P(BOTH),
    "up": P(BOTH),
    "down": P(None, BOTH),
}
MIXED = {
    "query_key_value": P(None, "data", "model"),
    "mix": P("model", None, "data"),
    "gate": P("data", "model"),
    "up": P("data", "model"),
    "down": P("model", "data"),
}
KNOWN: tuple[tuple[str, dict[str, P], P | None, P], ...] = (
    ("data parallel", {}, None, P(BOTH)),
    ("data parallel over data", {}, None, P("data")),
    ("Megatron", MEGATRON, P("model"), P("data")),
    ("Megatron, first halves", gpt.LAYER_SPECS, P("model"), P("data")),
    ("fully sharded", FULLY_SHARDED, P(None, BOTH), P(BOTH)),
    ("fully sharded, Megatron", MIXED, P("model", "data"), P("data")),
    ("Megatron, one batch", MEGATRON, P("model"), P()),
)


def drawn(number: int) -> tuple[str, dict[str, P], P | None, P]:
    """A name, the specs of the weights of a layer, of the table, and of the tokens."""
    if number < len(KNOWN):
        return KNOWN[number]
    draw = random.Random(number)
    shapes = gpt.layer_shapes(WIDTH.value)
    layer = {name: spec for name, shape in shapes.items() if (spec := some_spec(draw, shape)) is not None}
    tokens = draw.choice([P("data"), P("data"), P("model"), P(BOTH), P()])
    return f"random {number}", layer, some_spec(draw, (2048, WIDTH.value)), tokens


def some_spec(draw: random.Random, shape: Sequence[int]) -> P | None:
    """Up to two axes on dimensions that they divide; None half of the time."""
    if draw.random() < 0.5:
        return None
    dims: list[list[str]] = [[] for _ in shape]
    for axis in draw.sample(list(AXES), draw.choice([1, 2])):
        fitting = [d for d, n in enumerate(shape) if n % 8 == 0 or (not dims[d] and n % AXES[axis] == 0)]
        if fitting:
            dims[draw.choice(fitting)].append(axis)
    return P(*(tuple(axes) or None for axes in dims))


def program(number: int, mesh: Mesh) -> tuple[str, Any, Any]:
    """Name, arguments and shardings."""
    name, layer, table, tokens = drawn(number)
    args, _ = gpt.arguments(DEPTH.value, WIDTH.value, scanned=SCANNED.value)
    shapes = gpt.layer_shapes(WIDTH.value)
    stacked = {w: layer.get(w) for w in shapes}
    if SCANNED.value:
        stacked = {w: None if spec is None else P(None, *spec) for w, spec in stacked.items()}
    specs = {"table": table, "blocks": stacked if SCANNED.value else [stacked] * DEPTH.value, "gain": None}
    bound = jax.tree.map(lambda spec: NamedSharding(mesh, spec), (specs, None, tokens), is_leaf=lambda leaf: isinstance(leaf, P))
    return name, args, bound


def both(number: int, mesh: Mesh) -> tuple[str, int, int, Counter[str], Counter[str]]:
    """Name, bytes predicted and bytes compiled, and the same by kind."""
    name, args, shardings = program(number, mesh)

    @functools.wraps(gpt.train_step)
    def step(*args: Any) -> Any:
        return gpt.train_step(*args)

    traced = sp.auto_shard(step, mesh=mesh, in_shardings=shardings).trace(*args)
    predicted: Counter[str] = Counter()
    for one in traced.plan().collectives:
        predicted[one.kind] += one.total_bytes or one.received_bytes
    compiled: Counter[str] = Counter()
    for two in collectives_in(traced.lower().compile().as_text()):
        compiled[two.kind] += two.total_bytes or two.received_bytes
    return name, predicted.total(), compiled.total(), predicted, compiled


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=(AxisType.Auto,) * 2)
    exact = 0
    for number in range(FIRST.value, FIRST.value + PLANS.value):
        name, ours, theirs, predicted, compiled = both(number, mesh)
        exact += predicted == compiled
        print(f"{name:26s} predicted {ours:>10d} B  compiled {theirs:>10d} B  ratio {ours / theirs if theirs else 1:5.2f}", flush=True)
        if COLLECTIVES.value:
            for kind in sorted({*predicted, *compiled}):
                print(f"  {kind:20s} {predicted[kind]:>10d}   {compiled[kind]:>10d}")
    print(f"{exact} of {PLANS.value} exact")


if __name__ == "__main__":
    app.run(main)
