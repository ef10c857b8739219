"""Prices of layouts: how many a second, of all kinds of ops of a training step with all their strategies.

The step is that of `gpt.py`, scanned. A strategy gives each dimension of a value none, one or all of the mesh axes, whichever divide it.
Products, convolutions, reductions, gathers and scatters have every combination of the strategies of their operands and results; the
operands and results of all other ops have one factor cut in one way, as a planner that joins their dimensions asks for them.

    python benchmarks/engine.py
    python benchmarks/engine.py --mesh=4,8,4
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import app, flags

if TYPE_CHECKING:
    from shardy_py.cost.traffic import Access
    from shardy_py.dialect import AxisRef, Mesh
    from shardy_py.partition.layouts import Layout
    from shardy_py.partition.op import OpSpec

LAYERS = flags.DEFINE_integer("layers", 48, "Layers of the model.")
WIDTH = flags.DEFINE_integer("width", 4096, "Width of the model.")
MESH = flags.DEFINE_list("mesh", ["16", "16"], "Sizes of the mesh axes.")
HARDWARE = flags.DEFINE_string("hardware", "v5e", "Whose prices.")

Axes = tuple["AxisRef", ...]
Memory = tuple["Access", ...]

APART = frozenset(f"stablehlo.{name}" for name in "convolution dot dot_general gather reduce scatter".split())
"""Ops whose operands and results are cut independently of each other."""


def kinds() -> list[tuple[OpSpec, Memory]]:
    """The distinct ops of a training step."""
    import gpt

    import shardy_py as sp
    from shardy_py.cost.traffic import Fusion
    from shardy_py.partition.op import spec_of

    args, _ = gpt.arguments(LAYERS.value, WIDTH.value, scanned=True, batch=256, length=2048)
    program = sp.auto_shard(gpt.train_step, mesh={"data": 2, "model": 4}, lowering="jit").plan(*args).program
    fusion = Fusion(program.main.body)
    ops = (op for op in program.walk() if not op.regions and op.operands and op.results)
    return list(dict.fromkeys((spec_of(op), fusion.accesses(op)) for op in ops))


def assignments(places: int, mesh: Mesh) -> Iterator[list[Axes]]:
    """Ways to put every axis of a mesh at one of several places, or at none."""
    from shardy_py.dialect import AxisRef
    from shardy_py.partition.layouts import parts

    axes = [parts(AxisRef(axis.name), mesh) for axis in mesh.axes]
    for chosen in itertools.product(range(places + 1), repeat=len(axes)):
        yield [tuple(part for at, whole in zip(chosen, axes) if at == place for part in whole) for place in range(places)]


def layouts(shape: Sequence[int], mesh: Mesh) -> list[Layout]:
    """The strategies of a value."""
    from shardy_py.dialect.axis import num_shards

    ways = (tuple(way) for way in assignments(len(shape), mesh))
    return [way for way in ways if all(n % num_shards(dim, mesh) == 0 for n, dim in zip(shape, way))]


def candidates(op: OpSpec, mesh: Mesh) -> tuple[list[list[Layout]], np.ndarray]:
    """All joint strategies of an op."""
    from shardy_py.dialect.axis import num_shards
    from shardy_py.partition.layouts import from_factors

    if op.rule is None or op.name in APART:
        domains = [layouts(type_.shape, mesh) for type_ in op.types]
        count = math.prod(map(len, domains))
        index = list(np.indices([len(domain) for domain in domains]).reshape(len(domains), count))
    else:
        sizes = op.rule.factor_sizes
        ways = [w for w in assignments(len(sizes), mesh) if all(n % num_shards(a, mesh) == 0 for n, a in zip(sizes, w))]
        joint = [[from_factors(mapping, way, sizes, mesh) for way in ways] for mapping in op.rule.mappings]
        domains = [list(dict.fromkeys(column)) for column in joint]
        count = len(ways)
        index = [np.array([domain.index(layout) for layout in column]) for domain, column in zip(domains, joint)]
    return domains, np.array(index).reshape(len(index), count)


def main(argv: list[str]) -> None:
    """Prints a figure per line."""
    del argv
    from shardy_py.cost.hardware_table import hardware
    from shardy_py.dialect import Mesh
    from shardy_py.partition.price import Machine
    from shardy_py.partition.tables import price_table

    mesh = Mesh([(f"axis{i}", int(size)) for i, size in enumerate(MESH.value)])
    machine = Machine(mesh, hardware(HARDWARE.value))
    ops = kinds()
    asked = [(op, candidates(op, mesh), memory) for op, memory in ops]
    entries = sum(index.shape[1] for _, (_, index), _ in asked)
    print(f"{len(ops)} kinds of ops, {entries:,} joint layouts on {'x'.join(MESH.value)}")
    for title in ("first", "repeated"):
        start = time.process_time()
        for op, rows, memory in asked:
            price_table(op, *rows, machine, memory)
        seconds = time.process_time() - start
        print(f"tables, {title}: {seconds:.2f} s, {entries / seconds:,.0f} a second")


if __name__ == "__main__":
    app.run(main)
