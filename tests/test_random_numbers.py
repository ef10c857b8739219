"""Random programs compute the same on eight devices as without shardings, under both lowerings."""

from __future__ import annotations

import pytest

from tests.random_numbers import TYPES, difference, text_of_seed
from tests.sweep.running import PROGRAM, check, sweep

QUICK = 8
MANY = 32


@pytest.mark.parametrize("seed", range(QUICK))
def test_random_numbers(seed: int) -> None:
    text = text_of_seed(seed)
    found = difference(text)
    assert not found, f"{found}\n{text}"


def test_quotient_of_a_sum_that_is_zero_but_for_rounding() -> None:
    assert not difference(text_of_seed(365), ("shard_map",))


@pytest.mark.slow
def test_many_random_numbers() -> None:
    check(sweep((PROGRAM, seed) for seed in range(QUICK, QUICK + MANY)))


def test_types_of_arguments_vary() -> None:
    texts = [text_of_seed(seed) for seed in range(30)]
    for dtype in TYPES.values():
        assert sum(f", {dtype!r})" in text for text in texts) > 1
