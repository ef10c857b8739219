# %% [markdown]
# # Memory and cost of a step on machines that are not there
#
# How much memory does a training step take, where is its peak, what is sent over which links, and how long will a
# step take? A plan says so for any mesh and any hardware in the table, from shapes alone.

# %%
import jax

jax.config.update("jax_platforms", "cpu")

import functools

import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import shardy_py as sp

LAYERS, WIDTH, HIDDEN, BATCH, LENGTH, VOCABULARY = 16, 4096, 16384, 256, 2048, 32000


# %%
def block(x, weights, activations=None):
    if activations is not None:
        x = sp.with_sharding_constraint(x, activations)
    with jax.named_scope("attention"):
        query, key, value = jnp.einsum("btd,cdhk->cbthk", x, weights["qkv"])
        scores = jnp.einsum("bthk,bshk->bhts", query, key) * 128**-0.5
        mixed = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores), value)
        x = x + jnp.einsum("bthk,hkd->btd", mixed, weights["mix"])
    with jax.named_scope("mlp"):
        return x + jax.nn.relu(x @ weights["up"]) @ weights["down"]


def loss(params, tokens, activations):
    x = params["table"][tokens[:, :-1]]
    body = jax.checkpoint(functools.partial(block, activations=activations))
    x, _ = jax.lax.scan(lambda x, weights: (body(x, weights), None), x, params["blocks"])
    with jax.named_scope("head"):
        logits = (x @ params["head"]).astype(jnp.float32)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1))


def train_step(params, momentum, tokens, activations=None):
    grads = jax.grad(loss)(params, tokens, activations)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum), momentum


# %% [markdown]
# 256 chips in two axes: parameters are cut over both (`fsdp` and `model`), the batch over `fsdp`.

# %%
mesh = AbstractMesh((64, 4), ("fsdp", "model"))
blocks = {
    "qkv": P(None, None, "fsdp", "model", None),
    "mix": P(None, "model", None, "fsdp"),
    "up": P(None, "fsdp", "model"),
    "down": P(None, "model", "fsdp"),
}
specs = {"table": P("model", "fsdp"), "blocks": blocks, "head": P("fsdp", "model")}


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


heads = WIDTH // 128
params = {
    "table": bf16(VOCABULARY, WIDTH),
    "blocks": {
        "qkv": bf16(LAYERS, 3, WIDTH, heads, 128),
        "mix": bf16(LAYERS, heads, 128, WIDTH),
        "up": bf16(LAYERS, WIDTH, HIDDEN),
        "down": bf16(LAYERS, HIDDEN, WIDTH),
    },
    "head": bf16(WIDTH, VOCABULARY),
}
tokens = jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32)
arguments = params, params, jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32)


def planned(mesh, activations=None):
    function = functools.partial(train_step, activations=activations)
    return sp.auto_shard(function, mesh=mesh, in_shardings=(specs, specs, P("fsdp")), donate_argnums=(0, 1)).plan(*arguments)


plan = planned(mesh)

# %% [markdown]
# ## Where does the time go?
#
# Operations by a roofline, collectives by the links that their axes lie on. The time of a step is a range: between
# everything overlapped that may be, and nothing.

# %%
cost = plan.cost_analysis("v5p")
print(f"{cost.step_seconds}, {cost.communicated_bytes / 1e9:.0f} GB sent to each device")
for share in cost.by_axis:
    print(f"  over {share.name}: {share.communicated_bytes / 1e9:.0f} GB")

# %% [markdown]
# Far too much over `fsdp`, which should carry weights only. The largest reshards say what it is:

# %%
for reshard in sorted(plan.shardy_reshards, key=lambda r: -r.total_bytes_per_device)[:4]:
    print(reshard)

# %% [markdown]
# Sums of *activations* over `fsdp`: their last dimension is cut by it, not their batch. Why?

# %%
plan.explain("attention", axis="fsdp")

# %% [markdown]
# The weights have `fsdp` on the dimension that they share with the activations, and pass it on. Say where the
# activations lie, once, in the body of the loop:

# %%
better = planned(mesh, P("fsdp", None, None))
print(plan.diff(better).as_text(limit=8))

# %%
better.cost_analysis("v5p")

# %% [markdown]
# ## Memory
#
# From the liveness of every value, with what XLA fuses, reuses and needs besides. The names are those of
# `jax.stages.Compiled.memory_analysis()`.

# %%
memory = better.memory_analysis("v5p")
memory

# %%
print(memory.fits, memory.peak.primitive, memory.peak.location)

# %% [markdown]
# The same on other hardware:

# %%
for name in ("v5e", "h100", "h200"):
    cost, memory = better.cost_analysis(name), better.memory_analysis(name)
    print(f"{name:5} {cost.step_seconds!s:24} {'fits' if memory.fits else 'does not fit'}")

# %% [markdown]
# ## What if
#
# Plans are quick to make, so that layouts can be compared: more of the 256 chips for `model`, fewer for `fsdp`.

# %%
for model in (1, 2, 4, 8, 16):
    tried = planned(AbstractMesh((256 // model, model), ("fsdp", "model")), P("fsdp", None, None))
    cost, memory = tried.cost_analysis("v5p"), tried.memory_analysis("v5p")
    peak = memory.peak_memory_in_bytes / 2**30
    print(f"model={model:2}  {cost.communicated_bytes / 1e9:6.1f} GB sent  peak {peak:6.2f} GiB  {cost.step_seconds}")

# %% [markdown]
# ## The timeline
#
# `save_perfetto` writes it for [ui.perfetto.dev](https://ui.perfetto.dev): ops on one track, collectives on one per
# set of mesh axes, live memory as a counter.

# %%
import json
import pathlib
import tempfile

trace = pathlib.Path(tempfile.mkdtemp()) / "timeline.json"
better.save_perfetto(trace, hardware="v5p")
events = json.loads(trace.read_text())["traceEvents"]
print([event["args"]["name"] for event in events if event["name"] == "thread_name"])
