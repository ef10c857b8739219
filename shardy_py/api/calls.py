"""A call of a decorated function: the arguments of `auto_shard`, those of the call, and the mesh that it is planned for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jax.sharding import Mesh

from shardy_py.api.meshes import AnyMesh, MeshView
from shardy_py.api.signature import ArgumentSlots
from shardy_py.api.trees import location_of
from shardy_py.frontends.context import is_tracing
from shardy_py.plan.record import PlanRecord
from shardy_py.planner.meshes import ShapeSearch
from shardy_py.planner.options import Planner


@dataclass(frozen=True)
class Settings:
    """The arguments of `auto_shard`, checked once it decorates a function.

    Attributes:
        jit: Keywords that are passed to `jax.jit`.
        shapes: The search for the shape of the mesh, where the user states the number of devices only.
        spent: The seconds of the planner's time limit that are gone when planning begins; negative where others have left some.
    """

    fun: Any
    mesh: AnyMesh | int | None
    in_shardings: Any
    out_shardings: Any
    rules: Any
    logical_axis_rules: Any
    options: Any
    planner: Planner | None
    lowering: str
    static_argnums: int | Sequence[int] | None = None
    static_argnames: str | Iterable[str] | None = None
    donate_argnums: int | Sequence[int] | None = None
    donate_argnames: str | Iterable[str] | None = None
    jit: Mapping[str, Any] = field(default_factory=dict)
    shapes: ShapeSearch | None = None
    spent: float = 0.0

    def on(self, view: MeshView, *, runs: bool) -> Settings:
        """The same for the platform of a mesh: one without devices has those of the planner's hardware, or of this machine where it runs.

        Where `in_shardings` are a plan, it has those that the plan is for: else it would have other figures than the plan.

        Args:
            runs: Whether the plan runs here. A plan to look at must not depend on what this machine is, and has started.
        """
        if self.planner is not None:
            named = self.planner.machine.platform
        elif isinstance(self.in_shardings, PlanRecord):
            named = self.in_shardings.platform
        else:
            return self
        if self.options.platform is not None or isinstance(view.user_mesh, Mesh):
            return self
        here = (view.expected if is_tracing() else view.runnable()) if runs and view.from_mapping else view.user_mesh
        platform = self.options.platform_of(here) if isinstance(here, Mesh) else named
        return replace(self, options=replace(self.options, platform=platform))


@dataclass(frozen=True)
class UserCall:
    """A call of a function, its arguments in slots, for a mesh."""

    settings: Settings
    layout: ArgumentSlots
    slots: Sequence[Any]
    view: MeshView

    @functools.cached_property
    def location(self) -> str:
        """Where the function is defined, as `file:line (name)`."""
        return location_of(self.settings.fun)

    @property
    def place(self) -> str:
        """Where the function is defined, as `file:line`."""
        return self.location.partition(" (")[0]

    def run(self) -> Any:
        """Runs the function as it is."""
        return self.layout.call(self.settings.fun, self.slots)
