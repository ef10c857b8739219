"""The planner beside experts' templates, on models at the size that people plan for, drawn by a seed.

Each draw is a model (Llama 3, GPT-3, mixtures of experts; scanned or written out), a mesh of one to three axes of 8 to 512 devices,
hardware, and a batch, which may be too large for any plan. Templates are finished plans with an expert's constraints inside: data
parallel, fully sharded, with tensor parallelism over each axis, experts over each axis. Nothing is computed; shapes are enough. Faults:

* worse: a template that fits takes less time by more than 0.1 %;
* impossible: the planner says that nothing fits, and a template does;
* alternative: one of the plan's alternatives fits and is cheaper;
* batch: the batch lies whole where a template, or the plan with the batch cut, is within 1 %;
* bound: the lower bound is above a template that fits; objective: the plan's is not the one of its `cost_analysis`;
* budget: the plan is over it; time: planning takes more than 1.2 times the limit, tracing left out.

Seconds of planning are CPU seconds, and so is the limit, so that a busy machine finds what a quiet one does.

    python benchmarks/planner_sweep.py --seed=1 --count=60
    python benchmarks/planner_sweep.py --seed=1 --draw=7 --seconds=60
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "64")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import dataclasses
import functools
import math
import random
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import llama
from absl import app, flags
from jax.sharding import PartitionSpec as P

import shardy_py as sp

SEED = flags.DEFINE_integer("seed", 1, "Of the draws.")
FIRST = flags.DEFINE_integer("first", 0, "The first draw.")
COUNT = flags.DEFINE_integer("count", 60, "How many draws.")
DRAW = flags.DEFINE_integer("draw", None, "One draw, with all templates.")
CHEAP = flags.DEFINE_bool("cheap", False, "Draws of Llama 1B and 8B, scanned, on at most two axes.")
SCANNED = flags.DEFINE_bool("scanned", False, "Leave out draws of models that are written out.")
TIME_LIMIT = flags.DEFINE_float("seconds", 30.0, "Of the planner, in seconds.", lower_bound=0)
REPORT = flags.DEFINE_string("report", "", "A file that gets a line for each fault.")

TOLERANCE, WITHIN, LATE = 1e-3, 1e-2, 1.2
HARDWARE = ("v5e", "v5p", "v6e", "h100")
LENGTHS = (1024, 2048, 4096)
SEQUENCES = (0.25, 0.5, 1, 1, 2, 8)
"""Per device."""

LLAMA_1B = llama.Config(layers=16, width=2048, heads=32, key_heads=8, hidden=8192)
LLAMA_8B = llama.Config(layers=32, width=4096, heads=32, key_heads=8, hidden=14336)
MIXTRAL = llama.Config(layers=32, width=4096, heads=32, key_heads=8, hidden=14336, vocabulary=32000, experts=8)
DEEPSEEK = llama.Config(61, 7168, heads=56, key_heads=8, hidden=2048, vocabulary=129280, experts=256, active=8, shared=1)
DENSE = {
    "Llama 1B": LLAMA_1B,
    "Llama 8B": LLAMA_8B,
    "Llama 70B": llama.Config(layers=80, width=8192, heads=64, key_heads=8, hidden=28672),
    "Llama 405B": llama.Config(),
    "GPT-3 175B": llama.Config(layers=96, width=12288, heads=96, key_heads=96, hidden=49152, vocabulary=50304, gated=False),
}
OTHERS = {
    "Mixtral 8x7B": MIXTRAL,
    "Mixtral 8x7B, sorted": dataclasses.replace(MIXTRAL, is_sorted=True),
    "DeepSeek-V3": DEEPSEEK,
    "Llama 1B, written out": LLAMA_1B,
    "Llama 8B, written out": LLAMA_8B,
}


@dataclasses.dataclass(frozen=True)
class Draw:
    """A step, and where it is to run."""

    model: str
    config: llama.Config
    mesh: dict[str, int]
    hardware: str

    @property
    def scanned(self) -> bool:
        return "written out" not in self.model

    @property
    def devices(self) -> int:
        return math.prod(self.mesh.values())

    def __str__(self) -> str:
        sizes = " x ".join(map(str, self.mesh.values()))
        return f"{self.model} on {sizes} {self.hardware}, {self.config.batch} sequences of {self.config.length:,}"


def drawn(seed: int, number: int, cheap: bool = False) -> Draw:
    """A draw of a seed."""
    rng = random.Random(f"{seed}/{number}")
    models = DENSE if cheap or rng.random() < 0.5 else OTHERS
    model = rng.choice(list(models)[: 2 if cheap else None])
    hardware = rng.choice(HARDWARE)
    state = 10 * llama.parameters(models[model])  # bfloat16, and two moments in float32
    least = state / sp.Planner(hardware).machine.hbm_bytes / 1.2
    counts = [n for n in (8, 16, 32, 64, 128, 256, 512) if n >= least] or [512]
    devices = rng.choice(counts)
    sizes = [devices]
    for _ in range(rng.randrange(2 if cheap else 3)):
        place = max(range(len(sizes)), key=lambda n: sizes[n])
        if sizes[place] > 2:
            part = 2 ** rng.randrange(1, sizes[place].bit_length() - 1)
            sizes[place : place + 1] = [sizes[place] // part, part]
    batch = max(8, int(devices * rng.choice(SEQUENCES)))
    config = dataclasses.replace(models[model], length=rng.choice(LENGTHS), batch=batch)
    return Draw(model, config, dict(zip("xyz", sizes)), hardware)


def templates(draw: Draw) -> Iterator[tuple[str, dict[str, llama.Names]]]:
    """What experts would write: axes of each role, by name."""
    names = tuple(draw.mesh)
    yield "data parallel", {"batch": names, "fsdp": None, "tensor": None}
    yield "FSDP", {"batch": names, "fsdp": names, "tensor": None}
    for tensor in names:
        rest = tuple(name for name in names if name != tensor) or None
        if rest:
            yield f"FSDP x tensor over {tensor}", {"batch": rest, "fsdp": rest, "tensor": tensor}
        yield f"Megatron over {tensor}", {"batch": rest, "fsdp": None, "tensor": tensor}
    for experts in names if draw.config.experts else ():
        if draw.config.experts % draw.mesh[experts]:
            continue
        yield f"experts over {experts} x FSDP", {"batch": names, "fsdp": names, "tensor": None, "experts": experts}
        for tensor in names:
            rest = tuple(name for name in names if name != tensor)
            if tensor != experts:
                yield f"experts over {experts} x tensor over {tensor}", {"batch": rest, "fsdp": rest, "tensor": tensor, "experts": experts}


def abstract_mesh(draw: Draw) -> jax.sharding.AbstractMesh:
    return jax.sharding.AbstractMesh(tuple(draw.mesh.values()), tuple(draw.mesh))


@dataclasses.dataclass(frozen=True)
class Finished:
    """Figures of a finished plan."""

    seconds: float
    peak: int
    fits: bool


def figures(plan: sp.Plan, hardware: str) -> Finished:
    step = plan.cost_analysis(hardware).step_seconds
    assert step is not None
    peak = plan.memory_analysis(hardware=hardware).peak_memory_in_bytes
    return Finished(step.high, peak, peak <= sp.Planner(hardware).machine.hbm_bytes)


def pinned(x: jax.Array, kind: str, *, batch: llama.Names, tensor: llama.Names, experts: llama.Names = None, **_: Any) -> jax.Array:
    """Constrains a value as an expert does."""
    rest = tuple(name for name in batch or () if name != experts) or None
    specs = {"stream": P(batch), "queued": P(experts, rest)}
    return sp.with_sharding_constraint(x, specs.get(kind, P(batch, None, tensor)))


def expert(draw: Draw, roles: dict[str, llama.Names]) -> Finished | None:
    """The figures of a template; None where its axes do not divide the sizes."""
    keys = tensor if (tensor := roles["tensor"]) and draw.config.key_heads % draw.mesh[str(tensor)] == 0 else None
    arguments, (params, _, tokens) = llama.arguments(draw.config, scanned=draw.scanned, keys=keys, **roles)
    moments = llama.moment_specs(arguments[1], params)
    step = functools.partial(llama.train_step, c=draw.config, pin=functools.partial(pinned, **roles))
    results = (params, moments, None)
    settings = {"mesh": abstract_mesh(draw), "in_shardings": (params, moments, tokens), "out_shardings": results, "donate_argnums": (0, 1)}
    try:
        return figures(sp.auto_shard(step, **settings).plan(*arguments), draw.hardware)
    except sp.ShardyError as error:
        if "divisible" not in str(error):
            raise
        return None


def planned(draw: Draw, time_limit: float, **more: Any) -> tuple[sp.Plan, float]:
    """The planner's plan, and the CPU seconds that it took, tracing left out."""
    step = functools.partial(llama.train_step, c=draw.config, pin=llama.unpinned)
    planner = sp.Planner(hardware=draw.hardware, time_limit_s=time_limit)
    arguments = llama.arguments(draw.config, scanned=draw.scanned)[0]
    traced = sp.auto_shard(step, mesh=abstract_mesh(draw), planner=planner, donate_argnums=(0, 1), **more).trace(*arguments)
    began = time.process_time()
    try:
        return traced.plan(), time.process_time() - began
    except sp.PlannerInfeasible as error:
        error.add_note(f"{time.process_time() - began:.1f}")
        raise


