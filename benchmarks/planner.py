"""CPU seconds from call to plan where the planner chooses all shardings, with what it says of its plan.

Times are CPU seconds of this process, tracing included; the search itself ends after --time-limit seconds of the clock. A small program is
planned first, so that imports and what JAX builds once are not counted. The exit status is 1 where an aim is missed.

    python benchmarks/planner.py
    python benchmarks/planner.py --only=unrolled --time-limit=60
    python benchmarks/planner.py --rivals --time_limit=30

With --rivals it prints the table of docs/planner.md of the models that other planners publish, beside experts' templates.
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import llama
import planner_sweep
from absl import app, flags

import shardy_py as sp

ONLY = flags.DEFINE_string("only", "", "Cases whose names contain this.")
TIME_LIMIT = flags.DEFINE_float("time_limit", 10.0, "Of the planner, in seconds.", lower_bound=0)

RIVALS = flags.DEFINE_bool("rivals", False, "The models that other planners publish, on two to four axes, beside experts' templates.")

LLAMA_8B = llama.Config(layers=32, width=4096, heads=32, key_heads=8, hidden=14336, vocabulary=128256, length=4096, batch=256)


@dataclasses.dataclass(frozen=True)
class Case:
    """A step to plan.

    Attributes:
        mesh: Sizes of the axes.
        aim: CPU seconds.
        hardware: Of the devices.
        step: The function and its arguments; the first two are donated.
    """

    mesh: dict[str, int]
    aim: float
    hardware: str
    step: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]


def mlp() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A step of an MLP of two layers with momentum."""

    def step(params: Any, moments: Any, x: jax.Array) -> tuple[Any, Any]:
        grads = jax.grad(lambda params: jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"] - x) ** 2))(params)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments

    params = {"in": jax.ShapeDtypeStruct((4096, 16384), jnp.float32), "out": jax.ShapeDtypeStruct((16384, 4096), jnp.float32)}
    return step, (params, params, jax.ShapeDtypeStruct((8192, 4096), jnp.float32))


def decoder(config: llama.Config, *, scanned: bool) -> Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]:
    """A step of a decoder without constraints."""

    def step() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return functools.partial(llama.train_step, c=config, pin=llama.unpinned), llama.arguments(config, scanned=scanned)[0]

    return step


CASES = {
    "small": Case({"x": 8}, 0.5, "v5e", mlp),
    "8B scanned, one axis": Case({"x": 256}, 1.0, "v5p", decoder(LLAMA_8B, scanned=True)),
    "8B scanned, two axes": Case({"x": 16, "y": 16}, 8.0, "v5p", decoder(LLAMA_8B, scanned=True)),
    "8B scanned, three axes": Case({"x": 8, "y": 8, "z": 4}, 15.0, "v5p", decoder(LLAMA_8B, scanned=True)),
    "8B unrolled, one axis": Case({"x": 256}, 10.0, "v5p", decoder(LLAMA_8B, scanned=False)),
    "405B scanned, 8,192 devices": Case({"x": 16, "y": 64, "z": 8}, 15.0, "v5p", decoder(llama.Config(), scanned=True)),
}


def planned(case: Case) -> sp.Plan:
    """The plan of a case."""
    function, args = case.step()
    mesh = jax.sharding.AbstractMesh(tuple(case.mesh.values()), tuple(case.mesh))
    planner = sp.Planner(hardware=case.hardware, time_limit_s=TIME_LIMIT.value)
    return sp.auto_shard(function, mesh=mesh, planner=planner, donate_argnums=(0, 1)).plan(*args)


SHAPES = {
    "Llama 3 1B": (planner_sweep.LLAMA_1B, ((8, 8), (4, 4, 8), (4, 4, 4, 8))),
    "Llama 3 8B": (planner_sweep.LLAMA_8B, ((8, 8), (4, 8, 8), (4, 4, 4, 8))),
    "DeepSeek-V3-like": (planner_sweep.DEEPSEEK, ((32, 8), (8, 8, 8), (4, 4, 4, 8))),
}
"""A model, and the sizes of meshes of h100, each with a sequence of 2,048 tokens per device."""


def rivals() -> None:
    """Prints the rows of the models that other planners publish."""
    time.monotonic = time.process_time  # the planner's clock, as in planner_sweep
    print("| model | mesh | planning, CPU s | step | gap | peak, GiB | best template that fits | its step | its peak, GiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, (config, shapes) in SHAPES.items():
        for shape in shapes if ONLY.value in name else ():
            sized = dataclasses.replace(config, length=2048, batch=math.prod(shape))
            draw = planner_sweep.Draw(name, sized, dict(zip("wxyz", shape)), "h100")
            plan, seconds = planner_sweep.planned(draw, TIME_LIMIT.value)
            own, search = planner_sweep.figures(plan, "h100"), plan.search
            assert search is not None
            experts = {name: planner_sweep.expert(draw, roles) for name, roles in planner_sweep.templates(draw)}
            fitting = {name: each for name, each in experts.items() if each is not None and each.fits}
            best = min(fitting, key=lambda name: fitting[name].seconds)
            cells = [
                name,
                " x ".join(map(str, shape)),
                f"{seconds:.1f}",
                f"{own.seconds:.4g} s",
                f"{search.gap:.1%}",
                f"{own.peak / 2**30:.1f}",
            ]
            cells += [best, f"{fitting[best].seconds:.4g} s", f"{fitting[best].peak / 2**30:.1f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


def main(argv: list[str]) -> None:
    del argv
    planned(CASES["small"])
    if RIVALS.value:
        return rivals()
    missed = False
    print(f"  {'case':28s} {'devices':>7s} {'CPU':>8s} {'aim':>6s} {'classes':>8s} {'entries':>9s} {'step':>10s} {'gap':>7s}")
    for name, case in CASES.items():
        if ONLY.value in name:
            start = time.process_time()
            search = planned(case).search
            seconds = time.process_time() - start
            assert search is not None
            missed |= seconds > case.aim
            figures = f"{seconds:6.2f} s {case.aim:4g} s {str(search.space['classes']).split()[0]:>8s} {int(search.space['entries']):9,}"
            step = f"{search.objective_seconds * 1e3:7,.1f} ms {search.gap:7.2%}"
            remarks = ", ".join(word for word in ("alike layers", "axes taken together") if word in search.space)
            print(f"  {name:28s} {math.prod(case.mesh.values()):7,} {figures} {step}  {remarks}", flush=True)
    sys.exit(int(missed))


if __name__ == "__main__":
    app.run(main)
