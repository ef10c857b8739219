"""Random pairwise models that are small enough to try every choice of."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from shardy_py.planner.pairwise import Pairwise, pairwise

Array = Any


def random_model(seed: int, nodes: int = 6, strategies: int = 4) -> Pairwise:
    """A model with forbidden pairs, functional edges, sums of rows and columns, parallel edges, equal strategies and a tight limit."""
    r = np.random.default_rng(seed)
    sizes = r.integers(1, strategies + 1, nodes)
    costs = [r.integers(0, 20, n).astype(float) for n in sizes]
    for c in costs:
        if len(c) > 1 and r.random() < 0.2:
            c[r.integers(len(c))] = np.inf
    usages = [r.integers(0, 10, n) if r.random() < 0.6 else np.full(n, r.integers(0, 10)) for n in sizes]
    begins = r.integers(0, 8, nodes)
    intervals = np.stack([begins, begins + r.integers(0, 6, nodes)], 1)
    edges, tables = [], []
    for _ in range(int(r.integers(0, 2 * nodes))):
        a, b = r.choice(nodes, 2, replace=False)
        kind = r.random()
        table = r.integers(0, 30, (sizes[a], sizes[b])).astype(float)
        if kind < 0.2:
            table = r.integers(0, 9, (sizes[a], 1)) + r.integers(0, 9, (1, sizes[b])).astype(float)
        elif kind < 0.4 and sizes[a] >= sizes[b]:
            image = r.permutation(np.arange(sizes[a]) % sizes[b])
            table[image[:, None] != np.arange(sizes[b])[None, :]] = np.inf
        elif kind < 0.6:
            table[r.random(table.shape) < 0.25] = np.inf
        edges.append((a, b))
        tables.append(table.ravel())
    live = [u.max(initial=0) for u, (begin, end) in zip(usages, intervals) if begin < end]
    limit = None if r.random() < 0.2 else float(np.sum(live) * r.uniform(0.2, 0.9))
    return pairwise(costs, usages, intervals, np.array(edges).reshape(-1, 2), np.concatenate([*tables, np.zeros(0)]), limit)


def best(model: Pairwise) -> float:
    """The least cost of all allowed choices, by trying each; infinite where there is none."""
    least = np.inf
    for choice in itertools.product(*(range(n) for n in model.sizes)):
        picked = np.array(choice, dtype=np.int64)
        cost = model.cost(picked)
        if cost < least and (model.usage(picked) <= model.limit).all():
            least = cost
    return least
