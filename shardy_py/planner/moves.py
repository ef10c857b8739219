"""Local search on pairwise models: single moves, with usage and the cost of every alternative kept up to date."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .pairwise import Array, Pairwise, starts


class Walk:
    """A choice that changes strategy by strategy.

    Attributes:
        model: The model.
        choice: Per node, its strategy.
        usage: Per epoch, what the choice uses.
        near: Per column, the cost of its node and edges if the node chose it and all others stayed.
    """

    def __init__(self, model: Pairwise, choice: Array) -> None:
        self.model = model
        self.choice = np.array(choice, dtype=np.int64)
        ends = np.concatenate([model.edges[:, 0], model.edges[:, 1]])
        order = np.argsort(ends, kind="stable")
        self._begin = starts(np.bincount(ends, minlength=len(model.sizes)))
        self._edges = np.concatenate([np.arange(len(model.edges))] * 2)[order]
        self._indptr, self._indices, self._data = model.events.indptr, model.events.indices, model.events.data
        self.reset(choice)

    def reset(self, choice: Array) -> None:
        """Starts over from another choice."""
        model = self.model
        self.choice = np.array(choice, dtype=np.int64)
        self.usage = model.usage(self.choice)
        layout = model.layout
        near = model.costs.copy()
        if len(model.edges):
            first, second = model.edges[:, 0], model.edges[:, 1]
            row_local = layout.row_columns - model.columns[first][layout.row_edges]
            at = model.entries[layout.row_edges] + row_local * model.sizes[second][layout.row_edges] + self.choice[second][layout.row_edges]
            near += np.bincount(layout.row_columns, weights=model.tables[at], minlength=len(near))
            of = layout.column_edges
            column_local = layout.column_columns - model.columns[second][of]
            at = model.entries[of] + self.choice[first][of] * model.sizes[second][of] + column_local
            near += np.bincount(layout.column_columns, weights=model.tables[at], minlength=len(near))
        self.near = near

    def change_of_usage(self, node: int, strategy: int) -> tuple[int, Array]:
        """The first epoch at which usage would change, and the changes from there on up to the last."""
        column = self.model.columns[node]
        old, new = column + self.choice[node], column + strategy
        a, b, c, d = self._indptr[old], self._indptr[old + 1], self._indptr[new], self._indptr[new + 1]
        where = np.concatenate([self._indices[a:b], self._indices[c:d]])
        if not len(where):
            return 0, np.zeros(0)
        what = np.concatenate([-self._data[a:b], self._data[c:d]])
        low = int(where.min())
        change = np.cumsum(np.bincount(where - low, weights=what))
        rest = change[-1]
        if rest:
            change = np.concatenate([change, np.full(len(self.usage) - low - len(change), rest)])
        return low, change

    def fits(self, node: int, strategy: int) -> bool:
        """Whether the limit holds after a move, at every epoch where the move uses more."""
        low, change = self.change_of_usage(node, strategy)
        more = change > 0
        return not more.any() or bool((self.usage[low : low + len(change)] + change)[more].max() <= self.model.limit)

    def move(self, node: int, strategy: int) -> None:
        """Gives a node another strategy."""
        model = self.model
        old = int(self.choice[node])
        low, change = self.change_of_usage(node, strategy)
        self.usage[low : low + len(change)] += change
        for edge in self._edges[self._begin[node] : self._begin[node + 1]].tolist():
            first, second = model.edges[edge].tolist()
            width = int(model.sizes[second])
            table = model.tables[model.entries[edge] : model.entries[edge + 1]].reshape(-1, width)
            if first == node:
                other, difference = second, table[strategy] - table[old]
            else:
                other, difference = first, table[:, strategy] - table[:, old]
            begin = model.columns[other]
            self.near[begin : begin + model.sizes[other]] += difference
        self.choice[node] = strategy

    def improve(self, extra: Array | None = None, stop: Callable[[], bool] = lambda: False) -> bool:
        """Single moves that cost less and keep the limit, the best first, until none is left.

        Args:
            extra: Per column, what is added to its cost: multipliers times usage.
            stop: Whether time is up.

        Returns:
            Whether any move was made.
        """
        model = self.model
        moved = False
        refused = np.zeros(len(self.near), dtype=bool)
        while True:
            value = self.near if extra is None else self.near + extra
            current = value[model.columns[:-1] + self.choice]
            gain = np.repeat(current, model.sizes) - value
            gain[refused] = 0.0
            (better,) = np.nonzero(gain > 1e-9 * np.abs(np.repeat(current, model.sizes)) + 1e-9)
            if not len(better) or stop():
                return moved
            order = better[np.lexsort((better, -gain[better]))]
            moved_nodes: set[int] = set()
            accepted = 0
            for column in order.tolist():
                node = int(model.owners[column])
                if node in moved_nodes:
                    continue
                now = int(model.columns[node] + self.choice[node])
                saved = self.near[now] - self.near[column]
                if extra is not None:
                    saved += extra[now] - extra[column]
                if saved <= 1e-9 * abs(self.near[now]) + 1e-9:
                    continue
                strategy = column - int(model.columns[node])
                if self.fits(node, strategy):
                    self.move(node, strategy)
                    moved_nodes.add(node)
                    accepted += 1
                else:
                    refused[column] = True
            if accepted:
                moved = True
                refused[:] = False if accepted > len(order) // 20 else refused
            else:
                return moved

    def repair(self, stop: Callable[[], bool] = lambda: False, patience: int = 3000) -> bool:
        """Single moves until usage is under the limit, each the cheapest per unit freed at the fullest epoch.

        Returns:
            Whether the limit holds now.
        """
        model = self.model
        for _ in range(patience):
            worst = int(np.argmax(self.usage)) if len(self.usage) else 0
            if not len(self.usage) or self.usage[worst] <= model.limit:
                return True
            if stop():
                return False
            row = model.rows(np.array([worst]))[0]
            excess = self.usage[worst] - model.limit
            now = model.columns[:-1] + self.choice
            freed = np.repeat(row[now], model.sizes) - row
            price = self.near - np.repeat(self.near[now], model.sizes)
            (useful,) = np.nonzero((freed > 0) & np.isfinite(price))
            ratio = np.where(price[useful] > 0, price[useful] / np.minimum(freed[useful], excess), price[useful] * freed[useful])
            moved_nodes: set[int] = set()
            for column in useful[np.lexsort((useful, ratio))][:200].tolist():
                node = int(model.owners[column])
                strategy = column - int(model.columns[node])
                if node not in moved_nodes and self._never_worse(node, strategy):
                    self.move(node, strategy)
                    moved_nodes.add(node)
                    if len(moved_nodes) >= 20 or self.usage[worst] <= model.limit:
                        break
            if not moved_nodes:
                return False
        return False

    def _never_worse(self, node: int, strategy: int) -> bool:
        low, change = self.change_of_usage(node, strategy)
        usage = self.usage[low : low + len(change)]
        more = change > 0
        return not more.any() or bool((usage + change)[more].max() <= max(self.model.limit, 0.0))


def least_usage(model: Pairwise) -> Array:
    """The choice that uses least over time, strategy by strategy; of equal ones the cheapest."""
    epochs = len(model.base)
    weights = np.arange(epochs, 0, -1, dtype=float)
    total = np.asarray(model.events.T @ weights) if epochs else np.zeros(len(model.costs))
    order = np.lexsort((model.costs, total, model.owners))
    return order[model.columns[:-1]] - model.columns[:-1]
