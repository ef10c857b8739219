"""Dual ascent by messages between tables that share classes: a bound, and prices of entries, at a fraction of a linear program's cost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .relaxation import Link, Prices, Program

Array = Any

SLOW = 0.01  # Of the way that is left, in a round: when it ends.
PASSES = 5  # Between two looks at the moves, which cost as much as several passes.


@dataclass(frozen=True, slots=True)
class _Node:
    """A class shared by tables, or a table contained in others."""

    links: tuple[Link, ...]
    later: tuple[bool, ...]
    earlier: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class _Uses:
    """Moves no two of which concern the same table, with the tables that decide on them: those that need one, then those that make one.

    A pair is a move and such a table.

    Attributes:
        needing: The number of pairs whose table needs the move; the others may have it at hand.
        entries: The entries of tables, side by side, that need the move or have it at hand.
    """

    columns: Array
    needing: int
    rows: Array
    moves: Array
    firsts: Array
    tables: tuple[slice, ...]
    starts: Array
    entries: Array
    entry_starts: Array
    entry_columns: Array
    entry_pairs: Array


class Ascent:
    """Raises the bound of a program by shifting costs between tables; sequential reweighted message passing, and shares of moves.

    Every step keeps the cost of each assignment, so the bound holds whenever it stops.
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
        """Prices with a bound that is raised until it hardly rises, is `enough`, or `end` (`time.monotonic()`) has passed."""
        current = replace(prices, columns=prices.columns.copy(), equal=prices.equal.copy(), shares=prices.shares.copy())
        bound = current.bound(self.of)
        for _ in range(rounds):
            for _ in range(PASSES):
                self._sweep(current, self.nodes, forward=True)
                self._sweep(current, self.nodes[::-1], forward=False)
            self._share_moves(current)
            before, bound = bound, current.bound(self.of)
            if time.monotonic() >= end or bound >= enough or bound - before <= SLOW * min(enough - before, abs(bound)):
                break
        return current

    def _marginals(self, columns: Array, link: Link) -> Array:
        """The least price of a table's entries for each entry of what it shares."""
        least = np.minimum.reduceat(columns[link.parent][link.order], link.starts)
        if link.unsupported.any():
            least[link.unsupported] = self.unsupported
        return least

    def _sweep(self, prices: Prices, nodes: Sequence[_Node], *, forward: bool) -> None:
        columns = prices.columns
        for node in nodes:
            child = node.links[0].child
            marginals = [self._marginals(columns, link) for link in node.links]
            total = columns[child] + sum(marginals)
            targets, sources = (node.later, node.earlier) if forward else (node.earlier, node.later)
            weight = 1.0 / max(sum(targets), sum(sources), 1)
            share = weight * total
            for link, marginal, target in zip(node.links, marginals, targets):
                message = share - marginal if target else -marginal
                columns[link.parent] += message[link.places]
                prices.equal[link.rows] -= message
            columns[child] = total - sum(targets) * share

    def _share_moves(self, prices: Prices) -> None:
        """Divides the cost of each move among the tables that need it, by what each gains."""
        for uses in self.uses:
            _share(self.of.costs[uses.columns], prices, uses)


def _share(costs: Array, prices: Prices, uses: _Uses) -> None:
    """Divides the costs of moves of which no two concern the same table."""
    columns, needing = prices.columns, uses.needing
    move_of_need, move_of_make = uses.moves[:needing], uses.moves[needing:]
    before = prices.shares[uses.rows]
    totals = np.add.reduceat(before, uses.firsts)
    # How much less than the least of the others of its table the least of these entries costs, without a share that it bears.
    side_by_side = np.concatenate([columns[table] for table in uses.tables])
    least = np.minimum.reduceat(side_by_side[uses.entries], uses.entry_starts)
    side_by_side[uses.entries] = np.inf
    savings = np.minimum.reduceat(side_by_side, uses.starts) - least
    # Where it is at hand nothing is saved, so that entries with it gain what the others pay: up to what they are above the least.
    most = costs.copy()
    np.minimum.at(most, move_of_make, np.maximum(0.0, totals[move_of_make] - savings[needing:]))
    gains = np.clip(savings[:needing] + before, 0.0, costs[move_of_need])
    demands = np.add.reduceat(gains, uses.firsts)
    scales = np.divide(most, demands, out=np.ones_like(most), where=demands > most)
    spare = 0.5 * np.maximum(most - demands, 0.0) / np.bincount(move_of_need, minlength=len(costs))
    divided = gains * scales[move_of_need] + spare[move_of_need]
    after = np.add.reduceat(divided, uses.firsts)
    changes = np.concatenate([divided - before, (totals - after)[move_of_make]])
    columns[uses.entry_columns] += changes[uses.entry_pairs]
    prices.shares[uses.rows] = divided
    columns[uses.columns] = costs - after


