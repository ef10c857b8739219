"""Collectives between the devices of one stage while they run its passes."""

from __future__ import annotations

from typing import NamedTuple

from shardy_py.cost.hardware import Hardware
from shardy_py.pipelines.compiling import Compiling
from shardy_py.pipelines.placing import Places
from shardy_py.pipelines.programs import Program


class Exchange(NamedTuple):
    """The collectives of a program."""

    seconds: float
    bytes: int


def exchange(program: Program, places: Places, hardware: Hardware) -> Exchange:
    """The collectives in the plan of a program; none where a stage has one device."""
    if places.mesh(program.stage).size == 1 or not program.nodes:
        return Exchange(0.0, 0)
    cost = Compiling(program, places).plan().cost_analysis(hardware)
    return Exchange(cost.communication_seconds or 0.0, cost.communicated_bytes)
