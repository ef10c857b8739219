# %% [markdown]
# # A first plan
#
# Annotate two or three arrays of a JAX function; shardy_py works out the rest, shows it, and runs it. Nothing here
# needs more than a CPU: a plan is made from shapes, and the run at the end uses eight devices that JAX makes of one
# CPU.

# %%
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp

# %% [markdown]
# ## A model and one step of its training
#
# Two layers of an MLP. `jax.named_scope` names them, as modules of Flax are named by themselves; the plan uses the
# names.


# %%
def forward(params, x):
    for name, layer in params.items():
        with jax.named_scope(name):
            x = x + jax.nn.relu(x @ layer["up"]) @ layer["down"]
    return x


def loss(params, batch):
    return jnp.mean((forward(params, batch["x"]) - batch["y"]) ** 2)


@sp.auto_shard(
    mesh={"data": 2, "model": 4},
    in_shardings=({name: {"up": P(None, "model"), "down": None} for name in ("first", "second")}, P("data")),
    donate_argnums=0,
)
def step(params, batch):
    value, grads = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


# %% [markdown]
# ## The plan
#
# Three things were said: how `up` of each layer lies (`down` is `None`, so propagation decides), and that the batch
# is cut over `data`. Shapes are enough to plan for.


# %%
def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


layer = {"up": f32(512, 2048), "down": f32(2048, 512)}
shapes = {"first": layer, "second": layer}, {"x": f32(64, 512), "y": f32(64, 512)}
plan = step.plan(*shapes)
plan

# %% [markdown]
# As text it has every value, by path or by module and source line:

# %%
print(plan)

# %% [markdown]
# `input_shardings` and `output_shardings` are pytrees of `NamedSharding`, for `jax.device_put`, a checkpoint or
# `jax.jit`.

# %%
plan.input_shardings[0]["first"]["down"].spec

# %% [markdown]
# ## Why, and where data moves

# %%
plan.explain("params['first']['down']")

# %%
print(*plan.shardy_reshards, sep="\n")

# %% [markdown]
# ## Run it
#
# Arrays that are not placed yet are placed as planned, and `params` is donated: the new parameters take the memory of
# the old ones.

# %%
params = jax.tree.map(lambda s: jnp.full(s.shape, 0.01, s.dtype), shapes[0])
batch = {"x": jnp.ones((64, 512)), "y": jnp.zeros((64, 512))}
params, before = step(params, batch)
params, after = step(params, batch)
print(params["first"]["down"].sharding.spec, bool(after < before))

# %% [markdown]
# ## The page
#
# `save_html` writes one file with all of it: a tree to search, for each value the part that every device holds, why,
# and where it moves; charts. It loads nothing from anywhere, so it can be mailed or kept beside a run. `plan.show()` puts
# the same page into a cell.

# %%
import pathlib
import tempfile

page = pathlib.Path(tempfile.mkdtemp()) / "plan.html"
plan.save_html(page)
print(page.name, page.stat().st_size // 1024 > 50)
