"""Trains a mixture of experts written with `flax.nnx`, the experts split over a mesh axis.

Three annotations: the tokens over "data", the experts' two weights over "expert". The module and the optimizer are
arguments that the step changes, as under `nnx.jit`; they are changed here too. Losses and parameters have to agree
with the unsharded run.

    python examples/moe.py --steps=20
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
import optax
from absl import app, flags
from flax import nnx
from jax.sharding import PartitionSpec as P

import shardy_py as sp

STEPS = flags.DEFINE_integer("steps", 20, "Training steps.", lower_bound=1)
TOKENS = flags.DEFINE_integer("tokens", 256, "Tokens per step.", lower_bound=8)
EXPERTS = flags.DEFINE_integer("experts", 8, "Experts; a multiple of four.", lower_bound=4)
WIDTH = flags.DEFINE_integer("width", 32, "Features of a token.", lower_bound=4)


class Experts(nnx.Module):
    """A router that sends each token to one expert, each expert taking a limited number of them."""

    def __init__(self, width: int, experts: int, rngs: nnx.Rngs) -> None:
        self.router = nnx.Linear(width, experts, use_bias=False, rngs=rngs)
        self.up = nnx.Param(jax.random.normal(rngs.params(), (experts, width, 2 * width)) / np.sqrt(width))
        self.down = nnx.Param(jax.random.normal(rngs.params(), (experts, 2 * width, width)) / np.sqrt(2 * width))

    def __call__(self, x: jax.Array) -> jax.Array:
        tokens, experts = x.shape[0], self.up.shape[0]
        capacity = 2 * tokens // experts
        weights = jax.nn.softmax(self.router(x))
        chosen = jax.nn.one_hot(weights.argmax(-1), experts)
        place = (jnp.cumsum(chosen, 0) - 1) * chosen
        # [token, expert, place in the expert's queue]; a token beyond the capacity is dropped.
        dispatch = chosen[..., None] * jax.nn.one_hot(place.astype(jnp.int32), capacity)
        queued = jnp.einsum("tec,tm->ecm", dispatch, x)
        hidden = jax.nn.gelu(jnp.einsum("ecm,emh->ech", queued, self.up[...]))
        answered = jnp.einsum("ech,ehm->ecm", hidden, self.down[...])
        return x + jnp.einsum("tec,te,ecm->tm", dispatch, weights, answered)


class Model(nnx.Module):
    """A layer of experts between two linear ones."""

    def __init__(self, width: int, experts: int, rngs: nnx.Rngs) -> None:
        self.enter = nnx.Linear(8, width, rngs=rngs)
        self.experts = Experts(width, experts, rngs)
        self.leave = nnx.Linear(width, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.leave(self.experts(self.enter(x)))[:, 0]


def train_step(model: Model, optimizer: nnx.Optimizer, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    def loss_of(model: Model) -> jax.Array:
        return jnp.mean((model(inputs) - targets) ** 2)

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def draw(step: int) -> tuple[np.ndarray, np.ndarray]:
    """A function with a different form in each octant, so that experts have something to specialise in."""
    inputs = np.random.default_rng(step).uniform(-1, 1, (TOKENS.value, 8)).astype(np.float32)
    octant = (inputs[:, :3] > 0) @ np.array([1, 2, 4])
    return inputs, np.sin(octant + 2 * inputs[:, 3]).astype(np.float32)


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)

    def make() -> tuple[Model, nnx.Optimizer]:
        model = Model(WIDTH.value, EXPERTS.value, nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

    step = sp.auto_shard(
        train_step,
        mesh={"data": 2, "expert": 4},
        in_shardings=(None, None, P("data"), P("data")),
        rules=[("experts/up", P("expert")), ("experts/down", P("expert"))],
    )

    def train(step_function: Any) -> tuple[Model, list[float]]:
        model, optimizer = make()
        return model, [float(step_function(model, optimizer, *draw(i))) for i in range(STEPS.value)]

    plan = step.plan(*make(), *draw(0))
    print(repr(plan), *(f"  {value}" for value in plan.inputs if "@" in str(value)), "  and the rest replicated", sep="\n")
    model, losses = train(step)
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    if STEPS.value >= 20 and not losses[-1] < losses[0]:
        raise SystemExit("the loss did not fall")

    unsharded, expected = train(nnx.jit(train_step))
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    pairs = zip(jax.tree.leaves(nnx.state(model)), jax.tree.leaves(nnx.state(unsharded)), strict=True)
    for got, want in pairs:
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-4)
    spec = model.experts.up[...].sharding.spec
    assert spec[:1] == ("expert",), f"the experts are not split: {spec}"
    print(f"experts' weights {spec}; parameters agree with the unsharded run")


if __name__ == "__main__":
    app.run(main)