def judged(draw: Draw) -> tuple[list[str], str]:
    """The faults of a draw, and what is to be said of it."""
    experts = {name: each for name, roles in templates(draw) if (each := expert(draw, roles)) is not None}
    fitting = {name: each for name, each in experts.items() if each.fits}
    best = min(fitting, key=lambda name: fitting[name].seconds, default=None)
    if DRAW.value is not None:
        for name, each in experts.items():
            print(f"    {name:32s} {each.seconds:10.4g} s {each.peak / 2**30:8.1f} GiB{'' if each.fits else ' (over the budget)'}")
    beside = "none fits" if best is None else f"{best} {fitting[best].seconds:.4g} s, {fitting[best].peak / 2**30:.1f} GiB"
    try:
        plan, seconds = planned(draw, TIME_LIMIT.value)
    except sp.PlannerInfeasible as error:
        text = f"{type(error).__name__}, {error.__notes__[-1]} CPU s, templates: {beside}"
        if best is None:
            least = min(experts, key=lambda name: experts[name].peak)
            return [], f"{text}, the least {least} {experts[least].peak / 2**30:.1f} GiB"
        return [f"impossible: {best} fits; {str(error).splitlines()[0]}"], text
    search, own = plan.search, figures(plan, draw.hardware)
    assert search is not None
    faults: list[str] = []
    if best is not None and own.seconds > (1 + TOLERANCE) * fitting[best].seconds:
        faults.append(f"worse: {own.seconds:.4g} s, {beside}, {own.seconds / fitting[best].seconds - 1:.2%}")
    if best is not None and search.lower_bound_seconds > (1 + TOLERANCE) * fitting[best].seconds:
        faults.append(f"bound: {search.lower_bound_seconds:.6g} s, {best} {fitting[best].seconds:.6g} s")
    if not math.isclose(search.objective_seconds, own.seconds, rel_tol=1e-9):
        faults.append(f"objective: {search.objective_seconds!r} s, by cost_analysis {own.seconds!r} s")
    if not own.fits:
        faults.append(f"budget: peak {own.peak / 2**30:.1f} GiB")
    if seconds > LATE * TIME_LIMIT.value:
        faults.append(f"time: {seconds:.1f} CPU s of {TIME_LIMIT.value:g}")
    for other in (
        search.alternatives if draw.scanned or DRAW.value is not None else ()
    ):  # each is a plan, which takes long where written out
        if other.objective_seconds < (1 - TOLERANCE) * own.seconds and other.fits:
            faults.append(f"alternative: {other.name} {other.objective_seconds:.4g} s, the plan {own.seconds:.4g} s")
    sharding = plan.inputs[-1].sharding
    if not (sharding and any(dim.axes for dim in sharding.dims)) and (cut := batch_cut(draw, own, fitting)):
        faults.append(f"batch: whole, and {cut}")
    text = (
        f"{own.seconds:.4g} s, {own.peak / 2**30:.1f} GiB, gap {search.gap:.1%}, {search.status}, {seconds:.1f} CPU s, templates: {beside}"
    )
    return faults, text


