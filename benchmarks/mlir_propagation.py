"""Times `sdy-propagation-pipeline` on lowered training steps beside the C++ one inside jaxlib, in one process.

C++: the pipeline on the lowered module. Ours: `opt.pipelines.PropagationPipeline` on the `Program` read from the
same module. Lowering and reading are not counted on either side.

Both see a one-layer model first, so that imports are not counted, then models of widths neither has seen, so that
nothing remembered from one repetition answers the next. They take turns in going first.

    python benchmarks/mlir_propagation.py --layers=24
    python benchmarks/mlir_propagation.py --layers=48 --scanned
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

from shardy_py.opt.from_mlir import from_mlir
from shardy_py.opt.table import PropagationPipeline

LAYERS = flags.DEFINE_integer("layers", 24, "Depth of the model.", lower_bound=1)
REPEAT = flags.DEFINE_integer("repeat", 5, "Models timed.", lower_bound=1)
SCANNED = flags.DEFINE_bool("scanned", False, "One scan over stacked layers in place of a list of layers.")


def lowered(mesh: Mesh, width: int, layers: int) -> Any:
    """The module of a training step."""
    args, specs = gpt.arguments(layers, width, scanned=SCANNED.value)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P))
    return jax.jit(gpt.train_step, in_shardings=shardings).lower(*args).compiler_ir("stablehlo")


def ready(module: Any) -> dict[str, Callable[[], object]]:
    """Both pipelines, on one module."""
    program = from_mlir(module)

    def cpp() -> None:
        with module.context:
            passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)

    return {"C++": cpp, "ours": lambda: PropagationPipeline().run(program)}


def seconds(run: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    for run in ready(lowered(mesh, 128, 1)).values():
        run()
    ratios = []
    for i in range(REPEAT.value):
        width = 256 + 128 * i
        runs = ready(lowered(mesh, width, LAYERS.value))
        order = ["C++", "ours"] if i % 2 == 0 else ["ours", "C++"]
        took = {name: seconds(runs[name]) for name in order}
        ratios.append(took["ours"] / took["C++"])
        print(f"{LAYERS.value} layers, width {width}: ours {took['ours']:.3f} s, C++ {took['C++']:.3f} s, ratio {ratios[-1]:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    app.run(main)
