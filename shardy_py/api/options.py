"""`Options`: propagation, platform, checks, and arrays that do not fit their annotations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from jax.sharding import AbstractMesh, Mesh

from shardy_py.cost.hardware import PLATFORMS, platform_named
from shardy_py.dialect.semantics import VERSIONS
from shardy_py.errors import SpecError, did_you_mean
from shardy_py.frontends.context import device_platform
from shardy_py.plan.progress import Progress
from shardy_py.rules.rule_table import RuleTable


@dataclass(frozen=True)
class Options:
    """Options of planning; the defaults are those of Shardy inside JAX.

    Attributes:
        conservative: Never split a mesh axis, and never shard a dimension that its axes do not divide.
        strategy: The settlement of conflicts: `basic` keeps what all agree on, `aggressive` resolves more conflicts.
        op_priority: Propagate element-wise ops first, then others, in stages.
        rule_table: Rules by primitive name or custom call target, used instead of the built-in ones.
        provenance: Keep the steps of the propagation, which `Plan.explain` needs.
        platform: The platform whose lowering is planned for, `cpu`, `cuda` (or `gpu`), `rocm` or `tpu`; by default the platform of
            the mesh's devices. A mesh without devices has those of a planner's hardware, or of the plan that `in_shardings` are, else
            `cpu`.
        peer_timeout: With several processes, the seconds that one waits for the others before the first run of a signature, when they
            compare their plans; None waits as long as the others live, 0 compares nothing.
        check: The treatment of findings that are warnings in the first run of a plan: `"warn"` says so once (`PlanWarning`), `"raise"`
            raises `PlanError`, `"off"` does not look for any.
        indivisible: Where an axis of a spec, of a rule or of a logical name does not divide its dimension: `"raise"` is a `SpecError`,
            `"drop"` leaves the dimension whole, or cut by the axes before that one, which is a finding.
        axis_types: On a mesh with Explicit axes, `"explicit"` traces the function on them, so that shardings are in types and bind, and
            `"auto"` on Auto axes. By default code that states shardings (`jax.reshard`, `out_sharding=`), or that does not run
            otherwise, is traced on Explicit axes, and any other on Auto axes.
        misplaced: Where a committed argument's sharding differs from `in_shardings`, rules or logical names: `"raise"` is a `SpecError`,
            `"move"` puts it there in each call.
        progress: True shows a line while a plan of more than a second is made, on a terminal or in a notebook, and nothing elsewhere; False
            shows none. A function is called with each `Progress` instead.
        overlap: Whether scans gather the parameters of the next trip while this one computes, and products run in pieces along a ring of
            devices while other pieces are sent, in place of an all_gather in front of them or a reduce_scatter behind: by default on
            TPUs where, by the prices of the chip, these would wait for longer than that costs; True wherever it can be, False nowhere.
        semantics: The jaxlib whose Shardy rules and passes follow, "0.10" or "0.12"; by default the installed one.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> options = sp.Options(conservative=True, platform="tpu")
        >>> step = sp.auto_shard(jnp.sin, mesh={"data": 4}, options=options)
        >>> step.options.platform
        'tpu'
    """

    conservative: bool = False
    strategy: Literal["basic", "aggressive", "basic-then-aggressive"] = "aggressive"
    op_priority: bool = True
    rule_table: RuleTable = field(default_factory=RuleTable)
    provenance: bool = True
    platform: str | None = None
    peer_timeout: float | None = None
    check: Literal["warn", "raise", "off"] = "warn"
    indivisible: Literal["raise", "drop"] = "raise"
    misplaced: Literal["raise", "move"] = "raise"
    axis_types: Literal["auto", "explicit"] | None = None
    progress: bool | Callable[[Progress], None] = True
    overlap: bool | None = None
    semantics: Literal["0.10", "0.12"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "platform", platform_named(self.platform))
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices and not (name in ("platform", "axis_types", "overlap", "semantics") and value is None):
                raise SpecError(
                    f"{name} is {value!r}",
                    where=f"Options({name}=...)",
                    why=f"it is one of {', '.join(map(repr, choices))}",
                    fix=did_you_mean(str(value), list(map(str, choices))),
                )
        if self.peer_timeout is not None and not (isinstance(self.peer_timeout, int | float) and self.peer_timeout >= 0):
            raise SpecError(
                f"peer_timeout is {self.peer_timeout!r}",
                where="Options(peer_timeout=...)",
                why="it is a number of seconds",
                fix="pass a number, 0 to compare nothing, or None to wait as long as the others live",
            )

        if not isinstance(self.progress, bool) and not callable(self.progress):
            raise SpecError(
                f"progress is {self.progress!r}",
                where="Options(progress=...)",
                why="it is True, False, or a function of a Progress",
                fix="pass progress=False to show nothing",
            )

    def platform_of(self, mesh: Mesh | AbstractMesh) -> str:
        """The platform to plan for.

        Args:
            mesh: The mesh that is planned for.
        """
        if self.platform is not None:
            return self.platform
        return device_platform(mesh.devices.flat[0]) if isinstance(mesh, Mesh) else "cpu"


_CHOICES = {
    "strategy": ("basic", "aggressive", "basic-then-aggressive"),
    "platform": PLATFORMS,
    "check": ("warn", "raise", "off"),
    "indivisible": ("raise", "drop"),
    "misplaced": ("raise", "move"),
    "axis_types": ("auto", "explicit"),
    "overlap": (True, False),
    "semantics": VERSIONS,
}
