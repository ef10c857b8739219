"""Compares the step and the memory that a plan predicts for the accelerator at hand with what the accelerator and its compiler say.

One device: nothing is communicated, so that this is the roofline and the model of memory alone. Models are those of `planner_models.py`,
with a batch for one device; three small programs show the rates that the device reaches at all.

    python benchmarks/accelerator.py --models=gpt2,decoder
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import planner_models
from absl import app, flags
from jax.sharding import AxisType

import shardy_py as sp

MODELS = planner_models.MODELS
BLOCKS = flags.DEFINE_integer("blocks", 5, "Timed blocks of steps of each form, which take turns.", lower_bound=1)
CALLS = flags.DEFINE_integer("calls", 10, "Steps in a block.", lower_bound=1)
KIND = flags.DEFINE_string("hardware", None, "Name of the hardware; by default that of the first device.")

Tree = Any
Step = tuple[Callable[..., Any], tuple[Tree, ...], tuple[int, ...]]
"""A step, the shapes of its arguments, and those that it donates; results begin with the donated arguments' new values."""


def products() -> Step:
    def step(x: jax.Array, weights: jax.Array) -> tuple[jax.Array]:
        return (jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0],)

    return step, (planner_models.bf16(8192, 8192), planner_models.bf16(8, 8192, 8192)), (0,)


def update() -> Step:
    def step(p: jax.Array, g: jax.Array) -> tuple[jax.Array]:
        return (p - 0.1 * g,)

    return step, (planner_models.f32(1 << 28), planner_models.f32(1 << 28)), (0,)


def softmax() -> Step:
    def step(x: jax.Array) -> tuple[jax.Array]:
        return (jax.nn.softmax(x * 1.5, axis=-1),)

    return step, (planner_models.f32(1 << 15, 1 << 13),), (0,)


def model(name: str) -> Step:
    """A model of `planner_models`; the decoder's new cache comes first."""
    chosen = planner_models.CASES[name](1)
    step = functools.partial(chosen.step, constrain=planner_models.free)
    if chosen.donated == (0, 1):
        return step, chosen.arguments, chosen.donated

    def cache_first(cache: Tree, params: Tree, *rest: jax.Array) -> tuple[Tree, jax.Array]:
        token, cache = step(params, cache, *rest)
        return cache, token

    params, cache, *rest = chosen.arguments
    return cache_first, (cache, params, *rest), (0,)


SMALL = {"products": products, "update": update, "softmax": softmax}


def arrays(shapes: Tree) -> Tree:
    """Positive random numbers, since products of zeros run at a higher clock; integers are within every table."""
    leaves, treedef = jax.tree.flatten(shapes)
    keys = jax.random.split(jax.random.key(0), len(leaves))

    def one(key: jax.Array, shape: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(shape.dtype, jnp.integer):
            return jax.random.randint(key, shape.shape, 0, 1000, shape.dtype)
        return jax.random.uniform(key, shape.shape, shape.dtype, maxval=0.02)

    return jax.tree.unflatten(treedef, [jax.jit(one, static_argnums=1)(key, shape) for key, shape in zip(keys, leaves)])


def block(compiled: Any, state: tuple[Tree, ...], rest: tuple[Tree, ...]) -> tuple[float, tuple[Tree, ...]]:
    """Seconds of one step in a block of them, each on the results of the last."""
    jax.block_until_ready(state)
    start = time.perf_counter()
    for _ in range(CALLS.value):
        state = compiled(*state, *rest)[: len(state)]
    jax.block_until_ready(state)
    return (time.perf_counter() - start) / CALLS.value, state


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Norm of the difference over that of the values; compilers choose kernels by timing them, so that it is seldom zero."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float(np.linalg.norm(one - other) / max(np.linalg.norm(other), 1e-30))


def row(name: str, hardware: str) -> str:
    """A row of the table."""
    step, shapes, donated = (SMALL[name] if name in SMALL else functools.partial(model, name))()
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    sharded = sp.auto_shard(step, mesh=mesh, donate_argnums=donated)
    plan = sharded.plan(*shapes)
    span = plan.cost_analysis(hardware).step_seconds
    assert span is not None
    predicted = span.high
    forms = {"auto_shard": sharded.lower(*shapes).compile(), "jax.jit": jax.jit(step, donate_argnums=donated).lower(*shapes).compile()}
    memory = forms["auto_shard"].memory_analysis()
    peak = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes + memory.temp_size_in_bytes
    results = {}
    times: dict[str, list[float]] = {}
    for form, compiled in forms.items():
        state, rest = arrays(shapes[: len(donated)]), arrays(shapes[len(donated) :])
        results[form] = jax.tree.map(np.asarray, compiled(*state, *rest))
        del state, rest
    error = max(difference(one, other) for one, other in zip(*map(jax.tree.leaves, results.values())))
    for form in list(forms) * BLOCKS.value:
        state, rest = arrays(shapes[: len(donated)]), arrays(shapes[len(donated) :])
        _, state = block(forms[form], state, rest)
        seconds, state = block(forms[form], state, rest)
        times.setdefault(form, []).append(seconds)
        del state, rest
    ours, plain = (statistics.median(times[form]) for form in forms)
    said = plan.memory_analysis(hardware).peak_memory_in_bytes
    cells = [name, f"{predicted * 1e3:.3g}", f"{ours * 1e3:.3g}", f"{predicted / ours:.2f}", f"{ours / plain:.3f}"]
    cells += [f"{said / 2**30:.3g}", f"{peak / 2**30:.3g}", f"{said / peak:.2f}", f"{error:.0e}"]
    return f"| {' | '.join(cells)} |"


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    kind = jax.devices()[0].device_kind
    hardware = KIND.value or kind.lower().removeprefix("nvidia ")
    print(f"{kind}, as {hardware}; jax {jax.__version__}")
    print("| step | predicted, ms | measured, ms | ratio | of jax.jit | peak predicted, GiB | compiled, GiB | ratio | difference |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in MODELS.value or (*SMALL, *planner_models.CASES):
        print(row(name, hardware), flush=True)


if __name__ == "__main__":
    app.run(main)
