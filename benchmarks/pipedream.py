"""Partitions PipeDream's own profiles, compares with what PipeDream answers on them, and partitions graphs with very many cuts.

PipeDream's profiles and answers are looked for in `../shared` or `$SHARDY_SHARED`; without them only the last part runs.

    python benchmarks/pipedream.py
    python benchmarks/pipedream.py --machines=4,16
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from shardy_py.errors import ShardyError
from shardy_py.pipedream import ProfileGraph, compress_branches, partition, read_graph, write_graph
from shardy_py.pipedream.partitions.partition import PartitionError
from tests.pipedream.shapes import inception, nasnet

SHARED = pathlib.Path(os.environ.get("SHARDY_SHARED") or ROOT.parent / "shared") / "data" / "pipedream"
MACHINES = flags.DEFINE_list("machines", ["4", "8", "16", "8x2", "4x4"], "Machines for the large graphs; 8x2 is 8 in each of 2 servers.")
MEMORY = flags.DEFINE_list("memory", ["none", "16e9"], "Bytes of a machine for the large graphs, in exact mode.")
PROFILES = flags.DEFINE_bool("profiles", True, "Whether to repeat PipeDream's runs.")
LARGE = flags.DEFINE_list("large", ["inception", "nasnet-mobile", "nasnet-large"], "Which large graphs.")
SAME = 1e-9

SHAPES: dict[str, Callable[[], ProfileGraph]] = {
    "inception": inception,
    "nasnet-mobile": lambda: nasnet(4, 10),
    "nasnet-large": lambda: nasnet(6, 10),
}


def arguments(line: list[str]) -> dict[str, Any]:
    """PipeDream's command line as arguments of `partition`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", dest="machines", nargs="+", type=int)
    parser.add_argument("-b", dest="bandwidths", nargs="+", type=float)
    parser.add_argument("-s", dest="memory_bytes", type=float)
    parser.add_argument("--activation_compression_ratio", dest="activation_compression", type=float)
    parser.add_argument("--straight_pipeline", dest="straight", action="store_true")
    parser.add_argument("--use_fewer_machines", action="store_true")
    parser.add_argument("--use_memory_constraint", action="store_true")
    found = vars(parser.parse_args(line))
    if not found.pop("use_memory_constraint"):
        found["memory_bytes"] = None
    return found


def profiles() -> None:
    """Reads and writes PipeDream's files and repeats its runs, in both modes."""
    texts = {path.stem: path.read_text() for path in sorted(SHARED.glob("graphs/*.txt"))}
    same = sum(write_graph(read_graph(text)) == text for text in texts.values())
    print(f"{same} of {len(texts)} graph files come out byte by byte as they were read")
    runs = json.loads((SHARED / "reference.json").read_text())
    graphs = {name: read_graph(text) for name, text in texts.items()}
    theirs = sum(run["wall_s"] for run in runs)
    for mode in ("pipedream", "exact"):
        ratios, unfit, start, cpu = [], [], time.perf_counter(), time.process_time()
        for run in runs:
            try:
                found = partition(graphs[run["model"]], mode=mode, **arguments(run["args"]))
            except ShardyError as error:
                unfit.append(f"{run['model']} {run['config']}: {error.what}")
                continue
            ratios.append((found.pipeline_time / run["pipeline_time_per_stage_s"], f"{run['model']} {run['config']}"))
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        equal = sum(abs(ratio - 1) <= SAME for ratio, _ in ratios)
        print(f"{mode}: {len(runs)} runs in {wall:.1f} s ({cpu:.1f} s of CPU time; PipeDream {theirs:.0f} s)")
        print(
            f"  {equal} predict PipeDream's time, {sum(r < 1 - SAME for r, _ in ratios)} less, {sum(r > 1 + SAME for r, _ in ratios)} more"
        )
        for ratio, name in sorted(ratios):
            if abs(ratio - 1) > 1e-3 or ratio > 1 + SAME:
                print(f"  {ratio:.4f} {name}")
        for line in unfit:
            print(f"  {line}")


def large() -> None:
    """Partitions graphs whose cuts explode."""
    for name in LARGE.value:
        graph = SHAPES[name]()
        print(f"{name}: {len(graph)} nodes, {len(graph.edges)} edges, {len(compress_branches(graph).graph)} nodes with branches compressed")
        for machines in MACHINES.value:
            counts = [int(count) for count in machines.split("x")]
            for mode, straight, memory in itertools.product(("pipedream", "exact"), (False, True), MEMORY.value):
                if memory != "none" and mode == "pipedream":
                    continue
                kind = f"{'straight' if straight else 'replicated'}{'' if memory == 'none' else f', {float(memory) / 1e9:g} GB'}"
                limit = None if memory == "none" else float(memory)
                start, cpu = time.perf_counter(), time.process_time()
                try:
                    found = partition(graph, counts, [1e10, 1e9][-len(counts) :], mode, 1, straight, memory_bytes=limit)
                    figures = f"{found.pipeline_time * 1e3:8.2f} ms, gap {found.gap:6.2%}"
                except PartitionError as error:
                    figures = error.what
                wall, cpu = time.perf_counter() - start, time.process_time() - cpu
                print(f"  {machines:>3} machines, {mode:9} {kind:17} {figures}, {wall:5.1f} s ({cpu:.1f} s of CPU time)", flush=True)


def main(_: list[str]) -> None:
    """Prints all figures."""
    if SHARED.exists() and PROFILES.value:
        profiles()
    large()


if __name__ == "__main__":
    app.run(main)
