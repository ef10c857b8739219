# %% [markdown]
# # Why this sharding: seven questions, one call each
#
# The questions are those that users ask again and again in the issue trackers of JAX, Flax, MaxText, Optax and
# others. All of them are asked of one training step, with a few mistakes in it that are easily made.

# %%
import jax

jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp

VOCABULARY, WIDTH, HIDDEN, BATCH, LENGTH = 32000, 2048, 8192, 64, 512


# %%
def attention(weights, x):
    with jax.named_scope("attention"):
        query, key, value = jnp.einsum("btd,cdhk->cbthk", x, weights["qkv"])
        scores = jnp.einsum("bthk,bshk->bhts", query, key)
        mixed = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), value)
        return jnp.einsum("bthk,hkd->btd", mixed, weights["mix"])


def mlp(weights, x):
    with jax.named_scope("mlp"):
        hidden = jax.nn.relu(x @ weights["up"])
        return hidden @ weights["down"]


def loss(params, batch):
    x = params["table"][batch["tokens"]]
    x = x + attention(params["attention"], x)
    x = sp.with_sharding_constraint(x, P("data", None, None))
    x = sp.with_sharding_constraint(x, P(None, "model", None))
    x = x + mlp(params["mlp"], x)
    logits = x @ params["head"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][..., None], -1))


def train_step(params, opt, batch):
    grads = jax.grad(loss)(params, batch)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, opt["mu"], grads)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, params, mu)
    return params, {"mu": mu, "count": opt["count"] + 1}


specs = {
    "table": None,
    "attention": {"qkv": P(None, None, "model"), "mix": P("model")},
    "mlp": {"up": P(None, "model"), "down": P("model")},
    "head": P(None, "model"),
}
moments = {**specs, "head": P()}
step = sp.auto_shard(
    train_step,
    mesh={"data": 8, "model": 4},
    in_shardings=(specs, {"mu": moments, "count": None}, P("data")),
    donate_argnums=(0, 1),
)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


heads = WIDTH // 128
shapes = {
    "table": f32(VOCABULARY, WIDTH),
    "attention": {"qkv": f32(3, WIDTH, heads, 128), "mix": f32(heads, 128, WIDTH)},
    "mlp": {"up": f32(WIDTH, HIDDEN), "down": f32(HIDDEN, WIDTH)},
    "head": f32(WIDTH, VOCABULARY),
}
tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
plan = step.plan(shapes, {"mu": shapes, "count": jax.ShapeDtypeStruct((), jnp.int32)}, {"tokens": tokens, "labels": tokens})

# %% [markdown]
# ## 1. "Show me every sharding, intermediates too, before I run"
#
# 32 devices are planned for, and none is needed. `where=` takes a path, a module, a primitive or `file:line`.

# %%
print(plan.as_text(where="mlp"))

# %% [markdown]
# ## 2. "Tell me when something is silently replicated"
#
# `plan.check()` returns all findings, `plan.check(strict=True)` raises for them. Here those of one kind: nobody said
# how the table lies.

# %%
print(plan.as_text(where="replicated-large"))

# %% [markdown]
# ## 3. "Involuntary full rematerialization: where is it, and what fixes it?"
#
# The two constraints in `loss` are from two places: one cuts the batch over `data`, the next the sequence over
# `model`, and its `None` says that the batch is not to be cut. XLA's warning names no line; this one does, with the
# bytes and a fix.

# %%
print(plan.as_text(where="costly-reshard"))

# %% [markdown]
# ## 4. "Why did this tensor get this sharding?"
#
# A path, `file:line`, a module or a variable's name, back to the annotations that decided.

# %%
plan.explain("hidden", axis="model")

# %% [markdown]
# And why an axis did *not* arrive:

# %%
plan.explain("params['table']", axis="model")

# %% [markdown]
# ## 7. "Does it fit, before I book the hardware?"

# %%
plan.memory_analysis("v5e")

# %% [markdown]
# ## 8. "Is the optimizer's state sharded like the parameters?"
#
# One moment was given as replicated, its parameter is cut over `model`.

# %%
print(plan.as_text(where="state-unlike-parameter"))

# %% [markdown]
# ## 12. "Which buffers are donated, and why is one not?"
#
# Every donated array, and the result that takes its memory. That moment again: as its update lies otherwise, its
# memory cannot be reused.

# %%
print(*plan.donation, sep="\n")
