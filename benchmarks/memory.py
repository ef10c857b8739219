"""Compares the memory that a plan predicts with what XLA says of the compiled program, per device, on forced CPU devices.

Peak is arguments + results - results in donated arguments + temporaries; jaxlib's `peak_memory_in_bytes` leaves temporaries out on CPU.

    python benchmarks/memory.py --write
    python benchmarks/memory.py --programs=FILE.py --seeds=2 --devices=8,64
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=64")

import functools
import gc
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import partitioner_programs as programs
from absl import app, flags
from jax.sharding import AxisType, NamedSharding

import shardy_py as sp

DEPTH = flags.DEFINE_integer("depth", 2, "Depth of the language models.", lower_bound=1)
WIDTH = flags.DEFINE_integer("model_width", 256, "Their width; a multiple of 128.", lower_bound=128)
PROGRAMS = flags.DEFINE_string("programs", "", "A file with PROGS, a dict of name -> build() -> (function, shapes), in place of the own.")
SEEDS = flags.DEFINE_integer("seeds", 2, "Sets of annotations drawn for each of these programs.", lower_bound=1)
ONLY = flags.DEFINE_string("only", "", "Take programs whose name has this in it.")
DEVICES = flags.DEFINE_list("devices", "8,64", "Numbers of devices; 8, 16, 32 or 64.")
WRITE = flags.DEFINE_bool("write", False, "Write the table into docs/memory.md.")

MESHES = {8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8)}
NARROW = ("gpt_unrolled_megatron", "experts", "resnet")
"""Programs that are taken in bfloat16 too."""
DOCUMENT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "memory.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


@dataclass(frozen=True)
class Row:
    """One program compiled in one way."""

    name: str
    devices: int
    donated: bool
    real: int
    predicted: int

    @property
    def ratio(self) -> float:
        return self.predicted / self.real


def on(mesh: jax.sharding.Mesh, program: programs.Program) -> programs.Program:
    """The program on a mesh of another size with the same axes."""

    def moved(sharding: Any) -> Any:
        return None if sharding is None else NamedSharding(mesh, sharding.spec)

    annotations = jax.tree.map(moved, program.annotations, is_leaf=lambda leaf: leaf is None or isinstance(leaf, NamedSharding))
    return replace(program, annotations=annotations, mesh=mesh)


def in_bfloat16(program: programs.Program) -> programs.Program:
    """The program with arguments in bfloat16 in place of float32."""

    def narrow(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, jax.numpy.bfloat16) if leaf.dtype == jax.numpy.float32 else leaf

    return replace(program, name=f"{program.name}, bfloat16", args=jax.tree.map(narrow, program.args))


def own() -> Iterator[programs.Program]:
    """The own programs, and some of them in bfloat16."""
    for program in programs.own(DEPTH.value, WIDTH.value):
        yield program
        if program.name in NARROW:
            yield in_bfloat16(program)


def chosen() -> Iterator[tuple[int, programs.Program]]:
    for devices in map(int, DEVICES.value):
        if PROGRAMS.value:
            listed = programs.from_file(PROGRAMS.value, SEEDS.value, ONLY.value)
        else:
            listed = own()
        for program in listed:
            if ONLY.value in program.name:
                axes = tuple(program.mesh.axis_names)
                mesh = jax.make_mesh(MESHES[devices], axes, axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:devices])
                if PROGRAMS.value:
                    drawn = programs.draw_annotations(program.name, mesh, program.args)
                    yield devices, replace(program, annotations=drawn, mesh=mesh)
                else:
                    yield devices, on(mesh, program)


def measured(devices: int, program: programs.Program, donated: bool) -> Row:
    @functools.wraps(program.fun)
    def fun(*args: Any) -> Any:
        return program.fun(*args)

    gc.collect()
    step = sp.auto_shard(fun, mesh=program.mesh, in_shardings=program.annotations, donate_argnums=(0,) if donated else ())
    traced = step.trace(*program.args)
    memory = traced.plan().memory_analysis()
    sizes = traced.lower().compile().memory_analysis()
    real = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes + sizes.temp_size_in_bytes
    return Row(program.name, devices, donated, real, memory.peak_memory_in_bytes)


def line(row: Row) -> str:
    name = row.name + (", donated" if row.donated else "")
    return f"| {name} | {row.devices} | {row.real:,} | {row.predicted:,} | {row.ratio:.2f} |"


def summary(rows: list[Row]) -> str:
    within = sum(abs(row.ratio - 1) <= 0.15 for row in rows)
    below = sum(row.ratio < 0.8 for row in rows)
    return f"{within} of {len(rows)} within 15 %; {below} more than 20 % below."


def main(_: list[str]) -> None:
    rows: list[Row] = []
    table = ["| program | devices | XLA, bytes | predicted, bytes | ratio |", "|---|--:|--:|--:|--:|"]
    print("\n".join(table))
    for devices, program in chosen():
        for donated in (False, True)[: 1 if PROGRAMS.value else 2]:
            try:
                rows.append(measured(devices, program, donated))
            except Exception as error:
                print(f"{program.name} failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}", flush=True)
                continue
            table.append(line(rows[-1]))
            print(table[-1], flush=True)
    print(summary(rows))
    if WRITE.value:
        before, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        made = "\n".join([*table, "", summary(rows)])
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    app.run(main)
