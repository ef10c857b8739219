"""Compares programs as XLA partitions them with the same programs as planned, in one process and taking turns.

jit        `jax.jit` with the annotations as `in_shardings`; XLA propagates and partitions, and may give its results other shardings than
           Shardy's propagation says
pinned     the same with the plan's shardings as `out_shardings`, so that results are placed as ours are
ours       `auto_shard(lowering="jit")`: planned here, partitioned by XLA
shard_map  `auto_shard(lowering="shard_map")`: planned here, collectives placed here

For each: bytes that the collectives of the compiled program bring to a device in one call, loops included; seconds to trace, lower and
compile (by the clock, of that in XLA, and of all processors), and to plan; bytes of memory per device; the time of a step, the median of
blocks that take turns.

    python benchmarks/partitioner.py
    python benchmarks/partitioner.py --programs=FILE.py --seeds=2 --blocks=0 --collectives
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dataclasses
import functools
import gc
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import partitioner_programs as programs
from absl import app, flags
from jax.sharding import Sharding

import shardy_py as sp
from shardy_py.backends.compiled_text import CompiledCollective, collectives_in

DEPTH = flags.DEFINE_integer("depth", 12, "Depth of the language models.", lower_bound=1)
WIDTH = flags.DEFINE_integer("model_width", 256, "Their width; a multiple of 128.", lower_bound=128)
PROGRAMS = flags.DEFINE_string("programs", "", "A file with PROGS, a dict of name -> build() -> (function, shapes), in place of the own.")
SEEDS = flags.DEFINE_integer("seeds", 2, "Sets of annotations drawn for each of these programs.", lower_bound=1)
ONLY = flags.DEFINE_string("only", "", "Take programs whose name has this in it.")
WAYS = flags.DEFINE_list("ways", "jit,ours,shard_map", "What to compare; the first is what the others are measured against.")
ROUNDS = flags.DEFINE_integer("rounds", 2, "How often each is compiled; times are medians. Who goes first takes turns.", lower_bound=1)
BLOCKS = flags.DEFINE_integer("blocks", 5, "Blocks of steps that are timed; 0 to compile only.", lower_bound=0)
STEPS = flags.DEFINE_integer("block_steps", 3, "Steps in a block.", lower_bound=1)
COLLECTIVES = flags.DEFINE_bool("collectives", False, "List the collectives of each compiled program.")
LOWERINGS = {"ours": "jit", "shard_map": "shard_map"}


@dataclass
class Made:
    """A program compiled in one of the ways."""

    compiled: Any
    collectives: list[CompiledCollective]
    compiling: float
    xla: float
    cpu: float
    planning: float
    memory: float
    step: float = math.nan

    @property
    def bytes(self) -> int:
        """Those of loops without a known trip count count once."""
        return sum(c.received_bytes * (1 if c.trips is None else c.trips) for c in self.collectives)


def make(way: str, program: programs.Program) -> Made:
    # A function of its own for each way: JAX remembers what it has traced.
    @functools.wraps(program.fun)
    def fun(*args: Any) -> Any:
        return program.fun(*args)

    gc.collect()
    planning, given = 0.0, {}
    if way == "pinned":
        given["out_shardings"] = (
            sp.auto_shard(program.fun, mesh=program.mesh, in_shardings=program.annotations).plan(*program.args).output_shardings
        )
    start, cpu = time.perf_counter(), time.process_time()
    if way in ("jit", "pinned"):
        traced = jax.jit(fun, in_shardings=program.annotations, **given).trace(*program.args)
    else:
        step = sp.auto_shard(fun, mesh=program.mesh, in_shardings=program.annotations, lowering=LOWERINGS[way])
        traced = step.trace(*program.args)
        planning, planning_cpu = time.perf_counter(), time.process_time()
        traced.plan()
        planning = time.perf_counter() - planning
        cpu += time.process_time() - planning_cpu
    lowered = traced.lower()
    xla = time.perf_counter()
    compiled = lowered.compile()
    end, cpu = time.perf_counter(), time.process_time() - cpu
    compiling, xla = end - start - planning, end - xla
    sizes, text = compiled.memory_analysis(), compiled.as_text()
    assert sizes is not None
    assert text is not None
    memory = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes - sizes.alias_size_in_bytes
    return Made(compiled, collectives_in(text), compiling, xla, cpu, planning, memory)


def make_all(ways: Sequence[str], program: programs.Program, turn: int) -> dict[str, Made]:
    """Compiles a program in all ways. The second way finds caches and memory of the process in place, so that the ways take turns."""
    rounds: dict[str, list[Made]] = {way: [] for way in ways}
    for count in range(turn, turn + ROUNDS.value):
        for way in ways if count % 2 == 0 else reversed(ways):
            try:
                rounds[way].append(make(way, program))
            except Exception as error:
                print(f"  {program.name}: {way} failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}", flush=True)
    return {way: typical(made) for way, made in rounds.items() if made}


def typical(made: Sequence[Made]) -> Made:
    """The last of several that are alike, with the medians of their times."""
    times = {name: statistics.median(getattr(one, name) for one in made) for name in ("compiling", "xla", "cpu", "planning")}
    return dataclasses.replace(made[-1], **times)


def some_value(shape: jax.ShapeDtypeStruct, key: jax.Array) -> jax.Array:
    if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key):
        keys = jax.random.key(7) if shape.shape == () else jax.random.split(jax.random.key(7), shape.shape)
        return keys
    if jnp.issubdtype(shape.dtype, jnp.complexfloating):
        return jax.lax.complex(*jax.random.normal(key, (2, *shape.shape))).astype(shape.dtype)
    if jnp.issubdtype(shape.dtype, jnp.floating):
        return (jax.random.normal(key, shape.shape) * 0.1).astype(shape.dtype)
    return jax.random.randint(key, shape.shape, 0, 2 if shape.dtype == bool else 4).astype(shape.dtype)


def time_steps(made: dict[str, Made], program: programs.Program) -> None:
    leaves, tree = jax.tree.flatten(program.args)
    keys = jax.random.split(jax.random.key(0), max(len(leaves), 1))
    args = jax.tree.unflatten(tree, [some_value(leaf, key) for leaf, key in zip(leaves, keys)])
    placed = {}
    for way, one in made.items():
        shardings = one.compiled.input_shardings[0]
        put = [x if not isinstance(s, Sharding) else jax.device_put(x, s) for x, s in _pairs(args, shardings)]
        placed[way] = jax.tree.unflatten(tree, put)
    times: dict[str, list[float]] = {way: [] for way in made}
    for block in range(BLOCKS.value + 1):
        for way in list(made) if block % 2 else reversed(made):
            start = time.perf_counter()
            for _ in range(STEPS.value):
                jax.block_until_ready(made[way].compiled(*placed[way]))
            if block:
                times[way].append((time.perf_counter() - start) / STEPS.value)
    for way, taken in times.items():
        made[way].step = statistics.median(taken)


def _pairs(args: Any, shardings: Any) -> list[tuple[Any, Any]]:
    leaves = jax.tree.leaves(args)
    found = jax.tree.leaves(shardings, is_leaf=lambda leaf: leaf is None or isinstance(leaf, Sharding))
    return list(zip(leaves, found, strict=True))


def ratio(ours: float, theirs: float) -> float:
    if math.isnan(ours) or math.isnan(theirs):
        return math.nan
    return ours / theirs if theirs else (1.0 if not ours else math.inf)


def row(name: str, ways: Sequence[str], made: dict[str, Made]) -> str:
    base = made.get(ways[0])
    cells = [f"{name[:34]:34s}", f"{base.bytes:>12d}" if base else f"{'n/a':>12s}"]
    for way in ways[1:]:
        one = made.get(way)
        if one is None:
            cells.append(f"|{'n/a':>12s}" + " " * 50)
            continue
        to = base or Made(None, [], math.nan, math.nan, math.nan, math.nan, math.nan)
        moved = ratio(one.bytes, base.bytes) if base else math.nan
        cells.append(
            f"|{one.bytes:>12d} {moved:6.2f}  {ratio(one.compiling, to.compiling):6.2f} {ratio(one.xla, to.xla):5.2f} "
            f"{one.planning:6.2f}s {ratio(one.memory, to.memory):6.2f}  {ratio(one.step, to.step):6.2f}     "
        )
    return " ".join(cells)


def header(ways: Sequence[str]) -> str:
    names = "".join(f" |{way:>12s}  bytes compile   xla   plan  memory   step     " for way in ways[1:])
    return f"{'program':34s} {ways[0] + ' bytes':>12s}{names}"


def totals(ways: Sequence[str], all_made: list[dict[str, Made]]) -> None:
    for way in ways[1:]:
        both = [(made[way], made[ways[0]]) for made in all_made if way in made and ways[0] in made]
        if not both:
            print(f"{way}: n/a")
            continue
        mine, theirs = sum(a.bytes for a, _ in both), sum(b.bytes for _, b in both)
        fewer, more = sum(a.bytes < b.bytes for a, b in both), sum(a.bytes > b.bytes for a, b in both)
        print(
            f"{way}: {len(both)} programs, {mine} bytes in all, {ratio(mine, theirs):.2f} of {ways[0]}'s; "
            f"fewer in {fewer}, more in {more}\n"
            f"  medians of the ratios to {ways[0]}: bytes {_median(ratio(a.bytes, b.bytes) for a, b in both)}, "
            f"compiling {_median(ratio(a.compiling, b.compiling) for a, b in both)} "
            f"(with planning {_median(ratio(a.compiling + a.planning, b.compiling) for a, b in both)}, "
            f"in XLA {_median(ratio(a.xla, b.xla) for a, b in both)}, in CPU seconds {_median(ratio(a.cpu, b.cpu) for a, b in both)}), "
            f"memory {_median(ratio(a.memory, b.memory) for a, b in both)}, step {_median(ratio(a.step, b.step) for a, b in both)}"
        )


def _median(ratios: Any) -> str:
    known = [r for r in ratios if not math.isnan(r)]
    return f"{statistics.median(known):.2f}" if known else "n/a"


def list_collectives(way: str, one: Made) -> None:
    """Collectives that are alike in one line, those that move most first."""
    alike: Counter[tuple[str, ...]] = Counter()
    size: dict[tuple[str, ...], int] = {}
    for c in one.collectives:
        for (dtype, dims), piece in zip(c.operands, c.pieces):
            often = "x?" if c.trips is None else f"x{c.trips}"
            operand = f"{dtype}[{','.join(map(str, dims))}]"
            key = (c.kind, f"among {c.group_size}", operand, often, c.location.rpartition("/")[2], c.op_name.rpartition("shard_map/")[2])
            alike[key] += 1
            received = c.received_bytes * piece // max(sum(c.pieces), 1)
            size[key] = size.get(key, 0) + received * (1 if c.trips is None else c.trips)
    for key in sorted(alike, key=lambda key: -size[key]):
        kind, among, operand, often, place, name = key
        print(f"    {way:9s} {size[key]:>9d} B  {alike[key]:>3d} {kind:18s} {among} {operand} {often}  {place}  {name[-90:]}")


def main(argv: list[str]) -> None:
    del argv
    jax.config.update("jax_num_cpu_devices", 8)
    ways = WAYS.value
    chosen = programs.from_file(PROGRAMS.value, SEEDS.value, ONLY.value) if PROGRAMS.value else programs.own(DEPTH.value, WIDTH.value)
    print(header(ways))
    all_made: list[dict[str, Made]] = []
    for i, program in enumerate(chosen):
        if ONLY.value not in program.name:
            continue
        made = make_all(ways, program, turn=i)
        if BLOCKS.value and made:
            time_steps(made, program)
        all_made.append(made)
        print(row(program.name, ways, made), flush=True)
        if COLLECTIVES.value:
            for way, one in made.items():
                list_collectives(way, one)
        for one in made.values():
            one.compiled = None
    totals(ways, all_made)


if __name__ == "__main__":
    app.run(main)
