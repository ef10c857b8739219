"""What a plan says about cost."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from shardy_py.cost.hardware import Hardware
    from shardy_py.plan.as_run import AsRun
    from shardy_py.plan.cost_analysis import CostAnalysis
    from shardy_py.plan.memory_analysis import MemoryAnalysis
    from shardy_py.plan.plan import Plan
    from shardy_py.plan.predicted import Predicted


class Costs:
    """What `Plan` offers on cost; loaded when it is asked for."""

    @functools.cached_property
    def _as_run(self) -> AsRun:
        """What XLA runs under `lowering="jit"`."""
        from shardy_py.plan.as_run import as_run

        plan = cast("Plan", self)
        return as_run(plan.program, plan.propagation)

    @functools.cached_property
    def _predicted(self) -> tuple[Predicted, ...]:
        """The collectives that XLA's partitioner is predicted to make, each with its place."""
        from shardy_py.plan.as_run import predicted

        plan = cast("Plan", self)
        return predicted(plan.program, plan._as_run, lambda value: plan._names.get(value) or value.name or "")

    def cost_analysis(self, hardware: str | Hardware | None = None, links: Mapping[str, object] | None = None) -> CostAnalysis:
        """What one call costs on one device: operations, bytes, communication, and seconds by a roofline.

        Args:
            hardware: A name (`"h100"`, `"v5p"`, see `shardy_py.cost.hardware_table`) or a `shardy_py.Hardware` of your own; None for
                operations and bytes only.
            links: Mesh axis -> what it lies on, `"ici"` (or `"nvlink"`), `"dcn"` (or `"network"`), or a `shardy_py.Links`; of
                axes that are left out `shardy_py.cost.links.lay_out` decides.

        Returns:
            The analysis; as a mapping it has the names of `jax.stages.Compiled.cost_analysis()`.

        Raises:
            HardwareError: Such hardware is not known.
            LinkError: The links do not fit the mesh.
        """
        from shardy_py.plan.costing import analyse

        return analyse(cast("Plan", self), hardware, links)

    def memory_analysis(self, hardware: str | Hardware | int | None = None, *, compiler: str | None = None) -> MemoryAnalysis:
        """The memory that one call takes on one device, from liveness over the program; nothing is compiled.

        Args:
            hardware: What it should fit on: a name (`"h100"`, `"v5e"`), a `Hardware` of your own, or a number of bytes.
            compiler: Whose ways to follow: `"cpu"`, which is compared with XLA in docs/memory.md, or `"accelerator"`. By default the
                latter where `hardware` is a name or a `Hardware`, or the plan is for another platform than CPUs.

        Returns:
            Sizes under the names of `jax.stages.Compiled.memory_analysis()`, the peak, where it is and what it is made of, and the
            bytes at every step.

        Raises:
            HardwareError: Such hardware is not known.
            CompilerError: Such a compiler is not known.
        """
        from shardy_py.plan.memory_analysis import analyse

        return analyse(cast("Plan", self), hardware, compiler)
