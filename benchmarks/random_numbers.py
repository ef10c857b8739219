"""Compares steps that draw random numbers in regions with the same steps under `jax.jit`: temporary memory of a device, and time.

Both have the same shardings of arguments and results. Time is the median over blocks, in which both take turns; numbers are compared with
those of `jax.jit` on one device.

    python benchmarks/random_numbers.py
    python benchmarks/random_numbers.py --only=dropout --blocks=0
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp

ROWS = flags.DEFINE_integer("rows", 2048, "Rows of what is drawn, which are sharded over 8 devices.", lower_bound=8)
COLUMNS = flags.DEFINE_integer("columns", 2048, "Columns.", lower_bound=8)
ONLY = flags.DEFINE_string("only", "", "Take programs whose name has this in it.")
BLOCKS = flags.DEFINE_integer("blocks", 9, "Blocks in which calls are timed; 0 to compile only.", lower_bound=0)
CALLS = flags.DEFINE_integer("calls", 2, "Calls of a block.", lower_bound=1)

Program = tuple[Callable[..., Any], Any, Any, Any]
"""A function, its arguments, their shardings and those of results."""


def dropout(key: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


def programs(mesh: jax.sharding.Mesh, rows: int, columns: int) -> dict[str, Program]:
    key, raw = jax.random.key(0), jax.random.PRNGKey(0)
    shape = (rows, columns)
    x = jnp.linspace(-1, 1, rows * columns).reshape(shape)
    w = jnp.linspace(-1, 1, columns * 64).reshape(columns, 64)
    keys = jax.random.split(key, 16)
    cut = P("x")

    def draw(of: Callable[..., Any], key: Any = key, out: Any = cut) -> Program:
        return lambda k: of(k, shape), (key,), P(), out

    def scanned(k: Any) -> Any:
        def body(k: Any, _: None) -> Any:
            k, now = jax.random.split(k)
            return k, jax.random.normal(now, shape).sum(1)

        return jax.lax.scan(body, k, None, length=4)[1]

    def uneven(k: Any) -> jax.Array:
        return (jax.lax.with_sharding_constraint(jax.random.normal(k, (rows - 3, columns)), NamedSharding(mesh, P("x"))) ** 2).sum()

    def loss(w: jax.Array, x: jax.Array, k: Any) -> jax.Array:
        return (dropout(k, jnp.tanh(dropout(jax.random.fold_in(k, 1), x) @ w)) ** 2).mean()

    def layers(x: jax.Array, k: Any) -> jax.Array:
        body = jax.checkpoint(lambda x, k: (dropout(k, jnp.tanh(x)), None))
        return jax.grad(lambda x: (jax.lax.scan(body, x, jax.random.split(k, 4))[0] ** 2).sum())(x)

    def per_row(k: Any) -> jax.Array:
        return jax.vmap(lambda k: jax.random.normal(k, (columns,)))(jax.random.split(k, rows))

    return {
        "normal": draw(jax.random.normal),
        "normal, raw key": draw(jax.random.normal, raw),
        "normal, bfloat16": draw(lambda k, s: jax.random.normal(k, s, jnp.bfloat16)),
        "normal, uneven": (uneven, (key,), P(), P()),
        "normal, columns": draw(jax.random.normal, out=P(None, "x")),
        "truncated_normal": draw(lambda k, s: 0.02 * jax.random.truncated_normal(k, -2, 2, s)),
        "uniform": draw(jax.random.uniform),
        "bits": draw(jax.random.bits),
        "bits, 8": draw(lambda k, s: jax.random.bits(k, s, jnp.uint8)),
        "randint": draw(lambda k, s: jax.random.randint(k, s, 0, 1000)),
        "bernoulli": draw(lambda k, s: jax.random.bernoulli(k, 0.3, s)),
        "gumbel": draw(jax.random.gumbel),
        "exponential": draw(jax.random.exponential),
        "laplace": draw(jax.random.laplace),
        "gamma": (lambda k: jax.random.gamma(k, 2.0, (rows, columns // 64)), (key,), P(), cut),
        "permutation": (lambda k: jax.random.permutation(k, rows * columns // 16), (key,), P(), cut),
        "split": (lambda k: jax.random.key_data(jax.random.split(k, rows * columns // 16)), (key,), P(), cut),
        "dropout": (dropout, (key, x), (P(), cut), cut),
        "dropout, raw key": (dropout, (raw, x), (P(), cut), cut),
        "dropout, gradient": (jax.grad(loss), (w, x, key), (P(), cut, P()), P()),
        "dropout, layers": (layers, (x, key), (cut, P()), cut),
        "categorical": (lambda k, x: jax.random.categorical(k, x), (key, x), (P(), cut), cut),
        "categorical, vocabulary": (lambda k, x: jax.random.categorical(k, x), (key, x), (P(), P(None, "x")), P()),
        "scan": (scanned, (key,), P(), P(None, "x")),
        "vmap": (jax.vmap(lambda k: jax.random.normal(k, (rows // 16, columns))), (keys,), P(), P(None, "x")),
        "vmap, keys cut": (jax.vmap(lambda k: jax.random.normal(k, (rows // 16, columns))), (keys,), cut, cut),
        "vmap, a key a row": (per_row, (key,), P(), cut),
        "vmap, a key a row, columns": (per_row, (key,), P(), P(None, "x")),
    }


def equal(a: Any, b: Any) -> bool:
    return np.allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-5, atol=1e-6)


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    def named(specs: Any) -> Any:
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P))

    print(f"{'program':28s} {'jit KiB':>9s} {'temporaries':>11s} {'time':>6s}  numbers")
    for name, (fun, arguments, cut, out) in programs(mesh, ROWS.value, COLUMNS.value).items():
        if ONLY.value not in name:
            continue
        step = sp.auto_shard(fun, mesh=mesh, in_shardings=cut, out_shardings=out, lowering="shard_map")
        plain = jax.jit(fun, in_shardings=named(cut), out_shardings=named(out))
        placed = jax.device_put(arguments, named(cut))
        compiled = {"jit": plain.lower(*arguments).compile(), "ours": step.lower(*arguments).compile()}
        memory = {way: one.memory_analysis().temp_size_in_bytes for way, one in compiled.items()}
        results = {way: call(*placed) for way, call in (("jit", jax.jit(fun)), ("ours", step))}
        same = all(jax.tree.leaves(jax.tree.map(equal, *results.values())))
        calls: dict[str, Callable[..., Any]] = {"jit": plain, "ours": step}
        times: dict[str, list[float]] = {way: [] for way in calls}
        for block in range(BLOCKS.value + 1):
            for way, call in calls.items() if block % 2 else reversed(calls.items()):
                start = time.perf_counter()
                for _ in range(CALLS.value):
                    jax.block_until_ready(call(*placed))
                times[way] += [time.perf_counter() - start] * (block > 0)
        medians = {way: statistics.median(taken) if taken else float("nan") for way, taken in times.items()}
        print(
            f"{name:28s} {memory['jit'] / 1024:9.0f} {memory['ours'] / max(memory['jit'], 1):11.2f} "
            f"{medians['ours'] / medians['jit']:6.2f}  {'equal' if same else 'OTHER'}",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
