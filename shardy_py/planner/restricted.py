"""Large models: programs over the columns that message passing prefers, at multipliers that the programs give back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .dual import Messages
from .incumbent import Clock, Incumbent
from .master import integer, peaks, program, relax, rounded, without
from .moves import least_usage
from .neighbourhood import Neighbourhoods
from .pairwise import Array, Pairwise

# Entries of tables in a program: about a second of HiGHS. More where the incumbent stands still, as long as solving it takes no larger
# share of the time than this.
ENTRIES, MORE, LONGEST = 60_000, 1.4, 0.04
# Epochs within this share of the fullest one are the first that get a multiplier.
FULLEST = 0.95
# Multipliers of a program are averaged with the best so far; alone, they cycle.
STEP = 0.5
# Choices are taken at the multipliers and somewhat above: what they use then fits.
FACTORS = (1.0, 1.25, 1.6)
# Passes of message passing per round, and the gain as a share of the bound below which a round's passes end.
PASSES, LEAST_GAIN = 32, 2e-4
# Rows of usage are added so often per round at most; later rounds add the rest.
ROW_ROUNDS = 4
# A program whose value changed by less than this share from round to round is worth an integer program.
SETTLED = 0.02
# Columns enter an integer program whose reduced cost is at most this share of the relaxation; more after one that ended in time, fewer
# after one that did not.
NEAR, WIDER, NARROWER = 0.02, 2.0, 0.7
# An integer program gets this share of the time that is left, and this one where the relaxation stands still.
SHARE, LARGER_SHARE, STILL = 0.1, 0.3, 1e-4
# After this many rounds without a better incumbent, programs grow, and neighbourhoods of the incumbent are solved in between.
STALLED = 3
# Multipliers are scaled then: the same ones would prefer the same columns.
SCALES = (0.5, 1.4, 0.7, 2.0, 1.0)


@dataclass(frozen=True, eq=False)
class Multipliers:
    """Prices of usage at some epochs.

    Attributes:
        epochs: The epochs.
        values: The price of a unit of usage at each.
    """

    epochs: Array
    values: Array

    def costs(self, model: Pairwise) -> Array:
        """Per column, the cost of its usage."""
        priced = self.values > 0
        if not priced.any():
            return np.zeros(len(model.costs))
        return model.rows(self.epochs[priced]).T @ self.values[priced]

    def room(self, model: Pairwise) -> float:
        """The worth of the room at these epochs."""
        priced = self.values > 0
        return float(self.values[priced] @ model.room(self.epochs[priced])) if priced.any() else 0.0

    def mixed(self, other: Multipliers, share: float) -> Multipliers:
        """A weighted average of two sets of multipliers; an epoch that one set lacks counts as zero there."""
        epochs = np.union1d(self.epochs, other.epochs).astype(np.int64)
        values = np.zeros(len(epochs))
        values[np.searchsorted(epochs, self.epochs)] += (1 - share) * self.values
        values[np.searchsorted(epochs, other.epochs)] += share * other.values
        return Multipliers(epochs, values)


class Restricted:
    """The search on a large model.

    Args:
        model: The reduced model; infinite entries replaced by large ones.
        incumbent: The best choice so far.
        clock: The time that is left.
    """

    def __init__(self, model: Pairwise, incumbent: Incumbent, clock: Clock) -> None:
        self.model = model
        self.incumbent = incumbent
        self.clock = clock
        self.messages = Messages(model)
        self.bound = -np.inf
        self.best = Multipliers(np.zeros(0, dtype=np.int64), np.zeros(0))

    def price(self, multipliers: Multipliers, passes: int) -> tuple[Array, Array, Array]:
        """Message passing at some multipliers, until a pass gains little.

        Returns:
            Per column, its marginal and what the multipliers add to its cost; and the choice that the messages lead to.
        """
        extra = multipliers.costs(self.model)
        room = multipliers.room(self.model)
        last = -np.inf
        while True:
            state = self.messages.run(self.model.costs + extra, 4)
            value = state.value - room
            if value > self.bound:
                self.bound, self.best = value, multipliers
            passes -= 4
            if passes <= 0 or value - last < LEAST_GAIN * abs(value) or self.clock.over():
                return state.marginals, extra, state.choice
            last = value

    def first_multipliers(self) -> Multipliers:
        """One multiplier, by bisection, for the epochs that are fullest under the least usage."""
        model = self.model
        usage = model.usage(least_usage(model))
        epochs = peaks(usage, FULLEST * usage.max(initial=0.0), set()) if np.isfinite(model.limit) else np.zeros(0, dtype=np.int64)
        if not len(epochs):
            multipliers = Multipliers(epochs, np.zeros(0))
            self.price(multipliers, PASSES)
            return multipliers
        rows, room = model.rows(epochs), model.room(epochs)
        price = (
            0.05
            * abs(self.incumbent.cost if np.isfinite(self.incumbent.cost) else model.cost(least_usage(model)))
            / model.limit
            / len(epochs)
        )
        low, high = 0.0, np.inf
        for _ in range(12):
            multipliers = Multipliers(epochs, np.full(len(epochs), price))
            _, extra, choice = self.price(multipliers, 4)
            self.incumbent.offer(choice, extra)
            if rows[:, model.columns[:-1] + choice].sum() > room.sum():
                low = price
            else:
                high = price
            price = price * 3 if high == np.inf else price / 3 if low == 0 else float(np.sqrt(low * high))
        return self.best

    def preferred(self, marginals: Array, used: Array, most: int) -> tuple[Array, Array]:
        """The columns and entries of least excess, those of the incumbent, and what connects the columns.

        Args:
            marginals: Per column, its marginal.
            used: Per column, whether a relaxation used it.
            most: How many entries there may be for their excess.

        Returns:
            Per column and per entry, whether it is kept.
        """
        model = self.model
        layout = model.layout
        of_column, of_entry = self.messages.excess(marginals)
        rank = min(most, len(of_entry) - 1)
        threshold = float(np.partition(of_entry, rank)[rank]) if rank >= 0 else np.inf
        columns = (of_column <= threshold) | used
        choice = self.incumbent.choice
        if choice is not None:
            columns[model.columns[:-1] + choice] = True
        value = np.where(columns[layout.row_columns][layout.row] & columns[layout.column_columns][layout.column], of_entry, np.inf)
        in_row = np.full(len(layout.row_edges), np.inf)
        np.minimum.at(in_row, layout.row, value)
        in_column = np.full(len(layout.column_edges), np.inf)
        np.minimum.at(in_column, layout.column, value)
        entries = np.isfinite(value) & ((value <= threshold) | (value <= in_row[layout.row]) | (value <= in_column[layout.column]))
        if choice is not None:
            first, second = model.edges[:, 0], model.edges[:, 1]
            entries[model.entries[:-1] + choice[first] * model.sizes[second] + choice[second]] = True
        return columns, entries

    def run(self) -> float:
        """Rounds until the bound meets the incumbent or time is up; then the bound."""
        model, incumbent, clock = self.model, self.incumbent, self.clock
        multipliers = self.first_multipliers()
        epochs = multipliers.epochs
        used = np.zeros(len(model.costs), dtype=bool)
        neighbourhoods = Neighbourhoods(model, incumbent, clock)
        history: list[float] = []
        most, longest = ENTRIES, LONGEST * clock.left()
        last, near = np.inf, NEAR
        scale = max(abs(self.bound), 1.0) / 1e4
        while not clock.over() and incumbent.cost - self.bound > 1e-6 * abs(incumbent.cost):
            marginals, extra, choice = self.price(multipliers, PASSES)
            for factor in FACTORS:
                incumbent.offer(choice, factor * extra)
            columns, entries = self.preferred(marginals, used, most)
            part = program(model, columns, scale, entries)
            relaxation, took = None, 0.0
            for _ in range(ROW_ROUNDS):
                before = clock.left()
                solved = relax(model, part, epochs, 0.5 * clock.left())
                if solved is None:
                    break
                relaxation, took = solved, before - clock.left()
                more = peaks(np.cumsum(model.base + model.events @ solved.shares), model.limit, set(epochs.tolist()))
                if not len(more) or clock.over():
                    break
                epochs = np.concatenate([epochs, more])
            if relaxation is None:
                break
            used |= relaxation.shares > 1e-7
            incumbent.offer(rounded(model, relaxation.shares))
            multipliers = self.best.mixed(Multipliers(relaxation.epochs, relaxation.multipliers), STEP)
            change = abs(last - relaxation.value) / max(abs(relaxation.value), 1e-9)
            if relaxation.value < incumbent.cost - 1e-6 * abs(incumbent.cost) and change < SETTLED:
                few = without(model, part, relaxation, min(incumbent.cost, relaxation.value + near * abs(relaxation.value)))
                share = LARGER_SHARE if change < STILL else SHARE
                choice_of_part, _, finished = integer(model, few, epochs, share * clock.left(), 1e-4)
                near *= WIDER if finished else NARROWER
                if choice_of_part is not None:
                    epochs = np.union1d(epochs, peaks(model.usage(choice_of_part), model.limit, set(epochs.tolist()))).astype(np.int64)
                    incumbent.offer(choice_of_part)
            history.append(incumbent.cost)
            stalled = len(history) > STALLED and history[-1 - STALLED] - incumbent.cost < STILL * abs(incumbent.cost)
            if stalled:
                multipliers = replace(multipliers, values=multipliers.values * SCALES[len(history) % len(SCALES)])
                most = int(most * MORE) if took < longest else most
                neighbourhoods.improve(epochs, LARGER_SHARE * clock.left())
            last = relaxation.value
        return self.bound
