"""The ways in which a sharding may move through an op."""

from __future__ import annotations

from enum import IntEnum

from shardy_py.errors import ParseError


class PropagationDirection(IntEnum):
    """None, forward (operands to results), backward (results to operands), or both; `|` and `&` combine them."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    BOTH = 3

    def union(self, other: PropagationDirection) -> PropagationDirection:
        """The directions that either allows."""
        return _DIRECTIONS[self.value | other.value]

    def intersection(self, other: PropagationDirection) -> PropagationDirection:
        """The directions that both allow."""
        return _DIRECTIONS[self.value & other.value]

    def __or__(self, other: int) -> PropagationDirection:
        return _DIRECTIONS[self.value | int(other)]

    def __and__(self, other: int) -> PropagationDirection:
        return _DIRECTIONS[self.value & int(other)]

    @classmethod
    def parse(cls, text: str) -> PropagationDirection:
        """Reads `FORWARD`, `forward`, ... Raises ParseError if there is no such direction."""
        try:
            return cls[text.strip().upper()]
        except KeyError:
            raise ParseError("expected a propagation direction", text, 0, fix="use NONE, FORWARD, BACKWARD or BOTH") from None

    def __str__(self) -> str:
        return self.name


_DIRECTIONS = tuple(PropagationDirection)
