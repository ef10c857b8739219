"""`Planner`: the options of a search for shardings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import scipy

from shardy_py.cost.hardware import Hardware
from shardy_py.cost.hardware_table import hardware as hardware_named
from shardy_py.cost.quantity import quantity
from shardy_py.errors import UserError
from shardy_py.plan.cost_analysis import Range
from shardy_py.plan.search import KeptAnnotations

_MEMORY = "Planner(memory_bytes=...)"


@dataclass(frozen=True)
class Planner:
    """Chooses the shardings that the user leaves open, and says how far from the best possible they are.

    Annotations stay. Costs are those of `Plan.cost_analysis`, peaks those of `Plan.memory_analysis`.

    Attributes:
        hardware: The accelerator that is planned for: a name (`"h100"`, `"v5e"`) or a `shardy_py.Hardware`.
        memory_bytes: The most that a device may hold at the peak, a number or `"16GiB"`; None is the memory of the hardware, `math.inf` no
            limit.
        time_limit_s: Seconds from the trace to the plan. When they are up, the best plan so far is the plan.
        gap: The search ends when (objective - lower bound) / objective is at most this.
        links: The links that mesh axes lie on, as in `Plan.cost_analysis`.
        overlap: The part of what may overlap that does: the objective is `high - overlap * (high - low)` of `step_seconds`.
        templates: Name -> input shardings, as `in_shardings` of `auto_shard`. What they leave open follows along ops; the search starts
            from these plans, gives none that costs more, and lists them as alternatives.
        constraints: Whether values inside are sharded too. With False only arguments and results are, and the rest follows by propagation,
            as it would from `in_shardings` and `out_shardings` of the user's.
        annotations: What the user's constraints on values inside are: `"keep"`, they hold; `"hint"`, the search starts from them; or
            `"ignore"`, they are left out. `in_shardings`, `out_shardings`, rules and groups always hold.
        fed: Patterns of paths of arguments that come from the host in every call, and of results that go back, such as `"batch['x']"` or
            `"batch*"`, where `plan.search.space` says otherwise; one text or several.
        resident: The same of what stays on the devices, as frozen parameters do. What `fed` names as well is fed.

    Raises:
        HardwareError: Such hardware is not known.
        UserError: An argument is out of range.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> layer = sp.auto_shard(lambda w, x: jnp.tanh(x @ w), mesh={"x": 4}, planner=sp.Planner(hardware="v5e"))
        >>> plan = layer.plan(jax.ShapeDtypeStruct((1024, 1024), jnp.float32), jax.ShapeDtypeStruct((65536, 1024), jnp.float32))
        >>> print(plan.inputs[1])
        x: float32[65536@x,1024]
    """

    hardware: str | Hardware
    memory_bytes: float | str | None = None
    time_limit_s: float = 10.0
    gap: float = 0.01
    links: Mapping[str, Any] | None = None
    overlap: float = 0.0
    templates: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    constraints: bool = True
    annotations: KeptAnnotations = "keep"
    fed: str | Sequence[str] = ()
    resident: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        hardware_named(self.hardware)
        ranges = {
            "memory_bytes": (
                self.memory_bytes is None or _number(quantity(self.memory_bytes, _MEMORY), 0, math.inf, open_below=True),
                'a positive number of bytes, or a text such as "16GiB"',
            ),
            "time_limit_s": (_number(self.time_limit_s, 0, math.inf), "a number of seconds, at least 0"),
            "gap": (_number(self.gap, 0, 1), "between 0 and 1"),
            "overlap": (_number(self.overlap, 0, 1), "between 0 and 1"),
            "constraints": (isinstance(self.constraints, bool), "True or False"),
            "annotations": (self.annotations in get_args(KeptAnnotations), '"keep", "hint" or "ignore"'),
        }
        for name in ("fed", "resident"):
            patterns = getattr(self, name)
            patterns = (patterns,) if isinstance(patterns, str) else patterns
            are_texts = isinstance(patterns, list | tuple) and all(isinstance(each, str) for each in patterns)
            ranges[name] = (are_texts, 'a pattern of paths, such as "batch*", or several')
            object.__setattr__(self, name, tuple(patterns) if are_texts else patterns)
        for name, (fits, range_) in ranges.items():
            if not fits:
                raise UserError(
                    f"{name} is {getattr(self, name)!r}", where=f"Planner({name}=...)", why="it is out of range", fix=f"pass {range_}"
                )

        if not isinstance(self.templates, Mapping) or not all(isinstance(name, str) for name in self.templates):
            raise UserError(
                f"templates is {self.templates!r}",
                where="Planner(templates=...)",
                why="it has a name and input shardings for each plan to start from",
                fix='write {"by rows": (P("x"), None)}',
            )
        _ = scipy.optimize  # SciPy imports it on first access: here, so that no search pays for it

    def objective(self, step: Range) -> float:
        """The seconds of a range that the planner minimizes.

        Args:
            step: As `CostAnalysis.step_seconds`.
        """
        return step.high - self.overlap * (step.high - step.low)

    @property
    def machine(self) -> Hardware:
        """The hardware."""
        return hardware_named(self.hardware)

    @property
    def budget(self) -> int | None:
        """The most bytes of a device; None without a limit."""
        limit = self.machine.hbm_bytes if self.memory_bytes is None else quantity(self.memory_bytes, _MEMORY)
        return None if math.isinf(limit) else int(limit)

    def fits(self, peak: int) -> bool:
        """Whether a peak is within the budget.

        Args:
            peak: Bytes of a device.
        """
        return self.budget is None or peak <= self.budget


def _number(value: Any, low: float, high: float, *, open_below: bool = False) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return False
    return (low < value if open_below else low <= value) and value <= high
