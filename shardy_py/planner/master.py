"""Linear and integer programs over some of a model's columns: the local polytope, and rows of usage as they turn out to matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, sparse

from .pairwise import Array, Pairwise


@dataclass(frozen=True, eq=False)
class Program:
    """A linear program over kept columns and pairs of them.

    Attributes:
        columns: The model's columns that are kept.
        entries: The entries of tables that are kept.
        costs: Costs of columns, then of entries, divided by `scale`.
        equalities: One strategy per node; pairs agree with the strategies at their ends.
        constants: Right-hand sides of the equalities.
        scale: The divisor of the costs.
    """

    columns: Array
    entries: Array
    costs: Array
    equalities: sparse.csr_matrix
    constants: Array
    scale: float


@dataclass(frozen=True, eq=False)
class Relaxation:
    """An optimum of a linear program with rows of usage.

    Attributes:
        value: Its cost; a bound for choices among the kept columns.
        shares: Per column of the model, its share.
        epochs: The epochs whose rows are in the program.
        multipliers: Per such row, what a unit of usage costs.
        reduced: Per column of the program, costs first, what using it would add at least.
    """

    value: float
    shares: Array
    epochs: Array
    multipliers: Array
    reduced: Array


def program(model: Pairwise, usable_columns: Array, scale: float, entries: Array | None = None) -> Program:
    """The local polytope over some columns.

    Args:
        model: The model.
        usable_columns: Mask of the columns of the model; at least one per node.
        scale: The divisor of the costs.
        entries: Mask of the entries; None for all.

    Returns:
        The program.
    """
    layout = model.layout
    usable = usable_columns & np.isfinite(model.costs)
    (columns,) = np.nonzero(usable)
    number = np.cumsum(usable) - 1
    mask = usable[layout.row_columns][layout.row] & usable[layout.column_columns][layout.column] & np.isfinite(model.tables)
    if entries is not None:
        mask &= entries
    (pairs,) = np.nonzero(mask)
    nodes = len(model.sizes)
    pair_variable = len(columns) + np.arange(len(pairs))
    rows_used, row_number = _numbered(usable[layout.row_columns])
    columns_used, column_number = _numbered(usable[layout.column_columns])
    first, second = nodes, nodes + len(rows_used)
    total = second + len(columns_used)
    row = np.concatenate(
        [
            model.owners[columns],
            first + row_number[layout.row[pairs]],
            first + np.arange(len(rows_used)),
            second + column_number[layout.column[pairs]],
            second + np.arange(len(columns_used)),
        ]
    )
    column = np.concatenate(
        [
            np.arange(len(columns)),
            pair_variable,
            number[layout.row_columns[rows_used]],
            pair_variable,
            number[layout.column_columns[columns_used]],
        ]
    )
    value = np.ones(len(row))
    value[len(columns) + len(pairs) :][: len(rows_used)] = -1.0
    value[len(value) - len(columns_used) :] = -1.0
    matrix = sparse.csr_matrix((value, (row, column)), shape=(total, len(columns) + len(pairs)))
    constants = np.zeros(total)
    constants[:nodes] = 1.0
    costs = np.concatenate([model.costs[columns], model.tables[pairs]]) / scale
    return Program(columns, pairs, costs, matrix, constants, scale)


def _numbered(used: Array) -> tuple[Array, Array]:
    (places,) = np.nonzero(used)
    return places, np.cumsum(used) - 1


def usage_rows(model: Pairwise, part: Program, epochs: Array) -> tuple[sparse.csr_matrix, Array]:
    """Rows of usage of the program's columns at some epochs, divided by the limit, and their right-hand sides."""
    rows = model.rows(epochs)[:, part.columns] / model.limit
    blank = sparse.csr_matrix((len(epochs), len(part.entries)))
    return sparse.csr_matrix(sparse.hstack([sparse.csr_matrix(rows), blank])), model.room(epochs) / model.limit


