from __future__ import annotations

import itertools
import random

import pytest

from shardy_py.pipelines.scheduling import schedule
from shardy_py.pipelines.simulation import costs_of, predicted, simulate

SETTINGS = [
    ("1f1b", 2, 4, 1), ("1f1b", 4, 8, 1), ("gpipe", 4, 8, 1), ("zb-h1", 4, 8, 1), ("interleaved", 4, 8, 2), ("circular", 4, 8, 2),
    ("1f1b", 8, 8, 1), ("1f1b", 8, 32, 1), ("zb-h1", 8, 16, 1), ("zb-h2", 4, 16, 1), ("eager-1f1b", 4, 16, 1), ("1f1b", 4, 32, 1),
    ("interleaved", 4, 16, 4), ("circular", 2, 8, 2), ("gpipe", 2, 8, 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "stages", "microbatches"), [("1f1b", 4, 8), ("gpipe", 2, 16), ("zb-h1", 4, 8), ("zb-h2", 8, 16)])
def test_exact_at_unit_costs(name: str, stages: int, microbatches: int) -> None:
    made = schedule(name, stages, microbatches)
    assert predicted(made, costs_of(stages)) == simulate(made).makespan


def test_order_of_ten_configurations() -> None:
    """Sixteen layers of unequal cost, cut into stages and microbatches in ten ways: mean agreement over thirty draws."""
    draw = random.Random(0)
    shares = []
    for _ in range(30):
        layers = [draw.uniform(0.5, 2) for _ in range(16)]
        transfer = draw.choice([0, 0.05, 0.2, 0.5])
        times = []
        for name, meshes, count, virtual in draw.sample(SETTINGS, 10):
            size = 16 // (meshes * virtual)
            forward = [sum(layers[i : i + size]) * 32 / count for i in range(0, 16, size)]
            made = schedule(name, meshes, count, virtual)
            known = {"forward": forward, "transfer": transfer * 32 / count}
            times.append((predicted(made, costs_of(made.stages, **known)), simulate(made, **known).makespan))
        pairs = list(itertools.combinations(times, 2))
        shares.append(sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in pairs) / len(pairs))
    assert sum(shares) / len(shares) >= 0.9
