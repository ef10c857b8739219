"""Dual ascent by messages between tables that share classes: a bound, and prices of entries, at a fraction of a linear program's cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .relaxation import Link, Prices, Program

Array = Any

SLOW = 0.01  # Of the way that is left, in a round: when it ends.
PASSES = 5  # Between two looks at the moves, which cost as much as several passes.


@dataclass(frozen=True, slots=True)
class _Node:
    """A class shared by tables, or a table contained in others.

    Attributes:
        links: To the tables that share it.
        later: Per link, whether its table shares something that comes later.
        earlier: Per link, whether its table shares something that comes earlier.
    """

    links: tuple[Link, ...]
    later: tuple[bool, ...]
    earlier: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class _Uses:
    """The tables that decide on a move.

    Attributes:
        column: The move's column.
        rows: Per table that needs it, the number of its row.
        needs: Per such table, the slice of its columns and the entries in it that need the move.
        makes: Per table that may have it at hand, its slice, and the entries that do.
    """

    column: int
    rows: tuple[int, ...]
    needs: tuple[tuple[slice, Array], ...]
    makes: tuple[tuple[slice, Array], ...]


class Ascent:
    """Raises the bound of a program by shifting costs between tables; sequential reweighted message passing, and shares of moves.

    Every step keeps the cost of each assignment, so the bound holds whenever it stops.

    Args:
        of: The program.
        unsupported: A cost above that of the best assignment, for what no entry of a table agrees with.
    """

    def __init__(self, of: Program, unsupported: float) -> None:
        self.of = of
        self.unsupported = unsupported
        by_child: dict[int, list[Link]] = {}
        for link in of.links:
            by_child.setdefault(link.child.start, []).append(link)
        order = sorted(by_child)
        place = {child: n for n, child in enumerate(order)}
        children: dict[int, list[int]] = {}
        for link in of.links:
            children.setdefault(link.parent.start, []).append(place[link.child.start])
        self.nodes = tuple(
            _Node(
                tuple(by_child[child]),
                tuple(max(children[link.parent.start]) > n for link in by_child[child]),
                tuple(min(children[link.parent.start]) < n for link in by_child[child]),
            )
            for n, child in enumerate(order)
        )
        self.uses = _uses(of)

    def run(self, prices: Prices, *, rounds: int, enough: float, end: float) -> Prices:
        """Raises the bound.

        Args:
            prices: Where to begin.
            rounds: The most rounds; it ends before when the bound hardly rises.
            enough: It ends when the bound is as high.
            end: It ends after the round in which `time.monotonic()` passes this.

        Returns:
            Prices with a bound at least as high.
        """
        current = Prices(prices.columns.copy(), prices.shares.copy(), prices.constant)
        bound = current.bound(self.of)
        for _ in range(rounds):
            for _ in range(PASSES):
                self._sweep(current.columns, self.nodes, forward=True)
                self._sweep(current.columns, self.nodes[::-1], forward=False)
            self._share_moves(current)
            before, bound = bound, current.bound(self.of)
            if time.monotonic() >= end or bound >= enough or bound - before <= SLOW * min(enough - before, abs(bound)):
                break
        return current

    def beliefs(self, prices: Prices) -> Array:
        """Per column of what tables share, the least cost of the tables around it, for rounding."""
        result = prices.columns.copy()
        for node in self.nodes:
            for link in node.links:
                result[link.child] += self._marginals(prices.columns, link)
        return result

    def _marginals(self, columns: Array, link: Link) -> Array:
        """The least price of a table's entries for each entry of what it shares."""
        least = np.minimum.reduceat(columns[link.parent][link.order], link.starts)
        if link.unsupported.any():
            least[link.unsupported] = self.unsupported
        return least

    def _sweep(self, columns: Array, nodes: Sequence[_Node], *, forward: bool) -> None:
        for node in nodes:
            child = node.links[0].child
            marginals = [self._marginals(columns, link) for link in node.links]
            total = columns[child] + sum(marginals)
            targets, sources = (node.later, node.earlier) if forward else (node.earlier, node.later)
            weight = 1.0 / max(sum(targets), sum(sources), 1)
            share = weight * total
            for link, marginal, target in zip(node.links, marginals, targets):
                columns[link.parent] += (share - marginal if target else -marginal)[link.places]
            columns[child] = total - sum(targets) * share

    def _share_moves(self, prices: Prices) -> None:
        """Divides the cost of each move among the tables that need it, by what each gains."""
        columns, shares, costs = prices.columns, prices.shares, self.of.costs
        for uses in self.uses:
            rows = list(uses.rows)
            before = shares[rows]
            total = float(before.sum())
            cost = float(costs[uses.column])
            # Where it is at hand nothing is saved, so that entries with it gain what the others pay: up to what they are above the least.
            most = min([cost, *(max(0.0, -_saving(columns[at], entries, -total)) for at, entries in uses.makes)])
            savings = [_saving(columns[at], entries, share) for (at, entries), share in zip(uses.needs, before)]
            gains = np.clip(savings, 0.0, cost)
            demand = float(gains.sum())
            divided = gains * (most / demand) if demand > most else gains + 0.5 * (most - demand) / len(rows)
            for (at, entries), change in zip(uses.needs, divided - before):
                if change:
                    columns[at][entries] += change
            change = float(divided.sum()) - total
            for at, entries in uses.makes:
                columns[at][entries] -= change
            shares[rows] = divided
            columns[uses.column] = cost - float(divided.sum())


