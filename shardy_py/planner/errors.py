"""Errors of the planner."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.errors import UserError


class PlannerInfeasible(UserError):
    """No plan can fit the memory budget: arguments and results alone take more, however they are sharded.

    Attributes:
        minimum_bytes: The least peak of the plans that were tried.
        budget_bytes: The budget.
        bound_bytes: No plan has a lower peak.
        contributors: The largest arrays at the least peak: name and bytes.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> double = sp.auto_shard(lambda x: x * 2, mesh={"x": 4}, planner=sp.Planner(hardware="v5e", memory_bytes=1 << 10))
        >>> try:
        ...     double.plan(jax.ShapeDtypeStruct((1024, 1024), jnp.float32))
        ... except sp.PlannerInfeasible as error:
        ...     print(error.bound_bytes >> 20, "MiB")
        2 MiB
    """

    minimum_bytes: int
    budget_bytes: int
    bound_bytes: int
    contributors: tuple[tuple[str, int], ...]

    def __init__(
        self,
        what: str,
        *,
        minimum_bytes: int = 0,
        budget_bytes: int = 0,
        bound_bytes: int = 0,
        contributors: Sequence[tuple[str, int]] = (),
        **parts: str,
    ) -> None:
        super().__init__(what, **parts)
        self.minimum_bytes = minimum_bytes
        self.budget_bytes = budget_bytes
        self.bound_bytes = bound_bytes
        self.contributors = tuple(contributors)


class PlannerBudgetError(PlannerInfeasible):
    """No plan was found that fits the memory budget, and yet there may be one.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> total = sp.auto_shard(lambda x: jnp.sum(x @ x), mesh={"x": 4}, planner=sp.Planner(hardware="v5e", memory_bytes=3 << 19))
        >>> try:
        ...     total.plan(jax.ShapeDtypeStruct((1024, 1024), jnp.float32))
        ... except sp.PlannerBudgetError as error:
        ...     print(error.bound_bytes <= error.budget_bytes < error.minimum_bytes)
        True
    """
