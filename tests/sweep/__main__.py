"""Runs the sweep, or one configuration of it: `python -m tests.sweep --seed 17 --only gather`."""

from __future__ import annotations

import argparse
import collections
import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8").strip()

from tests.sweep import running


def one(name: str, seed: int, lowerings: tuple[str, ...]) -> None:
    """Shows a configuration and what becomes of it, under plain `jax.jit` too."""
    import functools

    import jax
    import numpy as np
    from jax.sharding import NamedSharding

    from tests.comparing import difference
    from tests.sweep.configurations import configuration_of
    from tests.sweep.surroundings import constraint, unconstrained

    if name in (running.PROGRAM, running.PLANNED):
        from tests.random_numbers import text_of_seed

        print(text_of_seed(seed))
        print(*running.outcomes_here(name, seed, lowerings), sep="\n")
        return
    c = configuration_of(name, seed)
    jax.config.update("jax_enable_x64", c.x64)
    print(f"mesh {dict(c.mesh.shape)} {c.mesh.axis_types[0].name}, devices {c.mesh.devices.ravel()[0].id}..; x64 {c.x64}")
    for i, (a, s) in enumerate(zip(c.arguments, c.in_shardings)):
        print(f"argument {i}: {np.asarray(a).dtype}{np.shape(a)} {s}")
    print(*(f"  {text}" for text in c.around), sep="\n")
    print(jax.make_jaxpr(functools.partial(c.function, unconstrained))(*c.arguments))
    print("out_shardings", c.out_shardings)
    for outcome in running.outcomes_here(name, seed, lowerings):
        print(f"{outcome.lowering}: {outcome.kind} {outcome.text}", flush=True)
    wanted = jax.jit(functools.partial(c.function, unconstrained))(*c.arguments)
    if c.mesh.axis_types[0] is jax.sharding.AxisType.Auto:
        place = lambda s: None if s is None else NamedSharding(c.mesh, s)  # noqa: E731
        plain = jax.jit(functools.partial(c.function, constraint(c.mesh)), in_shardings=tuple(map(place, c.in_shardings)),
                        out_shardings=tuple(map(place, c.out_shardings)))  # fmt: skip
        try:
            texts = [difference(np.asarray(g), np.asarray(w)) for g, w in zip(plain(*c.arguments), wanted)]
        except Exception as error:
            texts = [str(error)[:400]]
        print(f"plain jax.jit: {next(filter(None, texts), 'right')}")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="number of the first configuration")
    parser.add_argument("--count", type=int, default=None, help="how many configurations; without it and with --only, that one is shown")
    parser.add_argument("--only", default="", help="name of a configuration")
    parser.add_argument("--lowering", default=",".join(running.LOWERINGS), help="lowerings, with commas between")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--log", default=os.devnull, help="file that outcomes are appended to as they come")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    lowerings = tuple(arguments.lowering.split(","))
    if arguments.work:
        running.work()
        return
    if arguments.only and arguments.count is None:
        one(arguments.only, arguments.seed, lowerings)
        return
    from tests.sweep.configurations import name_of

    seeds = range(arguments.seed, arguments.seed + (arguments.count or 1000))
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    with open(arguments.log, "a") as log:

        def report(outcome: running.Outcome) -> None:
            counts[outcome.lowering, outcome.kind] += 1
            if outcome.kind != running.RIGHT:
                log.write(f"{outcome.name} {outcome.seed} {outcome}\n")
            if counts.total() % 200 == 0:
                log.write(f"{counts.total()} runs: {dict(counts)}\n")
            log.flush()

        running.sweep(((arguments.only or name_of(seed), seed) for seed in seeds), lowerings, workers=arguments.workers, report=report)
    for (lowering, kind), count in sorted(counts.items()):
        print(f"{lowering}: {count} {kind}")


if __name__ == "__main__":
    main()