def _saving(columns: Array, entries: Array, share: float) -> float:
    """How much less than the least of the others the least of some entries costs, without a share that it bears."""
    least, least_of_all = float(columns[entries].min()), float(columns.min())
    if least > least_of_all:  # Nearly always, and the cheaper case: the least of all is one of the others.
        return least_of_all - least + share
    others = columns.copy()
    others[entries] = np.inf
    return float(others.min()) - least + share


def _uses(of: Program) -> tuple[_Uses, ...]:
    """The tables that decide on each move."""
    matrix = of.moves.tocoo()
    table_of = np.repeat(np.arange(len(of.starts) - 1), np.diff(of.starts))
    slices = [slice(int(a), int(b)) for a, b in zip(of.starts[:-1], of.starts[1:])]
    is_move = matrix.col >= of.choices
    move_of_row = np.zeros(of.moves.shape[0], np.int64)
    move_of_row[matrix.row[is_move]] = matrix.col[is_move]
    # An entry that needs a move has +1 in the row of its table, one that has it at hand -1 in every row of the move.
    needing, making = ~is_move & (matrix.data > 0), ~is_move & (matrix.data < 0)
    needs: dict[int, list[tuple[int, slice, Array]]] = {}
    for row, columns in _grouped(matrix.row[needing], matrix.col[needing]):
        at = slices[table_of[columns[0]]]
        needs.setdefault(int(move_of_row[row]), []).append((row, at, columns - at.start))
    makes: dict[int, list[tuple[slice, Array]]] = {}
    for move, columns in _grouped(move_of_row[matrix.row[making]], matrix.col[making]):
        for table, entries in _grouped(table_of[np.unique(columns)], np.unique(columns)):
            makes.setdefault(move, []).append((slices[table], entries - slices[table].start))
    return tuple(
        _Uses(
            move,
            tuple(row for row, _, _ in needs[move]),
            tuple((at, entries) for _, at, entries in needs[move]),
            tuple(makes.get(move, ())),
        )
        for move in sorted(needs)
    )


def _grouped(keys: Array, values: Array) -> list[tuple[int, Array]]:
    """The values of each key, keys in order."""
    order = np.argsort(keys, kind="stable")
    distinct, begins = np.unique(keys[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(values[order], begins[1:]))) if len(distinct) else []
