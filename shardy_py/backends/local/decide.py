"""Under which axes an equation runs: those that move the fewest bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from shardy_py.backends.local.layouts import Axes, Layout, local_shape, partial, ways
from shardy_py.backends.local.moves import STARTING, cost
from shardy_py.backends.local.runnable import layouts_under, runnable
from shardy_py.dialect import AxisRef, FactorType, Mesh, OpShardingRule
from shardy_py.passes.export.collective_bytes import received
from shardy_py.passes.propagation.factors import project

FREE = None
"""Stands for the versions of an operand that can be had in any layout at no cost."""


class Tensor(NamedTuple):
    """An operand or a result.

    Attributes:
        shape: Its global shape.
        bits: Bits of an element.
        versions: Of an operand, the layouts it is at hand in; `FREE` where it can be had in any. Of a result, those it will be asked
            for in, or the one planned; `FREE` where any will do, none where nothing uses it.
        passes: Of an operand, whether its sums may go on waiting.
        often: How often an operand is moved each time the equation runs; less than once where it is the same on every trip of a loop.
    """

    shape: tuple[int, ...]
    bits: int
    versions: tuple[Layout, ...] | None
    passes: bool = False
    often: float = 1.0


class Decision(NamedTuple):
    """How an equation runs.

    Attributes:
        axes: The axes of each factor.
        operands: The layouts the operands have to be in.
        results: The layouts the results come out in.
        reduced: Axes over which results have to be combined at once.
        inside: What is received while it runs, to combine results at once and inside of the form, with `STARTING` for each collective.
        work: What computing costs, in bytes that could be sent meanwhile.
        cost: What is received in all until the results are as wanted, `STARTING` for each collective, and the work.
    """

    axes: tuple[Axes, ...]
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    reduced: Axes
    inside: int
    work: float
    cost: float


KEPT = 3
"""How many ways to run an equation are remembered."""


@functools.lru_cache(maxsize=1 << 16)
def decide(
    rule: OpShardingRule,
    operands: tuple[Tensor, ...],
    results: tuple[Tensor, ...],
    mesh: Mesh,
    combine: str,
    uneven: frozenset[int],
    linear: tuple[tuple[int, ...], ...],
    moved: Callable[[Sequence[int]], int] | None,
    weight: float,
) -> tuple[Decision, ...]:
    """Several proposals, the cheapest first: what each operand or result has, alone and completed by the others.

    Args:
        rule: The rule of the equation.
        operands: Its operands.
        results: Its results.
        mesh: The region's mesh.
        combine: See `Form`.
        uneven: See `Form`.
        linear: See `Form`.
        moved: See `Form`.
        weight: See `Form`.
    """
    setting = _Setting(rule, operands, results, mesh, combine, uneven, moved, weight)
    agreed = setting.agreed()
    if agreed is not None:
        return (agreed,)
    rated: list[tuple[float, int, int, Decision]] = []
    for waiting, group in setting.delays(linear):
        for axes in setting.proposals(waiting):
            found = setting.rate(axes, waiting, group)
            if found.cost == found.work and len(waiting) + sum(map(len, axes)) == setting.count_axes():
                return (found,)  # nothing moves, and no other way has less to compute
            rated.append((found.cost, -len(waiting), len(rated), found))
    return tuple([decision for *_, decision in sorted(rated)[:KEPT]])


_Source = dict[int, Axes]
"""The axes that one layout of one tensor gives to factors."""


@functools.lru_cache(maxsize=1 << 12)
def _axes(of: Layout) -> frozenset[AxisRef]:
    """All axes of a layout."""
    return frozenset(of.unreduced).union(*[dim.axes for dim in of.dims])


class _Setting(NamedTuple):
    """The arguments of `decide`."""

    rule: OpShardingRule
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    mesh: Mesh
    combine: str
    uneven: frozenset[int]
    moved: Callable[[Sequence[int]], int] | None
    weight: float

    def agreed(self) -> Decision | None:
        """The first proposal, where it is plain that nothing moves: all tensors are where one of them is. None where that is not plain."""
        rule, mesh = self.rule, self.mesh
        if rule.has_compound_dims or self.moved is not None:
            return None
        axes: list[Axes | None] = [None] * rule.num_factors
        for mapping, tensor in zip(rule.mappings, (*self.operands, *self.results)):
            versions = tensor.versions
            if not versions:
                continue
            at, *more = versions
            if more or at.unreduced:
                return None
            for (factor,), dim in zip(mapping, at.dims):
                given = axes[factor]
                if given is None:
                    axes[factor] = dim.axes
                elif given != dim.axes:
                    return None
        chosen = tuple([given or () for given in axes])
        if any(given and kind is not FactorType.PASS_THROUGH for given, kind in zip(chosen, rule.factor_types)):
            return None
        used = [axis for given in chosen for axis in given]
        if len(set(used)) < len(used) or self._runnable(chosen) != chosen:
            return None
        placed, operands = layouts_under(rule, chosen), len(self.operands)
        counts = [ways(given, mesh) if given else 1 for given in chosen]
        work = self.weight * math.prod(rule.factor_sizes) / math.prod(counts)
        return Decision(chosen, tuple(placed[:operands]), tuple(placed[operands:]), (), 0, work, work)

    def count_axes(self) -> int:
        """How many axes any of the tensors is cut over, or waits for."""
        versions = {version for tensor in (*self.operands, *self.results) for version in tensor.versions or ()}
        return len(frozenset().union(*map(_axes, versions)))

    def delays(self, linear: tuple[tuple[int, ...], ...]) -> Iterator[tuple[Axes, tuple[int, ...]]]:
        """The sums that may go on waiting: axes and the operands that wait for them."""
        for group in linear if any(operand.passes for operand in self.operands) else ():
            common: list[AxisRef] | None = None
            for i in group:
                operand = self.operands[i]
                has = operand.versions[0].unreduced if operand.passes and operand.versions else ()
                common = [*has] if common is None else [axis for axis in common if axis in has]
            if common:
                yield tuple(common), group
        yield (), ()

    def proposals(self, waiting: Axes) -> Iterator[tuple[Axes, ...]]:
        """Distinct axes per factor to be rated, none of which is waited for."""
        sources: list[_Source] = []
        for mapping, tensor in zip(self.rule.mappings, (*self.operands, *self.results), strict=True):
            for version in tensor.versions or ():
                if version.is_fully_replicated:
                    continue
                found = self._factors(mapping, version, waiting)
                if any(found.values()) and found not in sources:
                    sources.append(found)
        seen: set[tuple[Axes, ...]] = set()
        for order in _orders(sources):
            proposal = self._runnable(self._merged(order))
            if proposal not in seen:
                seen.add(proposal)
                yield proposal
                if self.rule.reduction:
                    trimmed = self._runnable([() if t is FactorType.REDUCTION else a for t, a in zip(self.rule.factor_types, proposal)])
                    if trimmed not in seen:
                        seen.add(trimmed)
                        yield trimmed

    def _factors(self, mapping: Sequence[Sequence[int]], of: Layout, waiting: Axes) -> _Source:
        if not self.rule.has_compound_dims:
            found = {factor: dim.axes for (factor,), dim in zip(mapping, of.dims, strict=True)}
            return {factor: _until(waiting, axes) for factor, axes in found.items()} if waiting else found
        factors = project(mapping, of, self.rule.factor_sizes, self.mesh, True).factors
        return {factor: _until(waiting, sharding.axes) for factor, sharding in factors.items()}

    def _merged(self, order: Iterable[_Source]) -> list[Axes]:
        chosen: list[Axes] = [()] * self.rule.num_factors
        used: set[AxisRef] = set()
        for source in order:
            for factor, axes in source.items():
                if not axes:
                    continue
                has = chosen[factor]
                if axes[: len(has)] != has:
                    continue
                for axis in axes[len(has) :]:
                    if axis in used:
                        break
                    used.add(axis)
                    has = (*has, axis)
                chosen[factor] = has
        return chosen

    def _runnable(self, axes: Sequence[Axes]) -> tuple[Axes, ...]:
        """Without what the equation cannot run with."""
        return runnable(self.rule, axes, self.mesh, self.uneven, self.moved is not None)

    def rate(self, axes: tuple[Axes, ...], waiting: Axes, group: tuple[int, ...]) -> Decision:
        """What running so costs."""
        rule, mesh = self.rule, self.mesh
        placed = layouts_under(rule, axes)
        needed, bare = placed[: len(self.operands)], placed[len(self.operands) :]
        for i in group:
            needed[i] = partial(needed[i], waiting)
        summed: Axes = tuple([axis for factor in rule.reduction for axis in axes[factor]]) if rule.reduction else ()
        at_once = summed if self.combine != "add" else ()
        left = waiting if at_once else (*waiting, *summed)
        made = [partial(of, left) for of in bare] if left else bare
        total, inside = 0.0, 0
        for operand, want in zip(self.operands, needed):
            versions = operand.versions
            if versions is not None and versions[0] is not want:
                total += operand.often * min([_cost(version, want, operand, mesh) for version in versions])
        for result, has, of in zip(self.results, made, bare):
            if at_once:
                piece = result.bits * math.prod(local_shape(result.shape, of, mesh)) // 8
                inside += received("all_reduce", ways(at_once, mesh), piece, piece) + STARTING
            total += _later(has, of, result, mesh)
        counts = [ways(a, mesh) if a else 1 for a in axes]
        if self.moved is not None:
            inside += self.moved(counts)
        work = self.weight * math.prod(rule.factor_sizes) / math.prod(counts)
        return Decision(axes, tuple(needed), tuple(made), at_once, inside, work, total + inside + work)


def _orders(sources: list[_Source]) -> Iterator[Sequence[_Source]]:
    """In which orders what tensors have is given to factors."""
    if len(sources) > 1:
        yield sources[::-1]
        yield sources
        for source in sources:
            yield [source, *[s for s in sources if s is not source]]
    for source in sources:
        yield [source]
    yield []


def _until(waiting: Axes, axes: Axes) -> Axes:
    """The first whole axes that are not waited for."""
    for i, axis in enumerate(axes):
        if not axis.is_full or axis in waiting:
            return axes[:i]
    return axes


def _later(has: Layout, bare: Layout, result: Tensor, mesh: Mesh) -> int:
    """What bringing a result to where it will be asked for costs; each layout from the cheapest of those there are by then.

    Args:
        has: Where it comes out.
        bare: The same, with no sums that wait.
        result: The result.
        mesh: The region's mesh.
    """
    if result.versions is None:
        return _cost(has, bare, result, mesh)
    there = [has]
    total = 0
    for wanted in result.versions:
        if wanted is has:
            continue
        if any(axis not in has.unreduced for axis in wanted.unreduced):
            wanted = partial(wanted, [axis for axis in wanted.unreduced if axis in has.unreduced])
        total += min([_cost(version, wanted, result, mesh) for version in there])
        there.append(wanted)
    return total


def _cost(version: Layout, want: Layout, tensor: Tensor, mesh: Mesh) -> int:
    if version is want:
        return 0
    if want.unreduced and any(axis not in version.unreduced for axis in want.unreduced):
        return 1 << 60
    return cost(version, want, tensor.shape, tensor.bits, mesh, STARTING)
