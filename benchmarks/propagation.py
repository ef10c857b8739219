"""Times planning of a training step beside the C++ Shardy passes inside jaxlib, in one process.

C++: `sdy-propagation-pipeline` on the lowered module; lowering is not counted.
Ours: `.trace(...).plan()`; tracing to a jaxpr is not counted, building the graph, propagating and exporting are.

Both see a one-layer model first, so that imports are not counted, then models of widths neither has seen, so that
nothing remembered from one repetition answers the next. They take turns in going first.

    python benchmarks/propagation.py --layers=24
    python benchmarks/propagation.py --layers=48 --scanned
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import gpt
import jax
from absl import app, flags
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import passmanager

import shardy_py as sp

LAYERS = flags.DEFINE_integer("layers", 24, "Depth of the model.", lower_bound=1)
REPEAT = flags.DEFINE_integer("repeat", 5, "Models timed.", lower_bound=1)
SCANNED = flags.DEFINE_bool("scanned", False, "One scan over stacked layers in place of a list of layers.")


def bound(mesh: Mesh, specs: Any) -> Any:
    """The specs as shardings on the mesh; None stays."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P))


def ready_cpp(mesh: Mesh, args: Any, specs: Any) -> Callable[[], object]:
    module = jax.jit(gpt.train_step, in_shardings=bound(mesh, specs)).lower(*args).compiler_ir("stablehlo")

    def run() -> None:
        with module.context:
            passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)

    return run


def ready_ours(mesh: Mesh, args: Any, specs: Any) -> Callable[[], object]:
    return sp.auto_shard(gpt.train_step, mesh=mesh, in_shardings=bound(mesh, specs)).trace(*args).plan


def seconds(run: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    for ready in (ready_cpp, ready_ours):
        ready(mesh, *gpt.arguments(1, 128, scanned=SCANNED.value))()
    ratios = []
    for i in range(REPEAT.value):
        args, specs = gpt.arguments(LAYERS.value, 256 + 128 * i, scanned=SCANNED.value)
        runs = {"C++": ready_cpp(mesh, args, specs), "ours": ready_ours(mesh, args, specs)}
        order = ["C++", "ours"] if i % 2 == 0 else ["ours", "C++"]
        took = {name: seconds(runs[name]) for name in order}
        ratios.append(took["ours"] / took["C++"])
        print(f"{LAYERS.value} layers, width {256 + 128 * i}: ours {took['ours']:.3f} s, C++ {took['C++']:.3f} s, ratio {ratios[-1]:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    app.run(main)
