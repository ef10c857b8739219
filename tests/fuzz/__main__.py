"""Runs the fuzzer, or one seed of it: `python -m tests.fuzz --seed 17` shows the input and what becomes of it."""

from __future__ import annotations

import argparse
import collections
import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tests.fuzz import running


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, help="how many; without it, that one is shown")
    parser.add_argument("--log", default=os.devnull, help="file to which failures are appended as they come")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        running.work(arguments.seed, arguments.count)
        return
    if arguments.count is None:
        print(running.shown(arguments.seed))
        return
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    growth = 0
    with open(arguments.log, "a") as log:
        for outcome in running.outcomes(arguments.seed, arguments.count):
            counts[outcome.source, outcome.kind] += 1
            growth = max(growth, outcome.growth)
            if outcome.is_failure:
                log.write(f"{outcome}\n")
            if counts.total() % 1000 == 0:
                log.write(f"{counts.total()} runs: {dict(counts)}, {growth} MB\n")
            log.flush()
    for (source, kind), count in sorted(counts.items()):
        print(f"{source}: {count} {kind}")
    print(f"memory of a process grew by at most {growth} MB, one process for {min(arguments.count, running.PER_WORKER)} runs")


if __name__ == "__main__":
    main()
