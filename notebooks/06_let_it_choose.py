# %% [markdown]
# # Let it choose
#
# A training step without one annotation: the planner chooses how everything is sharded, by what a step costs on the
# hardware that it is told of, within its memory. It says how far from the best possible its plan is, and what other
# ways to shard would have cost.

# %%
import jax

jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp

LAYERS, WIDTH, HIDDEN, TOKENS = 8, 2048, 8192, 16384


# %%
def loss(params, x):
    def block(x, w):
        with jax.named_scope("mlp"):
            return x + jax.nn.relu(x @ w["up"]) @ w["down"], None

    x, _ = jax.lax.scan(jax.checkpoint(block), x, params)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def train_step(params, momentum, x):
    grads = jax.grad(loss)(params, x)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum), momentum


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


params = {"up": bf16(LAYERS, WIDTH, HIDDEN), "down": bf16(LAYERS, HIDDEN, WIDTH)}
arguments = params, params, bf16(TOKENS, WIDTH)
mesh = {"data": 4, "model": 4}


def planned(mesh=mesh, **options):
    planner = sp.Planner(**{"hardware": "v5e", "time_limit_s": 60} | options)
    return sp.auto_shard(train_step, mesh=mesh, planner=planner, donate_argnums=(0, 1)).plan(*arguments)


plan = planned()
plan

# %% [markdown]
# ## What else there was
#
# The templates that experts write by hand, with their prices: as many as there was time to finish, none of them cheaper.
# `plan.search.alternatives[i].plan()` is a plan like any other; `print(plan.search)` lists them.

# %%
search = plan.search
print(search.headline)
print("none is cheaper:", all(alternative.objective_seconds >= search.objective_seconds for alternative in search.alternatives))

# %% [markdown]
# ## Why is this value sharded so?

# %%
plan.explain("momentum['up']", axis="model")

# %% [markdown]
# ## What would another choice cost?
#
# The search goes on from where it ended, with that input pinned.

# %%
for spec in (P(), P(None, None, "model"), P(None, "data", "model")):
    print(search.price("momentum['up']", spec))

# %% [markdown]
# ## Less memory
#
# A budget is part of the search: the plan changes until its peak fits.

# %%
tight = planned(memory_bytes=search.peak_bytes * 0.8)
print(f"{tight.search.peak_bytes / search.peak_bytes:.0%} of the peak")
print(f"{tight.search.objective_seconds / search.objective_seconds:.2f} x the step")

# %% [markdown]
# ## Other hardware
#
# A diff of two plans tells both searches.

# %%
difference = plan.diff(planned(hardware="h100")).as_text()
print(*difference.splitlines()[:9], sep="\n")

# %% [markdown]
# ## The shape of the mesh
#
# With a number of devices in place of a mesh its shape is searched too.

# %%
print(dict(planned(mesh=16).mesh.shape))

# %% [markdown]
# ## As code
#
# What was chosen, to paste into the program, which then runs under plain `jax.jit`.

# %%
print(plan.as_code())
