"""Trains a classifier without one annotation: the planner chooses the shardings, for a chip that it is told of.

The step is an ordinary `jax.jit` step with an optax optimizer. The difference is one decorator, with a mesh and a planner. The plan has the
predicted time of a step on the chip, the bound below which no other plan comes, and the times of well-known ways to shard. Losses and
parameters have to agree with the unsharded run.

    python examples/train_without_annotations.py --steps=20
"""

from __future__ import annotations

import os

# See train_lm.py: too few worker threads and collectives over different groups of devices block each other.
os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import itertools
from typing import Any

import jax
import numpy as np
import optax
from absl import app, flags

import shardy_py as sp

STEPS = flags.DEFINE_integer("steps", 20, "Training steps.", lower_bound=1)
BATCH = flags.DEFINE_integer("batch", 8192, "Examples per step.", lower_bound=8)
WIDTH = flags.DEFINE_integer("width", 512, "Features of a hidden layer.", lower_bound=8)
HARDWARE = flags.DEFINE_string("hardware", "v5e", "The chip that is planned for.")

OPTIMIZER = optax.adam(1e-3)
FEATURES, CLASSES, LAYERS = 64, 10, 3


def loss_of(params: Any, inputs: jax.Array, labels: jax.Array) -> jax.Array:
    x = inputs
    for w in params["hidden"]:
        x = jax.nn.relu(x @ w)
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["head"], labels).mean()


def train_step(params: Any, state: Any, inputs: jax.Array, labels: jax.Array) -> tuple[Any, Any, jax.Array]:
    loss, grads = jax.value_and_grad(loss_of)(params, inputs, labels)
    updates, state = OPTIMIZER.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss


def initial() -> tuple[Any, Any]:
    sizes = [FEATURES, *[WIDTH.value] * LAYERS]
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    hidden = [jax.random.normal(key, pair) * (2 / pair[0]) ** 0.5 for key, pair in zip(keys, itertools.pairwise(sizes))]
    params = {"hidden": hidden, "head": jax.random.normal(keys[-1], (WIDTH.value, CLASSES)) * WIDTH.value**-0.5}
    return params, OPTIMIZER.init(params)


def draw(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs whose class is the largest of ten of their sums."""
    inputs = np.random.default_rng(step).standard_normal((BATCH.value, FEATURES)).astype(np.float32)
    return inputs, (inputs[:, :40].reshape(-1, CLASSES, 4).sum(-1)).argmax(-1).astype(np.int32)


def train(step_function: Any) -> tuple[Any, list[float]]:
    (params, state), losses = initial(), []
    for i in range(STEPS.value):
        params, state, loss = step_function(params, state, *draw(i))
        losses.append(float(loss))
    return params, losses


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)
    step = sp.auto_shard(train_step, mesh={"data": 4, "model": 2}, planner=sp.Planner(hardware=HARDWARE.value), donate_argnums=(0, 1))

    plan = step.plan(*initial(), *draw(0))
    print(*(value for value in plan.inputs if not value.path.startswith("state")), sep="\n")
    print(plan.search)
    params, losses = train(step)
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    if STEPS.value >= 20 and not losses[-1] < losses[0]:
        raise SystemExit("the loss did not fall")

    unsharded, expected = train(jax.jit(train_step))
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    for got, want in zip(jax.tree.leaves(params), jax.tree.leaves(unsharded), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-3)
    print(f"inputs lie as {plan.input_shardings[2].spec}; parameters agree with the unsharded run")


if __name__ == "__main__":
    app.run(main)
