"""Compares what a plan for TPUs predicts with what their compiler makes of it, and with the same annotations under `jax.jit`.

Nothing runs, and no TPU is needed: `pip install "shardy_py[tpu]"` brings the compiler, which takes from half a minute to minutes a program.

    python benchmarks/accelerators.py --write
    python benchmarks/accelerators.py --programs=FILE.py --only=lstm --topology=v6e:2x4
"""

from __future__ import annotations

import os

os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import importlib.util
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import partitioner_programs as programs
from absl import app, flags
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.backends.compiled_text import collectives_in

TOPOLOGY = flags.DEFINE_string("topology", "v5e:2x4", "A slice of eight TPUs.")
PROGRAMS = flags.DEFINE_string("programs", "", "A file with PROGS, a dict of name -> build() -> (function, shapes), in place of the own.")
SEEDS = flags.DEFINE_integer("seeds", 1, "Sets of annotations drawn for each of these programs.", lower_bound=1)
ONLY = flags.DEFINE_string("only", "", "Take programs whose name has this in it.")
JIT = flags.DEFINE_bool("jit", True, "Compile under jax.jit too.")
WRITE = flags.DEFINE_bool("write", False, "Write the table into docs/accelerators.md.")

DEPTH, WIDTH = 2, 512
OWN = ("gpt_scanned_megatron", "gpt_scanned_fsdp", "experts", "decode")
CLOCKS = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9}
"""Of the chips; the compiler estimates cycles."""

DOCUMENT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "accelerators.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
HEAD = ["| program | received, MiB | | | peak, MiB | | | computing, ms | | hidden |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
HEAD += ["| | planned | compiled | `jax.jit` | planned | compiled | `jax.jit` | planned | compiled | |"]
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One program; pairs are planned and compiled, sizes bytes on each device."""

    name: str
    received: tuple[int, int]
    peak: tuple[int, int]
    seconds: tuple[float, float]
    hidden: float
    jit: tuple[int, int] | None

    def __str__(self) -> str:
        of_jit = ("", "") if self.jit is None else [f"{size / MIB:.4g}" for size in self.jit]
        received, peak = ([f"{size / MIB:.4g}" for size in pair] for pair in (self.received, self.peak))
        computing = [f"{1e3 * seconds:.3f}" for seconds in self.seconds]
        return f"| {' | '.join((self.name, *received, of_jit[0], *peak, of_jit[1], *computing, f'{self.hidden:.0%}'))} |"


def mlp(mesh: Mesh, *, sequence: bool) -> programs.Program:
    """Two products in bfloat16: forward with sequences cut beside the weights, or an update of weights that are whole."""
    width = 2048 if sequence else 1024
    up, down = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((width, 4 * width), (4 * width, width)))
    x = jax.ShapeDtypeStruct((2, 2 * width, width), jnp.bfloat16)

    def forward(w: dict[str, Any], x: Any) -> Any:
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"]

    def update(w: dict[str, Any], x: Any) -> Any:
        gradients = jax.grad(lambda w: jnp.mean(forward(w, x).astype(jnp.float32) ** 2))(w)
        return jax.tree.map(lambda p, g: p - jnp.asarray(1e-3, p.dtype) * g, w, gradients)

    specs = ({"up": P(None, "model"), "down": P("model")}, P("data", "model")) if sequence else ({"up": P(), "down": P()}, P("data"))
    annotations = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P))
    name, fun = ("mlp, sequence parallel", forward) if sequence else ("mlp, data parallel", update)
    return programs.Program(name, fun, ({"up": up, "down": down}, x), annotations, mesh)


def chosen(mesh: Mesh) -> Iterator[programs.Program]:
    if PROGRAMS.value:
        yield from programs.from_file(PROGRAMS.value, SEEDS.value, ONLY.value)
        return
    yield from (mlp(mesh, sequence=sequence) for sequence in (True, False))
    yield from (program for program in programs.own(DEPTH, WIDTH) if program.name in OWN)


def on(mesh: Mesh, program: programs.Program) -> programs.Program:
    """The program on a mesh whose axes stand for those of its own."""
    names = dict(zip(program.mesh.axis_names, mesh.axis_names))

    def moved(sharding: Any) -> Any:
        return None if sharding is None else NamedSharding(mesh, P(*(names.get(axis) for axis in sharding.spec)))

    annotations = jax.tree.map(moved, program.annotations, is_leaf=lambda leaf: leaf is None or isinstance(leaf, NamedSharding))
    return replace(program, annotations=annotations, mesh=mesh)


def measured(program: programs.Program, stand: Mesh, devices: Mesh) -> Row:
    ours = on(stand, program)
    plan = sp.auto_shard(ours.fun, mesh=stand, in_shardings=ours.annotations).plan(*ours.args)
    compiled, chip = plan.compile_for(), TOPOLOGY.value.partition(":")[0]
    if compiled.memory is None:
        raise ValueError(compiled.refusal)
    cost, memory = plan.cost_analysis(chip), plan.memory_analysis(chip)
    received, planned = sum(compiled.received.values()), sum((compiled.planned or {}).values())
    seconds = cost.compute_seconds or 0.0, sum(compiled.cycles.values()) / CLOCKS[chip]
    peak = memory.peak_memory_in_bytes, compiled.memory.peak_memory_in_bytes
    return Row(program.name, (planned, received), peak, seconds, compiled.hidden_bytes / max(received, 1), by_jit(on(devices, program)))


def by_jit(program: programs.Program) -> tuple[int, int] | None:
    """Bytes received and peak of the program under `jax.jit`."""
    if not JIT.value:
        return None
    compiled: Any = jax.jit(program.fun, in_shardings=program.annotations).lower(*program.args).compile()
    sizes, found = compiled.memory_analysis(), collectives_in(compiled.as_text())
    peak = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes + sizes.temp_size_in_bytes
    return sum(c.call_bytes for c in found if c.group_size > 1), peak


def summary(rows: list[Row]) -> str:
    def within(part: float, pairs: list[tuple[int, int]]) -> int:
        return sum(abs(planned - compiled) <= part * compiled for planned, compiled in pairs)

    received, peaks = [row.received for row in rows], [row.peak for row in rows]
    return f"Bytes are within 5 % in {within(0.05, received)} of {len(rows)}, peaks within 15 % in {within(0.15, peaks)}."


def main(_: list[str]) -> None:
    if importlib.util.find_spec("libtpu") is None:
        print('skipped: the compiler for TPUs is not installed; pip install "shardy_py[tpu]" brings it')
        return
    axes, types = ("data", "model"), (AxisType.Auto,) * 2
    stand = jax.make_mesh((2, 4), axes, axis_types=types, devices=sp.topology(TOPOLOGY.value))
    real = topologies.get_topology_desc(TOPOLOGY.value, platform="tpu").devices
    devices, rows = jax.make_mesh((2, 4), axes, axis_types=types, devices=real), list[Row]()
    print("\n".join(HEAD))
    for program in chosen(jax.make_mesh((2, 4), axes, axis_types=types)):
        if ONLY.value not in program.name:
            continue
        try:
            rows.append(measured(program, stand, devices))
        except Exception as error:
            print(f"{program.name} failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}", flush=True)
            continue
        print(rows[-1], flush=True)
    print(summary(rows))
    if WRITE.value:
        before, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
        made = "\n".join([*HEAD, *map(str, rows), "", summary(rows)])
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    app.run(main)
