"""The values that the collectives of a region move: numbers in name stacks while it is traced and rewritten, a table afterwards.

A pass may write one collective as several, in a loop or behind it, and with variables of its own; JAX keeps the name stack through all of
it. The numbers are gone from what is lowered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn
from jax.extend.source_info_util import extend_name_stack

from shardy_py.backends.local.jaxpr_rewriting import rewrite_bodies
from shardy_py.ir import Value

_SCOPE = "region_movement="
_BESIDE = "overlapped"


@dataclass(frozen=True, slots=True)
class RegionMovement:
    """A movement of data in a region."""

    values: tuple[Value, ...]
    primitive: str
    overlapped: bool = False


MovedValues = Mapping[Any, RegionMovement]
"""The first result of a collective -> the movement that it is a part of."""


def overlapping() -> contextlib.AbstractContextManager[Any]:
    """A context in which collectives run while products compute that do not wait for them."""
    return extend_name_stack(f"{_SCOPE}{_BESIDE}")


class MovementRecorder:
    """Numbers the movements of a region."""

    def __init__(self) -> None:
        self.primitive = ""
        self._numbers: dict[RegionMovement, int] = {}

    def moving(self, values: Iterable[Value | None]) -> contextlib.AbstractContextManager[Any]:
        """A context in which collectives are of some values, for the primitive that is being traced."""
        movement = RegionMovement(tuple(value for value in values if value is not None), self.primitive)
        return extend_name_stack(f"{_SCOPE}{self._numbers.setdefault(movement, len(self._numbers))}")

    def read_off(self, jaxpr: Jaxpr, collectives: Collection[str]) -> tuple[Jaxpr, MovedValues]:
        """The jaxpr of a region without numbers in its name stacks, and the values that its collectives move."""
        movements, moved = list(self._numbers), dict[Any, RegionMovement]()

        def read(eqn: JaxprEqn) -> JaxprEqn:
            stack = eqn.source_info.name_stack
            numbers = [scope.name.removeprefix(_SCOPE) for scope in stack.stack if _is_number(scope)]
            if not numbers:
                return eqn
            if eqn.primitive.name in collectives:
                of = [movements[int(number)] for number in numbers if number != _BESIDE] or [RegionMovement((), eqn.primitive.name)]
                moved[eqn.outvars[0]] = replace(of[-1], overlapped=_BESIDE in numbers)
            unnumbered = stack[:0]
            for i, scope in enumerate(stack.stack):
                unnumbered = unnumbered if _is_number(scope) else unnumbered + stack[i : i + 1]
            return eqn.replace(source_info=eqn.source_info.replace(name_stack=unnumbered))

        return rewrite_bodies(jaxpr, lambda body: body.replace(eqns=list(map(read, body.eqns)))), moved


def _is_number(scope: Any) -> bool:
    return scope.name.startswith(_SCOPE)
