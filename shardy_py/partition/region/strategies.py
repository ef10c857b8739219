"""Strategies: the mesh axes of the factors of an equation, chosen to receive the fewest bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from shardy_py.dialect import AxisRef, FactorType, Mesh, OpShardingRule
from shardy_py.dialect.axis import Axes
from shardy_py.dialect.projection import project
from shardy_py.partition.region.layouts import Layout, local_shape, num_shards, partial
from shardy_py.partition.region.reshard_steps import COLLECTIVE_LAUNCH_BYTES, reshard_cost
from shardy_py.partition.region.runnable import layouts_under, runnable
from shardy_py.passes.export.collective_bytes import received

ANY_LAYOUT = None
"""In place of the layouts of a tensor that is free in any layout."""


class TensorLayouts(NamedTuple):
    """The layouts of an operand or result that strategies depend on.

    Attributes:
        layouts: Of an operand, those of its copies, or `ANY_LAYOUT`. Of a result, the wanted ones; `ANY_LAYOUT` where any will do, none
            for an unused result.
        moves_per_trip: Reshards per execution of the equation; below one for an operand that is invariant in the loop around it, and for a
            result that is summed behind it.
    """

    shape: tuple[int, ...]
    bits: int
    layouts: tuple[Layout, ...] | None
    keeps_partial: bool = False
    moves_per_trip: float = 1.0


class Strategy(NamedTuple):
    """The axes of an equation's factors, and the layouts and costs that follow.

    Attributes:
        inside: Bytes received in the equation and to combine its results, with `COLLECTIVE_LAUNCH_BYTES` for each collective.
        work: Cost of computing, in bytes that could be sent meanwhile.
        cost: Bytes received until results are in their wanted layouts, `COLLECTIVE_LAUNCH_BYTES` for each collective, and the work.
    """

    axes: tuple[Axes, ...]
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    reduced: Axes
    inside: int
    work: float
    cost: float


MAX_STRATEGIES = 3
"""Strategies that are kept of an equation."""


_FactorAxes = dict[int, Axes]
"""The axes of factors in one layout of one tensor."""


@functools.lru_cache(maxsize=1 << 12)
def _axes(of: Layout) -> frozenset[AxisRef]:
    """All axes of a layout."""
    return frozenset(of.unreduced).union(*[dim.axes for dim in of.dims])


class EquationSpec(NamedTuple):
    """An equation between layouts: everything that decides its strategies.

    Attributes:
        linear: Groups of operands through which partial sums may pass.
        bytes_inside: Bytes that a device receives inside of the equation; None where its local rule exchanges none.
        weight: Cost of one point of the iteration space.
    """

    rule: OpShardingRule
    operands: tuple[TensorLayouts, ...]
    results: tuple[TensorLayouts, ...]
    mesh: Mesh
    combine: str
    uneven: frozenset[int]
    linear: tuple[tuple[int, ...], ...]
    bytes_inside: Callable[[Sequence[int]], int] | None
    weight: float

    def agreement(self) -> Strategy | None:
        """The strategy in which nothing moves, if all tensors agree on the axes of every factor; None if they do not."""
        rule, mesh = self.rule, self.mesh
        if rule.has_compound_dims or self.bytes_inside is not None:
            return None
        axes: list[Axes | None] = [None] * rule.num_factors
        for mapping, tensor in zip(rule.mappings, (*self.operands, *self.results)):
            layouts = tensor.layouts
            if not layouts:
                continue
            at, *others = layouts
            if others or at.unreduced:
                return None
            for (factor,), dim in zip(mapping, at.dims):
                factor_axes = axes[factor]
                if factor_axes is None:
                    axes[factor] = dim.axes
                elif factor_axes != dim.axes:
                    return None
        chosen = tuple([factor_axes or () for factor_axes in axes])
        if any(factor_axes and kind is not FactorType.PASS_THROUGH for factor_axes, kind in zip(chosen, rule.factor_types)):
            return None
        used = [axis for factor_axes in chosen for axis in factor_axes]
        if len(set(used)) < len(used) or self.runnable(chosen) != chosen:
            return None
        placed, operands = layouts_under(rule, chosen), len(self.operands)
        counts = [num_shards(factor_axes, mesh) if factor_axes else 1 for factor_axes in chosen]
        work = self.weight * math.prod(rule.factor_sizes) / math.prod(counts)
        return Strategy(chosen, tuple(placed[:operands]), tuple(placed[operands:]), (), 0, work, work)

    def count_axes(self) -> int:
        """Number of distinct axes in all layouts."""
        layouts = {source for tensor in (*self.operands, *self.results) for source in tensor.layouts or ()}
        return len(frozenset[AxisRef]().union(*map(_axes, layouts)))

    def deferrals(self) -> Iterator[tuple[Axes, tuple[int, ...]]]:
        """The reductions that may be deferred behind the equation: axes, and the operands with partial sums over them."""
        for group in self.linear if any(operand.keeps_partial for operand in self.operands) else ():
            common: list[AxisRef] | None = None
            for i in group:
                operand = self.operands[i]
                partial_axes = operand.layouts[0].unreduced if operand.keeps_partial and operand.layouts else ()
                common = [*partial_axes] if common is None else [axis for axis in common if axis in partial_axes]
            if common:
                yield tuple(common), group
        yield (), ()

    def proposals(self, deferred: Axes) -> Iterator[tuple[Axes, ...]]:
        """Distinct axes per factor to be rated, without deferred ones."""
        sources: list[_FactorAxes] = []
        for mapping, tensor in zip(self.rule.mappings, (*self.operands, *self.results), strict=True):
            for source in tensor.layouts or ():
                if source.is_fully_replicated:
                    continue
                factor_axes = self._factors(mapping, source, deferred)
                if any(factor_axes.values()) and factor_axes not in sources:
                    sources.append(factor_axes)
        seen: set[tuple[Axes, ...]] = set()
        for order in _orders(sources):
            proposal = self.runnable(self._merged(order))
            if proposal not in seen:
                seen.add(proposal)
                yield proposal
                if self.rule.reduction:
                    trimmed = self.runnable([() if t is FactorType.REDUCTION else a for t, a in zip(self.rule.factor_types, proposal)])
                    if trimmed not in seen:
                        seen.add(trimmed)
                        yield trimmed

    def _factors(self, mapping: Sequence[Sequence[int]], of: Layout, deferred: Axes) -> _FactorAxes:
        if not self.rule.has_compound_dims:
            factor_axes = {factor: dim.axes for (factor,), dim in zip(mapping, of.dims, strict=True)}
            return {factor: _before_deferred(deferred, axes) for factor, axes in factor_axes.items()} if deferred else factor_axes
        factors = project(mapping, of, self.rule.factor_sizes, self.mesh, True).factors
        return {factor: _before_deferred(deferred, sharding.axes) for factor, sharding in factors.items()}

    def _merged(self, order: Iterable[_FactorAxes]) -> list[Axes]:
        chosen: list[Axes] = [()] * self.rule.num_factors
        used: set[AxisRef] = set()
        for source in order:
            for factor, axes in source.items():
                if not axes:
                    continue
                own = chosen[factor]
                if axes[: len(own)] != own:
                    continue
                for axis in axes[len(own) :]:
                    if axis in used:
                        break
                    used.add(axis)
                    own = (*own, axis)
                chosen[factor] = own
        return chosen

    def runnable(self, axes: Sequence[Axes]) -> tuple[Axes, ...]:
        """The axes under which the equation can run."""
        return runnable(self.rule, axes, self.mesh, self.uneven, self.bytes_inside is not None)

    def rate(self, axes: tuple[Axes, ...], deferred: Axes, group: tuple[int, ...]) -> Strategy:
        """The strategy for axes of factors, with its cost."""
        rule, mesh = self.rule, self.mesh
        placed = layouts_under(rule, axes)
        operand_layouts, reduced_layouts = placed[: len(self.operands)], placed[len(self.operands) :]
        for i in group:
            operand_layouts[i] = partial(operand_layouts[i], deferred)
        summed: Axes = tuple([axis for factor in rule.reduction for axis in axes[factor]]) if rule.reduction else ()
        at_once = summed if self.combine != "add" else ()
        left = deferred if at_once else (*deferred, *summed)
        result_layouts = [partial(reduced, left) for reduced in reduced_layouts] if left else reduced_layouts
        total, inside = 0.0, 0
        for operand, target in zip(self.operands, operand_layouts):
            layouts = operand.layouts
            if layouts is not None and layouts[0] is not target:
                total += operand.moves_per_trip * min([_reshard_cost(source, target, operand, mesh) for source in layouts])
        for result, source, reduced in zip(self.results, result_layouts, reduced_layouts):
            if at_once:
                piece = result.bits * math.prod(local_shape(result.shape, reduced, mesh)) // 8
                inside += received("all_reduce", num_shards(at_once, mesh), piece, piece) + COLLECTIVE_LAUNCH_BYTES
            total += result.moves_per_trip * _use_cost(source, reduced, result, mesh)
        counts = [num_shards(a, mesh) if a else 1 for a in axes]
        if self.bytes_inside is not None:
            inside += self.bytes_inside(counts)
        work = self.weight * math.prod(rule.factor_sizes) / math.prod(counts)
        return Strategy(axes, tuple(operand_layouts), tuple(result_layouts), at_once, inside, work, total + inside + work)


@functools.lru_cache(maxsize=1 << 16)
def strategies(equation: EquationSpec) -> tuple[Strategy, ...]:
    """The cheapest strategies, in order, among those that take over the layout of one tensor, alone or completed by the others."""
    agreement = equation.agreement()
    if agreement is not None:
        return (agreement,)
    ranked: list[tuple[float, int, int, Strategy]] = []
    for deferred, group in equation.deferrals():
        for axes in equation.proposals(deferred):
            strategy = equation.rate(axes, deferred, group)
            if strategy.cost == strategy.work and len(deferred) + sum(map(len, axes)) == equation.count_axes():
                return (strategy,)  # nothing moves, and no strategy computes less
            ranked.append((strategy.cost, -len(deferred), len(ranked), strategy))
    return tuple([strategy for *_, strategy in sorted(ranked)[:MAX_STRATEGIES]])


def strategy_along(equation: EquationSpec, axes: Sequence[Axes]) -> Strategy:
    """The strategy along those of the axes that the equation can run along; sums are deferred if that is cheaper."""
    rated = [
        equation.rate(equation.runnable([_before_deferred(deferred, each) for each in axes] if deferred else axes), deferred, group)
        for deferred, group in equation.deferrals()
    ]
    return min(rated, key=lambda strategy: strategy.cost)


def _orders(sources: list[_FactorAxes]) -> Iterator[Sequence[_FactorAxes]]:
    """Orders in which tensors' axes are offered to factors."""
    if len(sources) > 1:
        yield sources[::-1]
        yield sources
        for source in sources:
            yield [source, *[s for s in sources if s is not source]]
    for source in sources:
        yield [source]
    yield []


