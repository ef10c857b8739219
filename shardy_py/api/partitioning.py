"""One partitioning per plan: for running it and for listing its collectives."""

from __future__ import annotations

from shardy_py.api.tracing import TracedCall
from shardy_py.backends.shard_map import Partitioned, partitioned
from shardy_py.frontends.jaxpr import Imported
from shardy_py.plan.collectives import Collective
from shardy_py.plan.plan import Plan


class Partitioning:
    """Makes the region of a plan when it is first asked for.

    Args:
        imported: The program after propagation.
        traced: What was planned.
    """

    def __init__(self, imported: Imported, traced: TracedCall) -> None:
        self.imported = imported
        self.traced = traced
        self._made: Partitioned | None = None

    def made(self, plan: Plan) -> Partitioned:
        """The traced jaxpr as one region of local arrays.

        Args:
            plan: The plan of it.
        """
        if self._made is None:
            view = self.traced.request.view
            with plan.timings.step("partition"):
                self._made = partitioned(
                    self.traced.jaxpr,
                    self.imported,
                    view.twin,
                    [v.sharding for v in plan.inputs],
                    [v.sharding for v in plan.outputs],
                    self.traced.request.settings.options.platform,
                    view.given,
                )
        return self._made

    def collectives(self, plan: Plan) -> tuple[Collective, ...]:
        """The collectives of the region.

        Args:
            plan: The plan of it.
        """
        return self.made(plan).collectives