def relax(model: Pairwise, part: Program, epochs: Array, seconds: float, method: str = "highs") -> Relaxation | None:
    """The optimum of the program with rows at some epochs; None where time ran out, or no choice keeps them."""
    limits = usage_rows(model, part, epochs) if len(epochs) else (None, None)
    result = optimize.linprog(
        part.costs,
        A_ub=limits[0],
        b_ub=limits[1],
        A_eq=part.equalities,
        b_eq=part.constants,
        bounds=(0, None),
        method=method,
        options={"time_limit": max(seconds, 0.1)},
    )
    if result.status != 0:
        return None
    shares = np.zeros(len(model.costs))
    shares[part.columns] = result.x[: len(part.columns)]
    multipliers = -result.ineqlin.marginals * part.scale / model.limit if len(epochs) else np.zeros(0)
    return Relaxation(result.fun * part.scale, shares, epochs, multipliers, result.lower.marginals * part.scale)


def integer(model: Pairwise, part: Program, epochs: Array, seconds: float, gap: float) -> tuple[Array | None, float, bool]:
    """The best choice among the program's columns that keeps the rows at some epochs.

    Args:
        model: The model.
        part: The program.
        epochs: The epochs whose rows hold.
        seconds: How long to search.
        gap: How far from the bound the choice may be, as a share of its cost.

    Returns:
        The choice or None, a bound for all choices among the columns, and whether the search ended by itself.
    """
    integral = np.zeros(len(part.costs))
    integral[: len(part.columns)] = 1
    constraints = [optimize.LinearConstraint(part.equalities, part.constants, part.constants)]
    if len(epochs):
        matrix, room = usage_rows(model, part, epochs)
        constraints.append(optimize.LinearConstraint(matrix, -np.inf, room))
    result = optimize.milp(
        part.costs,
        integrality=integral,
        bounds=optimize.Bounds(0, 1),
        constraints=constraints,
        options={"time_limit": max(seconds, 0.1), "mip_rel_gap": gap},
    )
    least = -np.inf if result.mip_dual_bound is None else result.mip_dual_bound * part.scale
    if result.x is None:
        return None, least, result.status == 2
    (used,) = np.nonzero(result.x[: len(part.columns)] > 0.5)
    choice = np.zeros(len(model.sizes), dtype=np.int64)
    owners = model.owners[part.columns[used]]
    choice[owners] = part.columns[used] - model.columns[owners]
    return choice, least, result.status == 0


def without(model: Pairwise, part: Program, relaxation: Relaxation, cost: float) -> Program:
    """The program without columns and entries that no choice cheaper than a known one can use."""
    if not np.isfinite(cost):
        return part
    possible = relaxation.reduced <= cost - relaxation.value + 1e-6 * abs(cost)
    columns = np.zeros(len(model.costs), dtype=bool)
    columns[part.columns[possible[: len(part.columns)]]] = True
    entries = np.zeros(len(model.tables), dtype=bool)
    entries[part.entries[possible[len(part.columns) :]]] = True
    return program(model, columns, part.scale, entries)


def rounded(model: Pairwise, shares: Array) -> Array:
    """Per node, the strategy with the largest share, the first of equal ones."""
    order = np.lexsort((-shares, model.owners))
    return order[model.columns[:-1]] - model.columns[:-1]


def peaks(usage: Array, limit: float, present: Array, most: int = 8) -> Array:
    """Epochs at which usage exceeds the limit: the fullest of each of some equal spans of time."""
    chosen: list[int] = []
    allowed = limit * (1 + 1e-9)
    for piece in np.array_split(np.arange(len(usage)), max(min(most, len(usage)), 1)):
        if not len(piece):
            continue
        top = int(piece[np.argmax(usage[piece])])
        if usage[top] > allowed and top not in present:
            chosen.append(top)
    return np.array(chosen, dtype=np.int64)
