"""Compiles a step of many parameters with Adam beside the same step under `jax.jit`, in one process and taking turns.

The cost of a region in XLA would grow with the square of its arguments and results, of which such a step has six for each parameter.
Printed are CPU seconds to trace, lower and compile, planning apart, which a busy machine changes less than seconds by the clock.

    python benchmarks/many_parameters.py --parameters=1000
    python benchmarks/many_parameters.py --update
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from absl import app, flags
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

PARAMETERS = flags.DEFINE_integer("parameters", 1000, "Parameters, half of them biases.", lower_bound=2)
UPDATE = flags.DEFINE_bool("update", False, "Only Adam's update of given gradients, without a model.")
ROUNDS = flags.DEFINE_integer("rounds", 2, "How often each is compiled; times are medians.", lower_bound=1)
WAYS = flags.DEFINE_list("ways", "jax.jit,auto", "What to compare: jax.jit, and the lowerings of auto_shard.")

ADAM = optax.adam(1e-3)


class Program(NamedTuple):
    """A step, its arguments, and their specs."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    specs: tuple[Any, ...]


class Times(NamedTuple):
    """CPU seconds."""

    trace: float
    plan: float
    lower: float
    compile: float

    @property
    def compared(self) -> float:
        """All but planning."""
        return self.trace + self.lower + self.compile


def loss(params: list[Any], x: jax.Array) -> Any:
    """Many small heads on one input."""
    return sum(jnp.mean((x @ w + b) ** 2) for w, b in zip(params[::2], params[1::2], strict=True))


def program(count: int, update: bool) -> Program:
    params = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 32), (32,))] * (count // 2)
    specs = [P("data", "model"), P("model")] * (count // 2)
    state = jax.eval_shape(ADAM.init, params)
    state_specs = (optax.ScaleByAdamState(P(), specs, specs), optax.EmptyState())  # type: ignore[arg-type]

    def apply(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = ADAM.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    def train(params: Any, state: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x)
        return value, *apply(params, state, gradients)

    if update:
        return Program(apply, (params, state, params), (specs, state_specs, specs))
    return Program(train, (params, state, jax.ShapeDtypeStruct((16, 64), jnp.float32)), (specs, state_specs, P("data")))


def measured(way: str, program: Program, mesh: Mesh) -> Times:
    def step(*args: Any) -> Any:  # a function of its own: JAX remembers what it has traced
        return program.step(*args)

    times = [time.process_time()]
    if way == "jax.jit":
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), program.specs, is_leaf=lambda x: isinstance(x, P))
        traced = jax.jit(step, in_shardings=shardings).trace(*program.args)
        times += [time.process_time()] * 2
    else:
        traced = sp.auto_shard(step, mesh=mesh, in_shardings=program.specs, lowering=way).trace(*program.args)
        times.append(time.process_time())
        traced.plan()
        times.append(time.process_time())
    lowered = traced.lower()
    times.append(time.process_time())
    lowered.compile()
    times.append(time.process_time())
    return Times(*(after - before for before, after in itertools.pairwise(times)))


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    ways, small, large = WAYS.value, program(4, UPDATE.value), program(PARAMETERS.value, UPDATE.value)
    for way in ways:
        measured(way, small, mesh)  # loads what the first use of each loads
    runs: dict[str, list[Times]] = {way: [] for way in ways}
    for turn in range(ROUNDS.value):
        for way in ways if turn % 2 == 0 else reversed(ways):
            runs[way].append(measured(way, large, mesh))
    medians = {way: statistics.median(times.compared for times in runs[way]) for way in ways}
    print(f"{'':10s} {'trace':>7s} {'plan':>7s} {'lower':>7s} {'compile':>8s} {'without plan':>13s} {'ratio':>6s}")
    for way in ways:
        parts = [statistics.median(column) for column in zip(*runs[way], strict=True)]
        cells = " ".join(f"{part:6.2f}s" for part in parts[:3])
        print(f"{way:10s} {cells} {parts[3]:7.2f}s {medians[way]:12.2f}s {medians[way] / medians[ways[0]]:6.2f}")


if __name__ == "__main__":
    app.run(main)
