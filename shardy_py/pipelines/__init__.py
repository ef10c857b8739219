"""A training step in stages, each a plan of its own (`sp.pipeline`), and schedules on paper.

Names are imported when they are first used: schedules need no JAX. The name is a plural, for
`shardy_py.pipeline` is the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardy_py.lazy import names_of

if TYPE_CHECKING:
    from shardy_py.pipelines.errors import PipelineError as PipelineError
    from shardy_py.pipelines.orders import Schedule as Schedule
    from shardy_py.pipelines.orders import Task as Task
    from shardy_py.pipelines.pipelining import Pipelined as Pipelined
    from shardy_py.pipelines.scheduling import schedule as schedule
    from shardy_py.pipelines.simulation import Simulation as Simulation
    from shardy_py.pipelines.simulation import simulate as simulate
    from shardy_py.pipelines.simulation import verify as verify

__all__, __getattr__, __dir__ = names_of(__name__)
