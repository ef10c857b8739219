"""Reduction of pairwise models: smaller ones whose best choice gives the best choice of the model.

Every reduction is exact. Most are a *selection*: new nodes stand for several old ones, and each new strategy names a strategy of each
of these. Costs, usage and tables follow from that in one product each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from .pairwise import Array, Pairwise, ragged, starts

# An elimination may enlarge tables up to this factor of what it removes; beyond it the model grows.
GROWTH = 1.0
# Comparing strategies costs rows * rows * columns of a table; larger tables are left out, and so are their nodes.
LARGEST_COMPARISON = 200_000


@dataclass(frozen=True, eq=False)
class Selection:
    """New nodes standing for old ones.

    Attributes:
        root: Per old node, the new node that stands for it.
        offset: Per old node, where its strategies begin in `strategies`.
        strategies: Per old node and strategy of its new node, the strategy of the old node.
    """

    root: Array
    offset: Array
    strategies: Array

    def expand(self, choice: Array) -> Array:
        """The choice of the old model that a choice of the new one stands for."""
        return self.strategies[self.offset + choice[self.root]]


@dataclass(frozen=True, eq=False)
class Elimination:
    """Nodes minimized out, with the answer for each choice of their neighbours.

    Attributes:
        remaining: The old numbers of the nodes of the new model.
        nodes: The old numbers of the eliminated nodes.
        neighbours: Per eliminated node, the old numbers of two neighbours, equal where it has one only.
        widths: Per eliminated node, the number of strategies of its second neighbour; 0 where it has one only.
        offset: Per eliminated node, where its answers begin.
        answers: Per node and pair of its neighbours' strategies, the node's best strategy.
    """

    remaining: Array
    nodes: Array
    neighbours: Array
    widths: Array
    offset: Array
    answers: Array

    def expand(self, choice: Array) -> Array:
        """The choice of the old model that a choice of the new one stands for."""
        old = np.zeros(len(self.remaining) + len(self.nodes), dtype=np.int64)
        old[self.remaining] = choice
        first, second = old[self.neighbours[:, 0]], old[self.neighbours[:, 1]]
        wide = np.where(self.widths > 0, first * self.widths + second, first)
        old[self.nodes] = self.answers[self.offset + wide]
        return old


@dataclass(frozen=True, eq=False)
class Reduced:
    """A smaller model, and the way back.

    Attributes:
        model: The smaller model.
        constant: The difference between its costs and those of the original.
        steps: The reductions, in order.
    """

    model: Pairwise
    constant: float
    steps: tuple[Selection | Elimination, ...]

    def expand(self, choice: Array) -> Array:
        """The choice of the original model that a choice of the smaller one stands for."""
        for step in reversed(self.steps):
            choice = step.expand(choice)
        return choice


class Impossible(ValueError):
    """No choice is allowed."""


def select(model: Pairwise, selection: Selection) -> Pairwise:
    """The model of the new nodes; an edge inside one of them becomes costs of its strategies."""
    nodes = int(selection.root.max()) + 1 if len(selection.root) else 0
    sizes = np.zeros(nodes, dtype=np.int64)
    lengths = np.diff(np.append(selection.offset, len(selection.strategies)))
    sizes[selection.root] = lengths
    columns = starts(sizes)
    old_node, local = ragged(lengths)
    old_column = model.columns[old_node] + selection.strategies
    new_column = columns[selection.root[old_node]] + local
    costs = np.bincount(new_column, weights=model.costs[old_column], minlength=columns[-1]).astype(float)
    incidence = sparse.csc_matrix((np.ones(len(old_column)), (old_column, new_column)), shape=(len(model.costs), int(columns[-1])))
    events = sparse.csc_matrix(model.events @ incidence)
    events.eliminate_zeros()

    first, second = model.edges[:, 0], model.edges[:, 1]
    inner = selection.root[first] == selection.root[second]
    (loops,) = np.nonzero(inner)
    if len(loops):
        edge, local = ragged(lengths[first[loops]])
        e = loops[edge]
        row = selection.strategies[selection.offset[first[e]] + local]
        column = selection.strategies[selection.offset[second[e]] + local]
        values = model.tables[model.entries[e] + row * model.sizes[second[e]] + column]
        costs += np.bincount(columns[selection.root[first[e]]] + local, weights=values, minlength=columns[-1])
    (between,) = np.nonzero(~inner)
    first, second = first[between], second[between]
    edge, local = ragged(lengths[first] * lengths[second])
    width = lengths[second][edge]
    row = local // width
    a = selection.strategies[selection.offset[first][edge] + row]
    b = selection.strategies[selection.offset[second][edge] + local - row * width]
    tables = model.tables[model.entries[between][edge] + a * model.sizes[second][edge] + b]
    edges = selection.root[model.edges[between]]
    return replace(model, sizes=sizes, costs=costs, edges=edges, tables=tables, events=events)


def keep_columns(model: Pairwise, mask: Array) -> tuple[Pairwise, Selection]:
    """The model with only some of its columns."""
    (columns,) = np.nonzero(mask)
    owners = model.owners[columns]
    sizes = np.bincount(owners, minlength=len(model.sizes))
    selection = Selection(np.arange(len(model.sizes)), starts(sizes)[:-1], columns - model.columns[owners])
    return select(model, selection), selection


def merge_parallel(model: Pairwise) -> Pairwise:
    """The model with one edge between two nodes at most, from the lower to the higher."""
    if not len(model.edges):
        return model
    first, second = model.edges.min(1), model.edges.max(1)
    key = first * len(model.sizes) + second
    keys, group = np.unique(key, return_inverse=True)
    edges = np.stack([keys // len(model.sizes), keys % len(model.sizes)], 1)
    if len(keys) == len(key) and (model.edges == edges).all():
        return model
    offset = starts(model.sizes[edges[:, 0]] * model.sizes[edges[:, 1]])
    edge, local = ragged(np.diff(model.entries))
    width = model.sizes[model.edges[:, 1]][edge]
    x = local // width
    y = local - x * width
    turned = (model.edges[:, 0] > model.edges[:, 1])[edge]
    row, column = np.where(turned, y, x), np.where(turned, x, y)
    place = offset[group[edge]] + row * model.sizes[edges[:, 1]][group[edge]] + column
    return replace(model, edges=edges, tables=np.bincount(place, weights=model.tables, minlength=offset[-1]))


def take_edges(model: Pairwise, selected: Array) -> Pairwise:
    """The model with only some of its edges, a mask or numbers."""
    if selected.dtype == bool:
        (selected,) = np.nonzero(selected)
    lengths = np.diff(model.entries)[selected]
    edge, local = ragged(lengths)
    return replace(model, edges=model.edges[selected], tables=model.tables[model.entries[selected][edge] + local])


def normalize(model: Pairwise) -> tuple[Pairwise, Selection]:
    """Arc consistency, and tables with a zero in every row and column; tables without another entry go.

    Raises:
        Impossible: A node has no strategy left.
    """
    model = merge_parallel(model)
    layout = model.layout
    finite = np.isfinite(model.costs)
    possible = np.isfinite(model.tables)
    while True:
        possible &= finite[layout.row_columns[layout.row]] & finite[layout.column_columns[layout.column]]
        in_row = np.zeros(len(layout.row_edges), dtype=bool)
        in_row[layout.row[possible]] = True
        in_column = np.zeros(len(layout.column_edges), dtype=bool)
        in_column[layout.column[possible]] = True
        supported = finite.copy()
        supported[layout.row_columns[~in_row]] = False
        supported[layout.column_columns[~in_column]] = False
        if (supported == finite).all():
            break
        finite = supported
    if (np.bincount(model.owners[finite], minlength=len(model.sizes)) == 0).any():
        raise Impossible("a node has no strategy that its neighbours allow")
    model, selection = keep_columns(model, finite)
    layout = model.layout
    tables = model.tables.copy()
    rows = np.full(len(layout.row_edges), np.inf)
    np.minimum.at(rows, layout.row, tables)
    tables -= rows[layout.row]
    columns = np.full(len(layout.column_edges), np.inf)
    np.minimum.at(columns, layout.column, tables)
    tables -= columns[layout.column]
    costs = model.costs.astype(float) + np.bincount(layout.row_columns, weights=rows, minlength=len(model.costs))
    costs += np.bincount(layout.column_columns, weights=columns, minlength=len(model.costs))
    needed = np.zeros(len(model.edges), dtype=bool)
    needed[layout.edge[tables != 0]] = True
    return take_edges(replace(model, costs=costs, tables=tables), needed), selection


def contract(model: Pairwise) -> tuple[Pairwise, Selection] | None:
    """Nodes whose strategy follows from a neighbour's become part of it; None where there are none.

    A node joins a neighbour with more strategies, or as many and a lower number, so that no circle arises.
    """
    layout = model.layout
    possible = np.isfinite(model.tables)
    per_row = np.bincount(layout.row[possible], minlength=len(layout.row_edges))
    per_column = np.bincount(layout.column[possible], minlength=len(layout.column_edges))
    forward, backward = np.ones((2, len(model.edges)), dtype=bool)
    forward[layout.row_edges[per_row != 1]] = False
    backward[layout.column_edges[per_column != 1]] = False
    first, second = model.edges[:, 0], model.edges[:, 1]
    larger = (model.sizes[first] > model.sizes[second]) | ((model.sizes[first] == model.sizes[second]) & (first < second))
    forward &= larger
    backward &= ~larger
    child = np.concatenate([second[forward], first[backward]])
    parent = np.concatenate([first[forward], second[backward]])
    edge = np.concatenate(np.nonzero(forward) + np.nonzero(backward))
    if not len(child):
        return None
    order = np.lexsort((edge, parent, model.sizes[parent], child))
    child, where = np.unique(child[order], return_index=True)
    parent, edge = parent[order][where], edge[order][where]

    up = np.arange(len(model.sizes))
    up[child] = parent
    lengths = model.sizes[up]
    offset = starts(lengths)
    strategies = ragged(lengths)[1]
    chosen = np.full(len(model.edges), -1)
    chosen[edge] = child
    (entries,) = np.nonzero(possible & (chosen[layout.edge] >= 0))
    of = chosen[layout.edge[entries]]
    row = layout.row_columns[layout.row[entries]] - model.columns[first[layout.edge[entries]]]
    column = layout.column_columns[layout.column[entries]] - model.columns[second[layout.edge[entries]]]
    is_second = second[layout.edge[entries]] == of
    strategies[offset[of] + np.where(is_second, row, column)] = np.where(is_second, column, row)
    while (up[up] != up).any():
        lengths = model.sizes[up[up]]
        node, local = ragged(lengths)
        middle = strategies[offset[up[node]] + local]
        strategies = strategies[offset[node] + middle]
        offset = starts(lengths)
        up = up[up]
    _, root = np.unique(up, return_inverse=True)
    selection = Selection(root, offset[:-1], strategies)
    return select(model, selection), selection


def indifferent(model: Pairwise) -> Array:
    """Per node, whether all its strategies use the same."""
    difference = sparse.csc_matrix(model.events - model.events[:, np.repeat(model.columns[:-1], model.sizes)])
    difference.eliminate_zeros()
    return np.bincount(model.owners, weights=np.diff(difference.indptr), minlength=len(model.sizes)) == 0


@dataclass(frozen=True, eq=False)
class _Incidence:
    """The edges at each node.

    Attributes:
        degree: Per node, its number of edges.
        begin: Per node, where its edges begin in `edges`.
        edges: Numbers of edges, by node.
        first: Per node, its first neighbour; itself where it has none.
        second: Per node, its second neighbour; the first where it has one.
    """

    degree: Array
    begin: Array
    edges: Array
    first: Array
    second: Array


def _incidence(model: Pairwise) -> _Incidence:
    nodes = len(model.sizes)
    degree = np.bincount(model.edges.ravel(), minlength=nodes)
    ends = np.concatenate([model.edges, model.edges[:, ::-1]])
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    begin = starts(degree)[:-1]
    padded = np.append(ends[order, 1], [0, 0])
    first = np.where(degree > 0, padded[begin], np.arange(nodes))
    second = np.where(degree > 1, padded[begin + 1], first)
    return _Incidence(degree, begin, np.concatenate([np.arange(len(model.edges))] * 2)[order], first, second)


def _independent(model: Pairwise, at: _Incidence) -> Array:
    """Per node, whether it is eliminated: of degree two or less, indifferent, worth it, and no neighbour of another."""
    nodes = len(model.sizes)
    sizes, first, second = model.sizes, model.sizes[at.first], model.sizes[at.second]
    candidate = indifferent(model) & (at.degree <= 2) & ((at.degree < 2) | (first * second <= GROWTH * sizes * (first + second)))
    # Neighbours cannot go at once. A hashed order takes a constant share of a chain of candidates, where the order of numbers takes one.
    rank = np.argsort((np.arange(nodes, dtype=np.uint64) * np.uint64(2654435761)) % np.uint64(1 << 32), kind="stable")
    place = np.empty(nodes, dtype=np.int64)
    place[rank] = np.arange(nodes)
    both = candidate[model.edges].all(1)
    loser = np.where(place[model.edges[:, 0]] > place[model.edges[:, 1]], model.edges[:, 0], model.edges[:, 1])
    candidate[loser[both]] = False
    return candidate


def _minimized(model: Pairwise, at: _Incidence, nodes: Array, height: Array, width: Array) -> tuple[Array, Array]:
    """Per node and pair of its neighbours' strategies, its least cost, and the first strategy that has it.

    Args:
        model: The model.
        at: Its edges by node.
        nodes: The nodes.
        height: Per node, the number of strategies of its first neighbour.
        width: Per node, the number of strategies of its second neighbour.
    """
    size, wide = model.sizes[nodes], at.degree[nodes] == 2
    best, answers = [], []
    for piece in chunks(height * width * size):
        h, w, d, b = height[piece], width[piece], size[piece], nodes[piece]
        which, local = ragged(h * w * d)
        s = local // (w[which] * d[which])
        local -= s * w[which] * d[which]
        u = local // d[which]
        t = local - u * d[which]
        value = model.costs[model.columns[b][which] + t]
        for position, neighbours, choice, there in ((0, at.first[b], s, at.degree[b] > 0), (1, at.second[b], u, wide[piece])):
            (entries,) = np.nonzero(there[which])
            of = which[entries]
            edge = at.edges[at.begin[b[of]] + position]
            is_first = model.edges[edge, 0] == b[of]
            entry = np.where(is_first, t[entries] * model.sizes[neighbours[of]] + choice[entries], choice[entries] * d[of] + t[entries])
            value[entries] += model.tables[model.entries[edge] + entry]
        begins = starts(np.repeat(d, h * w))[:-1]
        least = np.minimum.reduceat(value, begins)
        attained = value == np.repeat(least, np.repeat(d, h * w))
        answers.append(np.minimum.reduceat(np.where(attained, t, np.iinfo(np.int64).max), begins))
        best.append(least)
    return np.concatenate(best), np.concatenate(answers)


def eliminate(model: Pairwise) -> tuple[Pairwise, float, Elimination] | None:
    """Nodes of degree two or less whose usage does not depend on their strategy, minimized out; None where there are none.

    Returns:
        The smaller model, the costs of nodes without neighbours, and the way back.
    """
    at = _incidence(model)
    candidate = _independent(model, at)
    (nodes,) = np.nonzero(candidate)
    if not len(nodes):
        return None
    (remaining,) = np.nonzero(~candidate)
    renumbered = np.cumsum(~candidate) - 1
    base = model.base + np.asarray(model.events[:, model.columns[nodes]].sum(axis=1)).ravel()
    degree, first, second = at.degree[nodes], at.first[nodes], at.second[nodes]
    wide = degree == 2
    height = np.where(degree > 0, model.sizes[first], 1)
    width = np.where(wide, model.sizes[second], 1)
    values, answers = _minimized(model, at, nodes, height, width)
    neighbours = np.stack([first, second], 1)
    step = Elimination(remaining, nodes, neighbours, np.where(wide, model.sizes[second], 0), starts(height * width)[:-1], answers)
    owner, local = ragged(height * width)
    constant = float(values[(degree == 0)[owner]].sum())
    leaf = (degree == 1)[owner]
    costs = model.costs + np.bincount(model.columns[first][owner[leaf]] + local[leaf], weights=values[leaf], minlength=len(model.costs))
    columns = ~candidate[model.owners]
    outside = take_edges(model, ~candidate[model.edges].any(1))
    model = replace(
        outside,
        sizes=model.sizes[remaining],
        costs=costs[columns],
        edges=renumbered[np.concatenate([outside.edges, neighbours[wide]])],
        tables=np.concatenate([outside.tables, values[wide[owner]]]),
        events=model.events[:, np.nonzero(columns)[0]],
        base=base,
    )
    return model, constant, step


def chunks(lengths: Array, most: int = 8_000_000) -> list[slice]:
    """Consecutive pieces of work of limited total length."""
    total = np.cumsum(lengths)
    pieces, begin = [], 0
    while begin < len(lengths):
        before = total[begin - 1] if begin else 0
        end = max(int(np.searchsorted(total, before + most, side="right")), begin + 1)
        pieces.append(slice(begin, end))
        begin = end
    return pieces


def dominated(model: Pairwise) -> Array:
    """Per column, whether another strategy of its node costs no more, whatever the neighbours choose, and never uses more.

    The model is normalized: with a zero in each row of a table, no neighbour makes up for a strategy that costs more by itself.
    """
    removed = np.zeros(len(model.costs), dtype=bool)
    node, local = ragged(model.sizes**2)
    better, worse = model.columns[node] + local // model.sizes[node], model.columns[node] + local % model.sizes[node]
    (pairs,) = np.nonzero((better != worse) & (model.costs[better] <= model.costs[worse]))
    pairs = pairs[~_uses_more(model, better[pairs], worse[pairs])]
    node, better, worse = node[pairs], better[pairs], worse[pairs]
    excess = model.costs[better] - model.costs[worse]
    count = np.bincount(node, minlength=len(model.sizes))
    begin = starts(count)
    for side in (0, 1):
        here, there = model.edges[:, side], model.edges[:, 1 - side]
        lengths = count[here] * model.sizes[there]
        excess[np.isin(node, here[lengths > LARGEST_COMPARISON])] = np.inf
        (small,) = np.nonzero((lengths > 0) & (lengths <= LARGEST_COMPARISON))
        for piece in chunks(lengths[small]):
            edges = small[piece]
            of, position = ragged(count[here[edges]])
            pair = begin[here[edges]][of] + position
            open_pairs = excess[pair] <= 0
            pair, edge = pair[open_pairs], edges[of[open_pairs]]
            if not len(pair):
                continue
            width = model.sizes[there[edge]]
            which, other = ragged(width)
            down = width if side == 0 else np.ones_like(width)
            across = np.ones_like(width) if side == 0 else model.sizes[here[edge]]
            at = model.entries[edge][which] + other * across[which]
            first = model.columns[node[pair]]
            low = model.tables[at + ((better[pair] - first) * down)[which]]
            high = model.tables[at + ((worse[pair] - first) * down)[which]]
            allowed = np.isfinite(high)
            difference = np.where(allowed, low - np.where(allowed, high, 0.0), -np.inf)
            np.add.at(excess, pair, np.maximum.reduceat(difference, starts(width)[:-1]))
    holds = excess <= 0
    key = better * np.int64(len(model.costs)) + worse
    mutual = np.isin(worse * np.int64(len(model.costs)) + better, key[holds])
    removed[worse[holds & ~(mutual & (worse < better))]] = True
    return removed


def _uses_more(model: Pairwise, one: Array, other: Array) -> Array:
    """Per pair of columns, whether the first uses more than the second at some epoch."""
    result = np.zeros(len(one), dtype=bool)
    for piece in chunks(np.ones(len(one), dtype=np.int64), 1_000_000):
        change = sparse.csc_matrix(model.events[:, one[piece]] - model.events[:, other[piece]])
        change.sort_indices()
        total = np.cumsum(np.append(0.0, change.data))
        pair = np.repeat(np.arange(len(one[piece])), np.diff(change.indptr))
        result[piece.start + pair[total[1:] - total[change.indptr[pair]] > 0]] = True
    return result


def reduced(model: Pairwise) -> Reduced:
    """All reductions, one after the other until none applies.

    Raises:
        Impossible: A node has no strategy left.
    """
    steps: list[Selection | Elimination] = []
    constant = 0.0
    dominance_pending = True
    while True:
        model, selection = normalize(model)
        steps.append(selection)
        if (contraction := contract(model)) is not None:
            model, selection = contraction
            steps.append(selection)
            continue
        if (elimination := eliminate(model)) is not None:
            model, cost, step = elimination
            constant += cost
            steps.append(step)
            dominance_pending = True
            continue
        if dominance_pending:
            dominance_pending = False
            removed = dominated(model)
            if removed.any():
                model, selection = keep_columns(model, ~removed)
                steps.append(selection)
                dominance_pending = removed.sum() > len(removed) // 100
                continue
        return Reduced(model, constant, tuple(steps))
