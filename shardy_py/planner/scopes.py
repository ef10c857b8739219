"""Scopes of a program that has not been partitioned, as `plan/partitioner` will have them."""

from __future__ import annotations

from typing import Self

from shardy_py.ir import Value
from shardy_py.plan import scopes


class Scope(scopes.Scope):
    """A scope with the executions that work is counted with."""

    def __init__(self, trips: int | None, runs: int, changing: set[Value] | None, around: Self | None = None) -> None:
        super().__init__(trips, changing, around)
        self.runs = runs
