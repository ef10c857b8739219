"""Modelled times of the programs and transfers of a pipeline."""

from __future__ import annotations

import math
from collections.abc import Mapping

from jax.extend.core import Var

from shardy_py.cost.hardware import Hardware
from shardy_py.pipelines.equation_cost import equation_seconds
from shardy_py.pipelines.jaxprs import bytes_of
from shardy_py.pipelines.placing import Places
from shardy_py.pipelines.programs import Program

Programs = Mapping[tuple[str, int], Program]

PASSES = {"F": "forward", "B": "backward", "b": "backward", "W": "weight"}
"""Role of a program -> the name that `simulate` has for its time."""


def stage_times(programs: Programs, places: Places, hardware: Hardware) -> dict[str, list[float]]:
    """Seconds of every stage, as `simulate` takes them; the devices of a stage share its work evenly, and exchange nothing."""
    count = places.stages
    times = {role: [0.0] * count for role in ("forward", "backward", "weight")}
    for (role, s), program in programs.items():
        results = dict.fromkeys((*program.outputs, *program.sums))
        seconds = equation_seconds([node.eqn for node in program.nodes], list(results), hardware)
        times[PASSES[role]][s] = math.fsum(seconds) / places.mesh(s).size
    return {**times, "transfer": transfers(programs, count, hardware)}


def transfers(programs: Programs, stages: int, hardware: Hardware) -> list[float]:
    """Seconds that a microbatch takes across the boundary behind each stage but the last, in one direction."""
    moved = sent(programs)
    crossing = [sum(n for (a, b), n in moved.items() if min(a, b) <= s < max(a, b)) for s in range(stages - 1)]
    # What crosses a boundary goes half forwards, half back.
    return [n / 2 / hardware.fabric.bandwidth + hardware.fabric.latency for n in crossing]


def sent(programs: Programs) -> dict[tuple[int, int], int]:
    """(from, to) -> bytes of activations and cotangents that a microbatch sends between these stages."""
    moved: dict[tuple[int, int], int] = {}
    producer: dict[Var, int] = {v: s for (_, s), program in programs.items() for v in program.outputs}
    seen: set[tuple[Var, int]] = set()
    for (_, t), program in programs.items():
        for v in program.inputs:
            if v in producer and producer[v] != t and (v, t) not in seen:
                seen.add((v, t))
                moved[producer[v], t] = moved.get((producer[v], t), 0) + bytes_of(v)
    return moved
