"""A training step in stages, each a plan of its own (`sp.pipeline`), and schedules on paper.

Names are imported when they are first used: schedules need no JAX. The name is a plural, for
`shardy_py.pipeline` is the function.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardy_py.pipelines.errors import PipelineError as PipelineError
    from shardy_py.pipelines.orders import Schedule as Schedule
    from shardy_py.pipelines.orders import Task as Task
    from shardy_py.pipelines.pipelining import Pipelined as Pipelined
    from shardy_py.pipelines.scheduling import schedule as schedule
    from shardy_py.pipelines.simulation import Simulation as Simulation
    from shardy_py.pipelines.simulation import simulate as simulate
    from shardy_py.pipelines.simulation import verify as verify

# Name -> module that holds it. A function must not have the name of a module here: importing that module would hide it.
_HOMES = {
    "PipelineError": "errors",
    "Pipelined": "pipelining",
    "Schedule": "orders",
    "Simulation": "simulation",
    "Task": "orders",
    "schedule": "scheduling",
    "simulate": "simulation",
    "verify": "simulation",
}

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
