from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from shardy_py.pipelines.assignment import SLACK, balanced


def loads(costs: list[float], cuts: tuple[int, ...]) -> list[float]:
    ends = [0, *cuts, len(costs)]
    return [sum(costs[a:b]) for a, b in itertools.pairwise(ends)]


@given(st.data(), st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.integers(1, 4), st.sampled_from([0.0, 0.5, 3.0]))
def test_no_cut_is_better(data: st.DataObject, costs: list[float], stages: int, rate: float) -> None:
    stages = min(stages, len(costs))
    crossing = data.draw(st.lists(st.integers(0, 5), min_size=len(costs), max_size=len(costs)))
    found = tuple(balanced(costs, crossing, stages, seconds_per_byte=rate))
    every = list(itertools.combinations(range(1, len(costs)), stages - 1))
    assert found in every

    def slowest(cuts: tuple[int, ...]) -> float:
        return max(*loads(costs, cuts), *(rate * crossing[cut] for cut in cuts), 0.0)

    least = min(map(slowest, every))
    assert slowest(found) <= least * SLACK * (1 + 1e-6)
    good = [cuts for cuts in every if slowest(cuts) <= least * SLACK * (1 - 1e-6)]
    assert sum(crossing[c] for c in found) <= min(sum(crossing[c] for c in cuts) for cuts in good or [found])


def test_fewer_bytes_decide_among_equals() -> None:
    assert balanced([1, 1, 1, 1, 1, 1], [9, 9, 9, 1, 9, 9], 2) == [3]
    assert balanced([1.0, 1.0, 0.001, 0.001, 1.0, 1.0], [9, 9, 9, 2, 1, 9], 2) == [4]
