# %% [markdown]
# # Two plans
#
# What does a change of one annotation do? Did an edit change how anything lies? A plan can be compared with another,
# saved, read again, and pinned in a test.

# %%
import jax

jax.config.update("jax_platforms", "cpu")

import os
import pathlib
import tempfile

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp

os.chdir(tempfile.mkdtemp())  # files that are written here are not kept


# %%
def forward(params, x):
    with jax.named_scope("mlp"):
        hidden = jax.nn.relu(x @ params["up"])
        return hidden @ params["down"]


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


mesh = {"data": 2, "model": 4}
shapes = {"up": f32(512, 2048), "down": f32(2048, 512)}, f32(64, 512)
by_column = sp.auto_shard(forward, mesh=mesh, in_shardings=({"up": P(None, "model"), "down": None}, P("data")))
by_row = sp.auto_shard(forward, mesh=mesh, in_shardings=({"up": P("model", None), "down": None}, P("data")))
before, after = by_column.plan(*shapes), by_row.plan(*shapes)

# %% [markdown]
# ## What changed
#
# Values are found again by path and by what the program does around them, so that the comparison survives edits that
# move lines.

# %%
before.diff(after)

# %% [markdown]
# A plan without differences is false in a condition:

# %%
bool(before.diff(by_column.plan(*shapes)))

# %% [markdown]
# ## Beside each other
#
# The page of two plans has both, with what differs marked.

# %%
before.save_html("two.html", after, hardware="h100")
print(pathlib.Path("two.html").stat().st_size // 1024 > 50)

# %% [markdown]
# ## Save one, pin it
#
# A saved plan is JSON with a version. Reading it runs no code and needs no devices; it answers as the plan did that
# was saved.

# %%
before.save("mlp.plan.json")
again = sp.Plan.load("mlp.plan.json")
print(again)

# %%
again.explain("params['down']")

# %% [markdown]
# A file can also pin what must not change without being seen. It has one line per input, output, kind of reshard and
# collective, so that it reads well in a review; `update=True` writes it.

# %%
from shardy_py.testing import assert_plan_matches, assert_sharding

assert_sharding(before, "params['down']", P("model"))
assert_plan_matches(before, "mlp.json", update=True)
assert_plan_matches(before, "mlp.json")
try:
    assert_plan_matches(after, "mlp.json")
except AssertionError as error:
    print(error)