def batch_cut(draw: Draw, own: Finished, fitting: dict[str, Finished]) -> str:
    """A plan that cuts the batch and takes at most 1 % longer; empty if no such plan exists."""
    for name, each in fitting.items():
        if each.seconds <= (1 + WITHIN) * own.seconds:
            return f"{name} takes {each.seconds:.4g} s, the plan {own.seconds:.4g} s"
    try:
        cut = figures(planned(draw, TIME_LIMIT.value, in_shardings=(None, None, P(tuple(draw.mesh))))[0], draw.hardware)
    except sp.ShardyError:
        return ""
    return f"cut over all axes it takes {cut.seconds:.4g} s, whole {own.seconds:.4g} s" if cut.seconds <= (1 + WITHIN) * own.seconds else ""


def main(argv: list[str]) -> None:
    del argv
    time.monotonic = time.process_time  # the planner's clock: a busy machine then searches as far as a quiet one
    numbers = range(FIRST.value, FIRST.value + COUNT.value) if DRAW.value is None else [DRAW.value]
    bad = 0
    for number in numbers:
        draw = drawn(SEED.value, number, CHEAP.value)
        if SCANNED.value and not draw.scanned:
            continue
        began = time.process_time()
        try:
            faults, text = judged(draw)
        except Exception as error:  # A sweep goes on.
            traceback.print_exc()
            faults, text = [f"crash: {type(error).__name__}: {str(error)[:300]}"], "no plan"
        bad += bool(faults)
        print(f"{number:3d} {draw}: {text} (all {time.process_time() - began:.0f} CPU s)", *faults, sep="\n      ", flush=True)
        if REPORT.value and faults:
            with open(REPORT.value, "a") as file:
                file.writelines(f"* seed {SEED.value}, draw {number}: {draw}: {fault}\n" for fault in faults)
    print(f"{bad} of {len(numbers)} draws have faults")
    sys.exit(int(bad > 0))


if __name__ == "__main__":
    app.run(main)
