"""Sequential tree-reweighted message passing (TRW-S) on all tables of one shape and colour at once.

Nodes are coloured so that neighbours differ; the order of colours is the order of the passes, and nodes of one colour do not affect each
other in a pass. A message is then a minimum over a three-dimensional array for all edges between two colours whose tables have one shape.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from .pairwise import Array, Pairwise, ragged, starts


@dataclass(frozen=True, eq=False)
class Bound:
    """The state after a round of passes.

    Attributes:
        value: A lower bound on the cost of every choice.
        marginals: Per column, the cost that the messages put on it; least where they prefer it.
        choice: The choice that the messages lead to.
    """

    value: float
    marginals: Array
    choice: Array


@dataclass(frozen=True, eq=False)
class _Group:
    """Edges between two colours with tables of one shape; `low` is the end whose colour comes first."""

    edges: Array
    tables: Array
    low: slice
    high: slice


def coloured(nodes: int, edges: Array) -> Array:
    """A colour for each node, greedily, in order of falling degree."""
    degree = np.bincount(edges.ravel(), minlength=nodes)
    ends = np.concatenate([edges, edges[:, ::-1]])
    ends = ends[np.argsort(ends[:, 0], kind="stable")]
    begin = starts(degree)
    neighbours = [ends[begin[i] : begin[i + 1], 1] for i in range(nodes)]
    colours = np.full(nodes, -1)
    for i in np.argsort(-degree, kind="stable"):
        used = set(colours[neighbours[i]].tolist())
        colour = 0
        while colour in used:
            colour += 1
        colours[i] = colour
    return colours


class Messages:
    """Messages of a model, kept from round to round.

    Args:
        model: The model; its costs are finite.
    """

    def __init__(self, model: Pairwise) -> None:
        self.model = model
        nodes = len(model.sizes)
        self.colours = coloured(nodes, model.edges)
        self.count = int(self.colours.max()) + 1 if nodes else 0
        ends = self.colours[model.edges]
        self.turned = ends[:, 0] > ends[:, 1] if len(ends) else np.zeros(0, dtype=bool)
        self.low = np.where(self.turned, model.edges[:, 1], model.edges[:, 0])
        self.high = np.where(self.turned, model.edges[:, 0], model.edges[:, 1])
        low_size, high_size = model.sizes[self.low], model.sizes[self.high]
        order = np.lexsort((high_size, low_size, self.colours[self.high], self.colours[self.low]))
        keys = np.stack([self.colours[self.low], self.colours[self.high], low_size, high_size], 1)[order]
        (cuts,) = np.nonzero((keys[1:] != keys[:-1]).any(1))
        bounds = [0, *(cuts + 1).tolist(), len(order)] if len(order) else [0]
        self.low_slots, self.high_slots = starts(low_size[order]), starts(high_size[order])
        edge, local = ragged(low_size[order])
        self.low_columns = model.columns[self.low[order]][edge] + local
        edge, local = ragged(high_size[order])
        self.high_columns = model.columns[self.high[order]][edge] + local
        self.forward: list[list[_Group]] = [[] for _ in range(self.count)]
        self.backward: list[list[_Group]] = [[] for _ in range(self.count)]
        for begin, end in itertools.pairwise(bounds):
            edges = order[begin:end]
            c, d, h, w = keys[begin]
            entries = model.entries[edges][:, None] + np.arange(h * w)[None, :]
            flat = model.tables[entries]
            flipped = self.turned[edges]
            tables = np.where(flipped[:, None, None], flat.reshape(-1, w, h).transpose(0, 2, 1), flat.reshape(-1, h, w))
            group = _Group(
                edges,
                np.ascontiguousarray(tables),
                slice(self.low_slots[begin], self.low_slots[end]),
                slice(self.high_slots[begin], self.high_slots[end]),
            )
            self.forward[c].append(group)
            self.backward[d].append(group)
        self.to_low = np.zeros(len(self.low_columns))
        self.to_high = np.zeros(len(self.high_columns))
        later = np.bincount(self.low, minlength=nodes)
        earlier = np.bincount(self.high, minlength=nodes)
        weight = 1.0 / np.maximum(np.maximum(later, earlier), 1)
        self.weight = weight[model.owners]
        self.rest = 1.0 - earlier * weight
        column_colours = self.colours[model.owners]
        self.of_colour = [np.nonzero(column_colours == c)[0] for c in range(self.count)]
        place = np.zeros(len(model.owners), dtype=np.int64)
        for columns in self.of_colour:
            place[columns] = np.arange(len(columns))
        low_colour, high_colour = column_colours[self.low_columns], column_colours[self.high_columns]
        self.incoming = []
        for c in range(self.count):
            (low_slots,) = np.nonzero(low_colour == c)
            (high_slots,) = np.nonzero(high_colour == c)
            self.incoming.append((low_slots, place[self.low_columns[low_slots]], high_slots, place[self.high_columns[high_slots]]))
        self.firsts = []
        for c in range(self.count):
            (members,) = np.nonzero(self.colours == c)
            self.firsts.append((members, starts(model.sizes[members])[:-1]))

    def _gather(self, costs: Array, colour: int) -> Array:
        low_slots, low_place, high_slots, high_place = self.incoming[colour]
        columns = self.of_colour[colour]
        gathered = costs[columns]
        if len(low_slots):
            gathered = gathered + np.bincount(low_place, weights=self.to_low[low_slots], minlength=len(columns))
        if len(high_slots):
            gathered = gathered + np.bincount(high_place, weights=self.to_high[high_slots], minlength=len(columns))
        return gathered

    def run(self, costs: Array, rounds: int) -> Bound:
        """Passes forward and backward with some costs of the columns.

        Args:
            costs: Per column, its cost: that of the model, and what multipliers add.
            rounds: How many passes in each direction.

        Returns:
            The bound of the last pass, which holds for these costs.
        """
        beliefs = np.zeros(len(costs))
        bound = 0.0
        shares = np.zeros(len(costs))
        for _ in range(max(rounds, 1)):
            for c in range(self.count):
                columns = self.of_colour[c]
                shares[columns] = self._gather(costs, c) * self.weight[columns]
                for group in self.forward[c]:
                    m, h, w = group.tables.shape
                    push = shares[self.low_columns[group.low]] - self.to_low[group.low]
                    least = (group.tables + push.reshape(m, h, 1)).min(1)
                    least -= least.min(1, keepdims=True)
                    self.to_high[group.high] = least.ravel()
            bound = 0.0
            for c in range(self.count - 1, -1, -1):
                columns = self.of_colour[c]
                gathered = self._gather(costs, c)
                beliefs[columns] = gathered
                shares[columns] = gathered * self.weight[columns]
                members, firsts = self.firsts[c]
                bound += float(np.dot(self.rest[members], np.minimum.reduceat(gathered, firsts)))
                for group in self.backward[c]:
                    m, h, w = group.tables.shape
                    push = shares[self.high_columns[group.high]] - self.to_high[group.high]
                    least = (group.tables + push.reshape(m, 1, w)).min(2)
                    self.to_low[group.low] = least.ravel()
        return Bound(bound, beliefs, self._decode(costs))

    def excess(self, beliefs: Array) -> tuple[Array, Array]:
        """The excess cost of columns and entries over the least ones of their node or edge, after reparametrization by the messages.

        Args:
            beliefs: Per column, the marginal of the last pass.

        Returns:
            The excess per column, in the share that each of the node's chains of edges gets, and per entry of the model.
        """
        shares = beliefs * self.weight
        least = np.full(len(self.model.sizes), np.inf)
        np.minimum.at(least, self.model.owners, shares)
        entries = np.zeros(len(self.model.tables))
        for group in itertools.chain.from_iterable(self.forward):
            m, h, w = group.tables.shape
            low = (shares[self.low_columns[group.low]] - self.to_low[group.low]).reshape(m, h, 1)
            high = (shares[self.high_columns[group.high]] - self.to_high[group.high]).reshape(m, 1, w)
            value = group.tables + low + high
            value -= value.min((1, 2), keepdims=True)
            flipped = self.turned[group.edges]
            place = self.model.entries[group.edges][:, None] + np.arange(h * w)[None, :]
            entries[place[~flipped]] = value[~flipped].reshape(-1, h * w)
            entries[place[flipped]] = value[flipped].transpose(0, 2, 1).reshape(-1, h * w)
        return shares - least[self.model.owners], entries

    def _decode(self, costs: Array) -> Array:
        """A strategy for each node, colour after colour: exact costs to colours that have theirs, messages from the others."""
        choice = np.zeros(len(self.model.sizes), dtype=np.int64)
        exact = costs + np.bincount(self.low_columns, weights=self.to_low, minlength=len(costs))
        for c in range(self.count):
            columns = self.of_colour[c]
            members, firsts = self.firsts[c]
            values = exact[columns]
            least = np.repeat(np.minimum.reduceat(values, firsts), self.model.sizes[members])
            position = np.where(values == least, columns - self.model.columns[self.model.owners[columns]], np.iinfo(np.int64).max)
            choice[members] = np.minimum.reduceat(position, firsts)
            for group in self.forward[c]:
                rows = group.tables[np.arange(len(group.edges)), choice[self.low[group.edges]]]
                np.add.at(exact, self.high_columns[group.high], rows.ravel())
        return choice


def finite(model: Pairwise) -> Pairwise:
    """The model with a finite cost, above that of every allowed choice, in place of the infinite ones of tables."""
    allowed = np.isfinite(model.tables)
    if allowed.all():
        return model
    largest = np.zeros(len(model.edges))
    np.maximum.at(largest, model.layout.edge[allowed], np.abs(model.tables[allowed]))
    of_nodes = np.zeros(len(model.sizes))
    np.maximum.at(of_nodes, model.owners, np.abs(model.costs))
    return replace(model, tables=np.where(allowed, model.tables, 1.0 + 2.0 * float(largest.sum() + of_nodes.sum())))
