# %% [markdown]
# # A training step as a pipeline
#
# Where should a model be cut so that its stages take equally long? Which schedule leaves the fewest gaps, and what does
# each stage hold meanwhile? And does the pipeline compute what the step computes on one device?

# %%
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import jax.numpy as jnp

import shardy_py as sp


# %%
def loss(params, tokens):
    with jax.named_scope("embed"):
        x = params["table"][tokens[:, :-1]]

    def block(x, weights):
        return x + jnp.tanh(x @ weights["up"]) @ weights["down"], None

    x, _ = jax.lax.scan(block, x, params["blocks"])
    with jax.named_scope("head"):
        scores = x @ params["table"].T
        expected = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(scores, axis=-1) - expected)


def shapes(layers, width, vocabulary):
    block = {"up": (layers, width, 4 * width), "down": (layers, 4 * width, width)}
    return {"table": (vocabulary, width), "blocks": block}


def is_shape(value):
    return isinstance(value, tuple)


# %% [markdown]
# ## A profile
#
# Shapes are enough: 16 layers of width 4096, and a large embedding that is used again at the end. Every step of the loop
# over layers is a node of its own, with modelled times forward and backward, and bytes of what it hands on and of its
# parameters. `measured=True` would run every distinct piece once instead.

# %%
large = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16), shapes(16, 4096, 64_000), is_leaf=is_shape)
graph = sp.pipedream.profile(loss, large, jax.ShapeDtypeStruct((4, 2049), jnp.int32), hardware="h100")
for node in graph.nodes:
    print(f"{node.description:14} {node.forward_ms:7.3f} ms {node.backward_ms:7.3f} ms {node.parameter_bytes / 1e6:6.0f} MB")

# %% [markdown]
# ## Stages
#
# The head takes as long as several layers, so that equally many layers per stage would not do. PipeDream's optimizer
# answers on its own recurrence; the exact mode counts every tensor that crosses once, all transfers, and memory.

# %%
partition = sp.pipedream.partition(graph, machines=4, bandwidths=50e9, mode="exact", activation_compression=1, straight=True)
print(partition)

# %% [markdown]
# Without `straight`, stages may be replicated where that is faster, and machines may stand in servers: here 4 in each
# of 2, with a fast network inside and a slow one between.

# %%
print(sp.pipedream.partition(graph, machines=[4, 2], bandwidths=[300e9, 25e9], mode="exact", activation_compression=1))

# %% [markdown]
# Where memory does not suffice, one is told which stage is too big, and by how much.

# %%
try:
    sp.pipedream.partition(graph, machines=4, bandwidths=50e9, mode="exact", straight=True, memory_bytes=2e9)
except ValueError as error:
    print(error)

# %% [markdown]
# ## A schedule
#
# Every schedule can be run on paper with the times of these stages. A backward pass takes the time of both its parts,
# unless the schedule runs the gradients of parameters apart, which fills gaps.

# %%
stages = [[graph[id] for id in stage.nodes] for stage in partition.stages]
forward = [sum(node.forward_ms for node in nodes) for nodes in stages]
half = [sum(node.backward_ms for node in nodes) / 2 for nodes in stages]
costs = {"forward": forward, "backward": half, "weight": half, "transfer": partition.stages[0].bytes_out / 50e9 * 1e3}
for name in ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "auto"):
    schedule = sp.pipelines.schedule(name, 4, 8, **(costs if name == "auto" else {}))
    result = sp.pipelines.simulate(schedule, **costs)
    print(f"{name:10}  {result.makespan:6.1f} ms  bubble {result.bubble:5.1%}  in flight {result.in_flight}")

# %%
sp.pipelines.simulate(sp.pipelines.schedule("zb-h1", 4, 8), **costs)

# %% [markdown]
# ## A pipelined run
#
# The same function, small enough for this machine: 4 stages on 2 devices each, which share the examples. The step says
# nothing of stages. It is cut where they take equally long, each stage is compiled for its devices, and the embedding,
# used by the first and the last stage, gets the sum of both gradients.


# %%
def train_step(params, tokens):
    value, gradients = jax.value_and_grad(loss)(params, tokens)
    return jax.tree.map(lambda p, g: p - 0.3 * g, params, gradients), value


def parameters():
    leaves, tree = jax.tree.flatten(shapes(8, 32, 64), is_leaf=is_shape)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    return jax.tree.unflatten(tree, [0.1 * jax.random.normal(key, shape) for key, shape in zip(keys, leaves)])


pipelined = sp.pipeline(train_step, num_stages=4, num_microbatches=8, mesh={"stage": 4, "data": 2}, schedule="1f1b")
alone = jax.jit(train_step)
ours, theirs = parameters(), parameters()
for step in range(8):
    tokens = (jax.random.randint(jax.random.key(step), (32, 1), 0, 64) + 3 * jnp.arange(17)) % 64
    ours, pipelined_loss = pipelined(ours, tokens)
    theirs, loss_alone = alone(theirs, tokens)
    print(f"step {step}: pipelined {pipelined_loss:.4f}, on one device {loss_alone:.4f}")

# %%
apart = jax.tree.map(lambda a, b: float(abs(jax.device_get(a) - jax.device_get(b)).max()), ours, theirs)
print("parameters agree:", max(jax.tree.leaves(apart)) < 1e-5)
print("programs per stage:", pipelined.programs_per_stage)
print("in flight:", pipelined.statistics.in_flight, "as simulated:", sp.pipelines.simulate(pipelined.schedule).in_flight)

# %% [markdown]
# What each stage costs, here of the large model, of which no array is needed for that:

# %%
print(pipelined.report(large, jax.ShapeDtypeStruct((32, 2049), jnp.int32), hardware="h100"))

# %% [markdown]
# The stages found above can be run as they are: a partition of a profile of the loss says where to cut. In a training
# step, `sp.pipedream.marked(loss, partition)` is the loss with these stages marked.

# %%
partitioned = sp.pipeline(loss, partition=partition, num_microbatches=8)
print(partitioned.report(large, jax.ShapeDtypeStruct((32, 2049), jnp.int32)))
