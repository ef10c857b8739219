"""Filters of the values of a plan that its text shows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from shardy_py.dialect.format import short_location
from shardy_py.plan.patterns import check_length, names_path
from shardy_py.plan.record import PlanRecord
from shardy_py.plan.values import PlannedValue

if TYPE_CHECKING:
    from shardy_py.plan.findings import Finding
    from shardy_py.plan.reshards import Reshard

Where = str | Callable[[PlannedValue], object] | None


class Filter:
    """The conditions of `where=`.

    A string is looked for in paths, primitives, `file:line` and modules. With `*` or `?` it is a pattern (`plan/patterns`), for the last
    components of one of these or for all of it as it is printed. A function is asked of each value; movements and findings follow the
    values they name, and what they say of themselves. Raises TypeError if it is neither. Raises ShardyError if the string is too long.
    """

    def __init__(self, where: Where, plan: PlanRecord) -> None:
        if where is not None and not isinstance(where, str) and not callable(where):
            raise TypeError(f"where is {where!r}, a {type(where).__name__}; it is a string, as '*attention*', or a function of a value")
        self.where = where
        self._matches = _matcher(where) if isinstance(where, str) else None
        self._paths = {value.path for value in plan.values if where(value)} if callable(where) else set()
        self._modules = {value.path: value.module for value in plan.values if value.module} if isinstance(where, str) else {}

    def value(self, value: PlannedValue) -> bool:
        """Whether a value is shown."""
        if self.where is None:
            return True
        if self._matches is None:
            return value.path in self._paths
        return self._any(value.path, value.primitive, value.module, value.location)

    def reshard(self, reshard: Reshard) -> bool:
        """Whether a reshard is shown."""
        return self.moved(reshard.value, reshard.primitive, reshard.location)

    def moved(self, value: str, primitive: str, location: str, module: str = "") -> bool:
        """Whether a movement of a value is shown, which a primitive asks for at a line of a module."""
        if self.where is None:
            return True
        return value in self._paths if self._matches is None else self._any(value, primitive, module or self._module(value), location)

    def finding(self, finding: Finding) -> bool:
        """Whether a finding is shown."""
        if self.where is None:
            return True
        if self._matches is None:
            return not self._paths.isdisjoint(finding.all_paths)
        return any(self._any(path, finding.kind, self._module(path), finding.location) for path in finding.all_paths)

    def _module(self, path: str) -> str:
        return self._modules.get(path, "")

    def _any(self, path: str, name: str, module: str, location: str) -> bool:
        assert self._matches is not None
        return any(text and self._matches(text) for text in (path, name, module, short_location(location), location))


def _matcher(pattern: str) -> Callable[[str], object]:
    check_length(pattern, "where")
    if not any(char in pattern for char in "*?"):
        return lambda text: pattern in text
    return functools.partial(names_path, pattern)