def _before_deferred(deferred: Axes, axes: Axes) -> Axes:
    """The leading axes up to the first that is deferred or part of an axis."""
    for i, axis in enumerate(axes):
        if not axis.is_full or axis in deferred:
            return axes[:i]
    return axes


def _use_cost(source: Layout, reduced: Layout, result: TensorLayouts, mesh: Mesh) -> int:
    """Cost of bringing a result to its wanted layouts in turn, each from the cheapest copy by then."""
    if result.layouts is None:
        return _reshard_cost(source, reduced, result, mesh)
    copies = [source]
    total = 0
    for target in result.layouts:
        if target is source:
            continue
        if any(axis not in source.unreduced for axis in target.unreduced):
            target = partial(target, [axis for axis in target.unreduced if axis in source.unreduced])
        total += min([_reshard_cost(copy, target, result, mesh) for copy in copies])
        copies.append(target)
    return total


def _reshard_cost(source: Layout, target: Layout, tensor: TensorLayouts, mesh: Mesh) -> int:
    if source is target:
        return 0
    if target.unreduced and any(axis not in source.unreduced for axis in target.unreduced):
        return 1 << 60
    return reshard_cost(source, target, tensor.shape, tensor.bits, mesh, COLLECTIVE_LAUNCH_BYTES)
