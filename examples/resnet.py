"""Trains a small Flax ResNet with BatchNorm and depthwise convolutions, data parallel on a (2,4) mesh.

One annotation: the batch is split over "data". The model axis stays unused, which is the case where a depthwise
convolution's weight gradient under plain `jax.jit` comes out too large by the size of that axis (XLA sums it over all
devices). The same steps run unsharded on one device at the end; losses, parameters and running statistics have to agree.

    python examples/resnet.py --steps=6
"""

from __future__ import annotations

import os

# See train_lm.py: too few worker threads and collectives over different groups of devices block each other.
os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.sharding import PartitionSpec as P

import shardy_py as sp

STEPS = flags.DEFINE_integer("steps", 6, "Training steps.", lower_bound=1)
BATCH = flags.DEFINE_integer("batch", 16, "Images per step.", lower_bound=2)
SIZE = flags.DEFINE_integer("size", 16, "Height and width of the images.", lower_bound=8)
CHANNELS = flags.DEFINE_integer("channels", 16, "Channels of the first stage.", lower_bound=4)

State = dict[str, Any]
Batch = dict[str, np.ndarray]


class Bottleneck(nn.Module):
    """Pointwise, depthwise and pointwise convolution beside a shortcut."""

    channels: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        def normalised(y: jax.Array) -> jax.Array:
            return nn.BatchNorm(use_running_average=not train, momentum=0.9)(y)

        strides = (self.stride, self.stride)
        y = nn.relu(normalised(nn.Conv(self.channels, (1, 1), use_bias=False, name="expand")(x)))
        y = nn.Conv(self.channels, (3, 3), strides, feature_group_count=self.channels, use_bias=False, name="depthwise")(y)
        y = nn.relu(normalised(y))
        y = normalised(nn.Conv(self.channels, (1, 1), use_bias=False, name="project")(y))
        if x.shape != y.shape:
            x = normalised(nn.Conv(self.channels, (1, 1), strides, use_bias=False, name="shortcut")(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Two stages, average pooling and a linear layer."""

    channels: int
    classes: int = 2

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.Conv(self.channels, (3, 3), use_bias=False, name="stem")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = Bottleneck(self.channels, 1, name="stage_0")(x, train)
        x = Bottleneck(2 * self.channels, 2, name="stage_1")(x, train)
        return nn.Dense(self.classes, name="head")(x.mean((1, 2)))


def draw(step: int, size: int, batch: int) -> Batch:
    """Discs (class 1) and squares (class 0) at random places, with noise."""
    random = np.random.default_rng(step)
    labels = random.integers(0, 2, batch)
    row, column = np.mgrid[:size, :size]
    images = random.normal(0, 0.3, (batch, size, size, 1)).astype(np.float32)
    for image, label, (i, j) in zip(images, labels, random.integers(size // 4, 3 * size // 4, (batch, 2)), strict=True):
        far = np.hypot(row - i, column - j) if label else np.maximum(abs(row - i), abs(column - j))
        image[..., 0] += far <= size / 5
    return {"images": images, "labels": labels.astype(np.int32)}


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)
    model = ResNet(CHANNELS.value)
    optimizer = optax.sgd(0.05, momentum=0.9)

    def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        def loss_of(params: Any) -> tuple[jax.Array, Any]:
            variables = {"params": params, "batch_stats": state["batch_stats"]}
            logits, updated = model.apply(variables, batch["images"], train=True, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean(), updated["batch_stats"]

        (loss, batch_stats), grads = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
        updates, momentum = optimizer.update(grads, state["momentum"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "momentum": momentum, "batch_stats": batch_stats}, loss

    def first_state() -> State:
        variables = model.init(jax.random.key(0), jnp.zeros((1, SIZE.value, SIZE.value, 1)), train=False)
        return {**variables, "momentum": optimizer.init(variables["params"])}

    # "batch" is one annotation for both of its leaves; the state is left to propagation.
    step = sp.auto_shard(train_step, mesh={"data": 2, "model": 4}, in_shardings=(None, P("data")), donate_argnums=0)

    def train(step_function: Any) -> tuple[State, list[float]]:
        state, losses = first_state(), []
        for i in range(STEPS.value):
            state, loss = step_function(state, draw(i, SIZE.value, BATCH.value))
            losses.append(float(loss))
        return state, losses

    plan = step.plan(jax.eval_shape(first_state), draw(0, SIZE.value, BATCH.value))
    print(repr(plan), *(f"  {value}" for value in plan.inputs if "@" in str(value)), "  and the rest replicated", sep="\n")
    state, losses = train(step)
    print("loss", " ".join(f"{loss:.4f}" for loss in losses))

    unsharded, expected = train(jax.jit(train_step, donate_argnums=0))
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    for (path, got), want in zip(jax.tree.leaves_with_path(state), jax.tree.leaves(unsharded), strict=True):
        floor = 1e-3 * max(np.abs(want).max(), 1e-3)
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=floor, err_msg=jax.tree_util.keystr(path))
    print(f"{len(jax.tree.leaves(state))} parameters, momenta and running statistics agree with the unsharded run")


if __name__ == "__main__":
    app.run(main)
