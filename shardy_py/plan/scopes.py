"""Scopes of a program: executions of its blocks, and the place of movements of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Self

from shardy_py.ir import Op, Value


class Scope:
    """A block, or the body of a call, which belongs to the block around it."""

    def __init__(self, trips: int | None, changing: set[Value] | None, around: Self | None = None) -> None:
        self.trips = trips
        self.changing = changing
        self.around: Self | None = around

    def outward(self) -> Iterator[Self]:
        """This scope and those around it, the innermost first."""
        scope: Self | None = self
        while scope is not None:
            yield scope
            scope = scope.around

    def hoisted(self) -> Iterator[Self]:
        """This scope and those around it that code can be moved to: out of loops, not out of branches."""
        for scope in self.outward():
            yield scope
            if scope.changing is None:
                return

    def hoist_scope(self, value: Value) -> Self:
        """The outermost scope in which a value does not change."""
        for scope in self.hoisted():
            if scope.changing is None or value in scope.changing or scope.around is None:
                return scope
        raise AssertionError("the outermost scope is no loop")

    def place(self, is_home: Callable[[Self], bool]) -> Self:
        """The outermost scope in which ops on a value can stand."""
        place = self
        for place in self.hoisted():
            if is_home(place):
                break
        return place

    def spread(self, op: Op, origin: Mapping[Value, Value]) -> None:
        """Marks the results of an op as changing where its operands change."""
        for scope in self.outward():
            inner = op.walk() if op.regions else (op,)
            if scope.changing and any(origin.get(v, v) in scope.changing for each in inner for v in each.operands):
                scope.changing.update(op.results)
                return
