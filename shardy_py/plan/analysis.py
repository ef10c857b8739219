"""Analyses of plans, computed on the first request and kept with the plan, as by MLIR's analysis manager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from shardy_py.plan.record import PlanRecord

T = TypeVar("T")


class Analysis(Generic[T]):
    """Decorates a function of a plan: its result is computed once per plan. A plan never changes, so results are never invalidated.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> from shardy_py.plan.analysis import Analysis
        >>> @Analysis
        ... def rank_of_first_input(plan):
        ...     return len(plan.inputs[0].shape)
        >>> plan = sp.auto_shard(lambda x: x * 2, mesh={"x": 2}).plan(jnp.ones((4, 4)))
        >>> rank_of_first_input.is_computed(plan), rank_of_first_input(plan), rank_of_first_input.is_computed(plan)
        (False, 2, True)
    """

    def __init__(self, compute: Callable[[PlanRecord], T]) -> None:
        self._compute = compute
        functools.update_wrapper(self, compute)

    def __call__(self, plan: PlanRecord) -> T:
        """The result for a plan."""
        if self not in plan.analyses:
            plan.analyses[self] = self._compute(plan)
        return cast(T, plan.analyses[self])

    def keep(self, plan: PlanRecord, result: T) -> None:
        """Has a result for a plan that differs from the computed one."""
        plan.analyses[self] = result

    def is_computed(self, plan: PlanRecord) -> bool:
        """Whether the result is at hand."""
        return self in plan.analyses
