from __future__ import annotations

import itertools

import pytest

from shardy_py.dialect import PropagationDirection
from shardy_py.errors import ParseError

NONE, FORWARD, BACKWARD, BOTH = PropagationDirection


def test_union_and_intersection() -> None:
    assert FORWARD.union(BACKWARD) is FORWARD | BACKWARD is BOTH
    assert BOTH.intersection(FORWARD) is BOTH & FORWARD is FORWARD
    assert FORWARD & BACKWARD is NONE
    for a, b in itertools.product(PropagationDirection, repeat=2):
        assert a.union(b) is b.union(a)
        assert a.intersection(b) is b.intersection(a)
        assert a.union(a.intersection(b)) is a
        assert a.intersection(a.union(b)) is a


def test_text() -> None:
    for direction in PropagationDirection:
        assert PropagationDirection.parse(str(direction)) is direction
    assert PropagationDirection.parse("forward") is FORWARD
    with pytest.raises(ParseError, match="use NONE, FORWARD, BACKWARD or BOTH"):
        PropagationDirection.parse("sideways")
