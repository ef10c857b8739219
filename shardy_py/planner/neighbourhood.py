"""Neighbourhoods of a choice: the best strategies of some connected nodes, with all others fixed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .incumbent import Clock, Incumbent
from .master import integer, peaks, program
from .pairwise import Array, Pairwise, starts
from .reduce import Impossible, reduced, take_edges

# Entries of tables of a neighbourhood before it is reduced, and of what is then solved.
ENTRIES, REDUCED_ENTRIES = 60_000, 60_000
# Seconds of HiGHS for one neighbourhood, at most, and how near to its bound it ends.
SECONDS, GAP = 5.0, 1e-4


def conditioned(model: Pairwise, choice: Array, free: Array) -> Pairwise:
    """The model of some nodes, with the strategies of all others fixed.

    Args:
        model: The model.
        choice: Per node, its strategy.
        free: Per node, whether it stays open.

    Returns:
        The model of the open nodes, in their order; its costs lack those of fixed nodes and of edges between these.
    """
    number = np.cumsum(free) - 1
    columns = free[model.owners]
    place = np.cumsum(columns) - 1
    costs = model.costs[columns].copy()
    for side in (0, 1):
        here, there = model.edges[:, side], model.edges[:, 1 - side]
        (edges,) = np.nonzero(free[here] & ~free[there])
        lengths = model.sizes[here[edges]]
        of = np.repeat(np.arange(len(edges)), lengths)
        strategy = np.arange(len(of)) - starts(lengths)[:-1][of]
        edge = edges[of]
        width = model.sizes[model.edges[edge, 1]]
        fixed = choice[there[edge]]
        entry = np.where(side == 0, strategy * width + fixed, fixed * width + strategy)
        np.add.at(costs, place[model.columns[here[edge]] + strategy], model.tables[model.entries[edge] + entry])
    inner = take_edges(model, free[model.edges].all(1))
    chosen = (model.columns[:-1] + choice)[~free]
    indicator = np.zeros(len(model.costs))
    indicator[chosen] = 1.0
    return replace(
        inner,
        sizes=model.sizes[free],
        costs=costs,
        edges=number[inner.edges],
        events=model.events[:, np.nonzero(columns)[0]],
        base=model.base + model.events @ indicator,
    )


class Neighbourhoods:
    """Neighbourhoods of the incumbent, drawn by a fixed seed.

    Args:
        model: The model.
        incumbent: Its best choice so far.
        clock: The time that is left.
    """

    def __init__(self, model: Pairwise, incumbent: Incumbent, clock: Clock) -> None:
        self.model = model
        self.incumbent = incumbent
        self.clock = clock
        self.random = np.random.default_rng(0)
        ends = np.concatenate([model.edges, model.edges[:, ::-1]])
        self._ends = ends[np.argsort(ends[:, 0], kind="stable"), 1]
        self._begin = starts(np.bincount(ends[:, 0], minlength=len(model.sizes)))

    def draw(self, seeds: int) -> Array:
        """Per node, whether it belongs to balls around some nodes, as large as may be."""
        free = np.zeros(len(self.model.sizes), dtype=bool)
        queue = self.random.choice(len(free), min(seeds, len(free)), replace=False).tolist()
        size, position = 0, 0
        seen = set(queue)
        while position < len(queue) and size <= ENTRIES:
            node = queue[position]
            position += 1
            neighbours = self._ends[self._begin[node] : self._begin[node + 1]]
            size += int(self.model.sizes[node]) * int(self.model.sizes[neighbours[free[neighbours]]].sum())
            free[node] = True
            for other in self.random.permutation(neighbours).tolist():
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return free

    def improve(self, epochs: Array, seconds: float) -> int:
        """Solves neighbourhoods for some seconds.

        Returns:
            How many of them had a better choice.
        """
        end = max(self.clock.left() - seconds, 0.0)
        better = 0
        while self.clock.left() > end and self.incumbent.choice is not None:
            free = self.draw(int(self.random.integers(1, 5)))
            if not free.any():
                break
            choice = self.solve(free, epochs)
            if choice is not None:
                before = self.incumbent.cost
                better += self.incumbent.offer(choice) < before
        return better

    def solve(self, free: Array, epochs: Array) -> Array | None:
        """The incumbent with the best strategies of the free nodes; None where no better ones are found."""
        incumbent = self.incumbent.choice
        assert incumbent is not None
        try:
            small = reduced(conditioned(self.model, incumbent, free))
        except Impossible:
            return None
        inner = small.model
        strategies = np.zeros(0, dtype=np.int64)
        if len(inner.sizes):
            if len(inner.tables) > REDUCED_ENTRIES:
                return None
            scale = max(float(np.abs(inner.costs).max()), float(inner.tables.max(initial=0.0)), 1.0) / 1e4
            part = program(inner, np.ones(len(inner.costs), dtype=bool), scale)
            while True:
                choice_of_part, _, _ = integer(inner, part, epochs, min(SECONDS, self.clock.left()), GAP)
                if choice_of_part is None or self.clock.over():
                    return None
                more = peaks(inner.usage(choice_of_part), inner.limit, set(epochs.tolist()))
                if not len(more):
                    break
                epochs = np.concatenate([epochs, more])
            strategies = choice_of_part
        choice = incumbent.copy()
        choice[free] = small.expand(strategies)
        return choice
