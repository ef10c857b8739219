"""Fits the rates of memory and kernels that the compiler of a TPU assumes, by its estimates for 88 small programs, and writes their table.

Nothing runs, and no TPU is needed: `pip install "shardy_py[tpu]"` brings the compiler. A program's kernels, bytes and packed elements are
those that `plan.cost_analysis` counts; the fit minimizes the squares of the relative errors of programs without products.

    python benchmarks/rates.py --chips=v5e,v5p,v6e --write
"""

from __future__ import annotations

import os

os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")

import datetime
import importlib.metadata
import importlib.util
import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from jax import lax
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.cost import hardware_table
from shardy_py.cost.compute import roofline_seconds
from shardy_py.cost.hardware import Calibration
from shardy_py.plan.cost_walk import BlockCosts, Run
from shardy_py.plan.executed import executed

CHIPS = flags.DEFINE_list("chips", ["v5e", "v5p", "v6e"], "Chips, as JAX names their slices.")
WRITE = flags.DEFINE_bool("write", False, "Write the table into the library.")

SLICES = {"v5e": "v5e:2x4", "v5p": "v5p:2x2x1", "v6e": "v6e:2x4"}
CLOCKS = {"v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9}
TABLE = pathlib.Path(hardware_table.__file__).with_name("calibrated.json")
Case = tuple[str, Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]


def programs() -> Iterator[Case]:
    """Names, functions and shapes: elementwise ops alone and fused, casts, functions, reductions, moves, updates, products, by types."""
    index = jax.ShapeDtypeStruct((), jnp.int32)
    for dtype in ("bfloat16", "float32"):
        other = "float32" if dtype == "bfloat16" else "bfloat16"
        for rows in (4096, 512):
            x, stack = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((rows, 4096), (4, rows, 4096)))
            row = jax.ShapeDtypeStruct((4096,), dtype)
            for name, fun, args in (
                ("add", lambda x, y: x + y, (x, x)),
                ("update", lambda p, g: p - jnp.asarray(0.1, p.dtype) * g, (x, x)),
                ("four operands", lambda a, b, c, d: a * b + c * d, (x,) * 4),
                ("two results", lambda a, b: (a * 2 + b, a * b + 1), (x, x)),
                ("exp", lambda x: jnp.exp(x * 2), (x,)),
                ("exp alone", jnp.exp, (x,)),
                ("tanh, log, rsqrt", lambda x: lax.rsqrt(jnp.log(jnp.tanh(x)) + 2), (x,)),
                ("gelu", jax.nn.gelu, (x,)),
                ("cast", lambda x, other=other: (x * 2).astype(other), (x,)),
                ("cast alone", lambda x, other=other: x.astype(other), (x,)),
                ("select", lambda x: jnp.where(x > 0, x, x * 2), (x,)),
                ("zeros", lambda x=x: jnp.zeros(x.shape, x.dtype), ()),
                ("broadcast", lambda r, x=x: jnp.broadcast_to(r, x.shape) * 2, (row,)),
                ("sum of rows", lambda x: (x * x).sum(-1), (x,)),
                ("sum of columns", lambda x: (x * 2 + 1).sum(0), (x,)),
                ("maximum alone", lambda x: x.max(-1), (x,)),
                ("norm", lambda x: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1), (x,)),
                ("slice of a stack", lambda s, i: lax.dynamic_index_in_dim(s, i, 0, False) * 2, (stack, index)),
                ("transpose", lambda x: x.reshape(8, -1, 4096).swapaxes(0, 1), (x,)),
            ):
                yield f"{name}, {dtype}, {rows} rows", fun, args
        small = jax.ShapeDtypeStruct((8, 128), dtype)
        yield f"small, {dtype}", lambda x: x * 2 + 1, (small,)
        for m, k, n in ((4096, 4096, 4096), (8192, 1024, 4096), (8192, 1024, 1024), (2048, 512, 2048), (2048, 128, 2048)):
            sides = jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype)
            yield f"product {m} x {k} x {n}, {dtype}", lambda a, b: a @ b, sides


class Estimate(NamedTuple):
    """What the compiler estimates of a program, and the ops that a plan of it has."""

    name: str
    seconds: float
    runs: list[Run]

    @property
    def has_products(self) -> bool:
        return any(run.work.matrix for run in self.runs)


def estimates(chip: str) -> Iterator[Estimate]:
    device = topologies.get_topology_desc(SLICES[chip], platform="tpu").devices[0]
    one = NamedSharding(Mesh(np.array([device]), ("one",)), P())
    mesh = jax.make_mesh((1,), ("one",), axis_types=(jax.sharding.AxisType.Auto,))
    for name, fun, args in programs():
        compiled: Any = jax.jit(fun, in_shardings=one, out_shardings=one).lower(*args).compile()
        cycles = sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', compiled.as_text())))
        program = executed(sp.auto_shard(fun, mesh=mesh).plan(*args))
        yield Estimate(name, cycles / CLOCKS[chip], BlockCosts(program.block, program.meshes).runs)


def fitted(chip: str, measured: list[Estimate]) -> dict[str, Any]:
    rows = [estimate for estimate in measured if not estimate.has_products]
    features = np.array([[sum(run.accessed[i] for run in estimate.runs) for i in range(3)] for estimate in rows])
    target = np.array([estimate.seconds for estimate in rows])
    scale = features.max(0)
    rates = np.linalg.lstsq(features / scale / target[:, None], np.ones(len(rows)), rcond=None)[0] / scale
    moved, packed, kernel = rates
    figures = {"bandwidth": float(f"{1 / moved:.3g}"), "pack_seconds": float(f"{packed:.3g}"), "kernel_seconds": float(f"{kernel:.3g}")}
    hardware = hardware_table.hardware(chip).with_figures(calibration=Calibration(**figures))
    errors = {
        estimate.name: round(sum(roofline_seconds(run.work, run.accessed, hardware) for run in estimate.runs) / estimate.seconds - 1, 2)
        for estimate in measured
    }
    near = sum(abs(error) <= 0.15 for error in errors.values())
    compiler = f"libtpu {importlib.metadata.version('libtpu')}"
    source = f"{compiler}, {datetime.date.today()}: {near} of {len(errors)} programs within 15 %"
    print(chip, figures, source, flush=True)
    for name, error in sorted(errors.items(), key=lambda pair: -abs(pair[1]))[:12]:
        print(f"    {name}: {error:+.0%}")
    return {"rates": figures, "sources": source, "errors": errors}


def main(_: list[str]) -> None:
    if importlib.util.find_spec("libtpu") is None:
        print('skipped: the compiler for TPUs is not installed; pip install "shardy_py[tpu]" brings it')
        return
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    for chip in CHIPS.value:
        for name, entry in fitted(chip, list(estimates(chip))).items():
            table[name][chip] = entry
    if WRITE.value:
        TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    app.run(main)