def _uses(of: Program) -> tuple[_Uses, ...]:
    """The tables that decide on each move; in groups of moves that do not concern the same table, as few as come of the order of moves."""
    matrix = of.moves.tocoo()
    table_of = np.repeat(np.arange(len(of.starts) - 1), np.diff(of.starts))
    is_move = matrix.col >= of.choices
    move_of_row = np.zeros(of.moves.shape[0], np.int64)
    move_of_row[matrix.row[is_move]] = matrix.col[is_move]
    # An entry that needs a move has +1 in the row of its table, one that has it at hand -1 in every row of the move.
    needing, making = ~is_move & (matrix.data > 0), ~is_move & (matrix.data < 0)
    needs: dict[int, list[tuple[int, int, Array]]] = {}
    for row, columns in _grouped(matrix.row[needing], matrix.col[needing]):
        needs.setdefault(int(move_of_row[row]), []).append((row, int(table_of[columns[0]]), columns))
    makes: dict[int, list[tuple[int, Array]]] = {}
    for move, columns in _grouped(move_of_row[matrix.row[making]], matrix.col[making]):
        makes[move] = _grouped(table_of[np.unique(columns)], np.unique(columns))
    groups: list[list[int]] = []
    groups_of_table: dict[int, set[int]] = {}
    for move in sorted(needs):
        tables = {table for _, table, _ in needs[move]} | {table for table, _ in makes.get(move, ())}
        groups_of_tables = set[int]().union(*(groups_of_table.setdefault(table, set()) for table in tables))
        group = next(n for n in range(len(groups) + 1) if n not in groups_of_tables)
        if group == len(groups):
            groups.append([])
        groups[group].append(move)
        for table in tables:
            groups_of_table[table].add(group)
    return tuple(_together(of, moves, needs, makes) for moves in groups)


def _together(
    of: Program, moves: Sequence[int], needs: Mapping[int, list[tuple[int, int, Array]]], makes: Mapping[int, list[tuple[int, Array]]]
) -> _Uses:
    """Moves that do not concern the same table, with their tables."""
    need_pairs = [(place, table, columns, row) for place, move in enumerate(moves) for row, table, columns in needs[move]]
    make_pairs = [(place, table, columns) for place, move in enumerate(moves) for table, columns in makes.get(move, ())]
    pairs = [pair[:3] for pair in need_pairs] + make_pairs
    tables = np.array([table for _, table, _ in pairs])
    counts = np.array([len(columns) for _, _, columns in pairs])
    sizes = of.starts[tables + 1] - of.starts[tables]
    starts = np.cumsum(sizes) - sizes
    columns = np.concatenate([columns for _, _, columns in pairs])
    pair_of_entry = np.repeat(np.arange(len(pairs)), counts)
    return _Uses(
        np.array(moves),
        len(need_pairs),
        np.array([row for *_, row in need_pairs]),
        np.array([place for place, _, _ in pairs]),
        np.searchsorted([place for place, *_ in need_pairs], np.arange(len(moves))),
        tuple(slice(int(of.starts[table]), int(of.starts[table + 1])) for table in tables),
        starts,
        columns - (of.starts[tables] - starts)[pair_of_entry],
        np.cumsum(counts) - counts,
        columns,
        pair_of_entry,
    )


def _grouped(keys: Array, values: Array) -> list[tuple[int, Array]]:
    """The values of each key, keys in order."""
    order = np.argsort(keys, kind="stable")
    distinct, begins = np.unique(keys[order], return_index=True)
    return list(zip(distinct.tolist(), np.split(values[order], begins[1:]))) if len(distinct) else []
