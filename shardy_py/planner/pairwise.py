"""Pairwise models as arrays: nodes with strategies, edges with tables of costs, and a limit on usage over time.

Strategies of all nodes are numbered through as *columns*, entries of all tables as one array; every step of the solver is then a few
array operations over all nodes or edges at once, whatever their sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

Array = Any
Matrix = Any


def starts(lengths: Array) -> Array:
    """Offsets of consecutive pieces, with the total length as the last one."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def ragged(lengths: Array) -> tuple[Array, Array]:
    """For pieces laid end to end, the piece of every position and the position inside its piece."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, np.arange(len(owner)) - np.repeat(starts(lengths)[:-1], lengths)


@dataclass(frozen=True, eq=False)
class Layout:
    """Rows and columns of all tables, numbered through.

    Attributes:
        edge: Per entry, its edge.
        row: Per entry, its row.
        column: Per entry, its column.
        row_edges: Per row, its edge.
        row_columns: Per row, the column of the model that it belongs to: a strategy of the edge's first node.
        column_edges: Per column, its edge.
        column_columns: Per column, the column of the model that it belongs to: a strategy of the edge's second node.
    """

    edge: Array
    row: Array
    column: Array
    row_edges: Array
    row_columns: Array
    column_edges: Array
    column_columns: Array


@dataclass(frozen=True, eq=False)
class Pairwise:
    """Choose a strategy for each node: least cost of nodes and edges, usage at no epoch above the limit.

    Attributes:
        sizes: Per node, the number of its strategies.
        costs: Per column, its cost; infinite where the strategy is forbidden.
        edges: Per edge, its two nodes; an array of shape (edges, 2).
        tables: The entries of all edges, row by row, edge after edge; infinite where a pair is forbidden.
        events: Changes of usage, a sparse matrix of shape (epochs, columns): the usage of an epoch is the sum of the changes up to it.
        base: Per epoch, the change of usage that no choice affects.
        limit: The most that may be in use at an epoch.
    """

    sizes: Array
    costs: Array
    edges: Array
    tables: Array
    events: Matrix
    base: Array
    limit: float

    @cached_property
    def columns(self) -> Array:
        """Per node, the number of its first column; then the number of columns."""
        return starts(self.sizes)

    @cached_property
    def owners(self) -> Array:
        """Per column, its node."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def entries(self) -> Array:
        """Per edge, the position of its first entry; then the number of entries."""
        return starts(self.sizes[self.edges[:, 0]] * self.sizes[self.edges[:, 1]])

    @cached_property
    def layout(self) -> Layout:
        """The positions of the entries of all tables in flat arrays."""
        first, second = self.edges[:, 0], self.edges[:, 1]
        edge, local = ragged(self.sizes[first] * self.sizes[second])
        width = self.sizes[second][edge]
        row = local // width
        column = local - row * width
        of_row, row_local = ragged(self.sizes[first])
        of_column, column_local = ragged(self.sizes[second])
        return Layout(
            edge=edge,
            row=starts(self.sizes[first])[:-1][edge] + row,
            column=starts(self.sizes[second])[:-1][edge] + column,
            row_edges=of_row,
            row_columns=self.columns[first][of_row] + row_local,
            column_edges=of_column,
            column_columns=self.columns[second][of_column] + column_local,
        )

    def cost(self, choice: Array) -> float:
        """The cost of a choice, a strategy for each node."""
        first, second = self.edges[:, 0], self.edges[:, 1]
        chosen = self.entries[:-1] + choice[first] * self.sizes[second] + choice[second]
        return float(self.costs[self.columns[:-1] + choice].sum() + self.tables[chosen].sum())

    def usage(self, choice: Array) -> Array:
        """Per epoch, the usage of a choice."""
        chosen = np.zeros(len(self.costs))
        chosen[self.columns[:-1] + choice] = 1.0
        return np.cumsum(self.base + self.events @ chosen)

    def rows(self, epochs: Array) -> Array:
        """Usage of every column at some epochs, an array of shape (epochs, columns)."""
        upto = (np.asarray(epochs)[:, None] >= np.arange(len(self.base))[None, :]).astype(float)
        return np.ascontiguousarray((self.events.T @ upto.T).T)

    def room(self, epochs: Array) -> Array:
        """The room that the limit leaves to the choices at some epochs."""
        return self.limit - np.cumsum(self.base)[epochs]


def pairwise(costs: list[Array], usages: list[Array], intervals: Array, edges: Array, tables: Array, limit: float | None) -> Pairwise:
    """A model from usages over intervals of time.

    Only epochs count at which intervals begin that none of the following ones ends before: usage is largest there.

    Args:
        costs: Per node, the costs of its strategies.
        usages: Per node, the usages of its strategies.
        intervals: Per node, the first time at which it is in use and the first one at which it no longer is.
        edges: Per edge, its two nodes.
        tables: The entries of all edges, row by row.
        limit: The most that may be in use at any time; None where there is no limit.

    Returns:
        The model.
    """
    sizes = np.array([len(c) for c in costs], dtype=np.int64)
    usage = np.concatenate([np.asarray(u, dtype=float) for u in usages]) if len(sizes) else np.zeros(0)
    intervals = np.asarray(intervals, dtype=np.int64).reshape(-1, 2)
    live = intervals[intervals[:, 0] < intervals[:, 1]]
    begins, ends = np.unique(live[:, 0]), np.unique(live[:, 1])
    if limit is None:
        peaks = begins[:0]
    else:
        following = np.append(begins[1:], np.iinfo(np.int64).max)
        peaks = begins[np.searchsorted(ends, begins, side="right") < np.searchsorted(ends, following, side="right")]
    first, last = np.searchsorted(peaks, intervals[:, 0]), np.searchsorted(peaks, intervals[:, 1])
    owners = np.repeat(np.arange(len(sizes)), sizes)
    (used,) = np.nonzero((first < last)[owners] & (usage != 0))
    (ending,) = np.nonzero(last[owners[used]] < len(peaks))
    rows = np.concatenate([first[owners[used]], last[owners[used[ending]]]])
    values = np.concatenate([usage[used], -usage[used[ending]]])
    events = sparse.csc_matrix((values, (rows, np.concatenate([used, used[ending]]))), shape=(len(peaks), len(usage)))
    return Pairwise(
        sizes=sizes,
        costs=np.concatenate([np.asarray(c, dtype=float) for c in costs]) if len(sizes) else np.zeros(0),
        edges=np.asarray(edges, dtype=np.int64).reshape(-1, 2),
        tables=np.asarray(tables, dtype=float),
        events=events,
        base=np.zeros(len(peaks)),
        limit=np.inf if limit is None else float(limit),
    )
