"""Under which axes an equation runs: those that move the fewest bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardy_py.backends.local.layouts import Axes, Layout, layout, partial, ways
from shardy_py.backends.local.moves import STARTING, cost
from shardy_py.dialect import AxisRef, FactorType, Mesh, OpShardingRule
from shardy_py.passes.export.collective_bytes import received
from shardy_py.passes.propagation.factors import project

FREE = None
"""Stands for the versions of an operand that can be had in any layout at no cost."""


@dataclass(frozen=True)
class Tensor:
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


@dataclass(frozen=True)
class Decision:
    """How an equation runs.

    Attributes:
        axes: The axes of each factor.
        operands: The layouts the operands have to be in.
        results: The layouts the results come out in.
        reduced: Axes over which results have to be combined at once.
        inside: What is received while it runs, to combine results at once and inside of the form, with `STARTING` for each of the two.
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
    rated: list[tuple[tuple[float, float], Decision]] = []
    every = setting.axes
    for waiting, group in setting.delays(linear):
        for axes in setting.proposals(waiting):
            found = setting.rate(axes, waiting, group)
            if found[1].cost == found[1].work and len(waiting) + sum(map(len, axes)) == every:
                return (found[1],)  # nothing moves, and no other way has less to compute
            rated.append(found)
    return tuple(decision for _, decision in sorted(rated, key=lambda one: one[0])[:KEPT])


@dataclass(frozen=True)
class _Setting:
    rule: OpShardingRule
    operands: tuple[Tensor, ...]
    results: tuple[Tensor, ...]
    mesh: Mesh
    combine: str
    uneven: frozenset[int]
    moved: Callable[[Sequence[int]], int] | None
    weight: float

    @property
    def axes(self) -> int:
        """How many axes any of the tensors is cut over, or waits for."""
        tensors = (*self.operands, *self.results)
        return len({a.name for t in tensors for v in t.versions or () for a in (*v.unreduced, *(a for d in v.dims for a in d.axes))})

    def delays(self, linear: tuple[tuple[int, ...], ...]) -> Iterator[tuple[Axes, tuple[int, ...]]]:
        """The sums that may go on waiting: axes and the operands that wait for them."""
        for group in linear:
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
        seen: dict[tuple[Axes, ...], None] = {}
        sources: list[dict[int, Axes]] = []
        for mapping, tensor in zip(self.rule.mappings, (*self.operands, *self.results), strict=True):
            for version in tensor.versions or ():
                found = self._factors(mapping, version, waiting)
                if any(found.values()) and found not in sources:
                    sources.append(found)
        orders = [sources[::-1], sources]
        orders += [[source, *(s for s in sources if s is not source)] for source in sources]
        orders += [[source] for source in sources]
        orders.append([])
        for order in orders:
            proposal = self._legal(self._merged(order))
            if proposal not in seen:
                seen[proposal] = None
                yield proposal
                trimmed = self._legal(tuple(() if t is FactorType.REDUCTION else a for t, a in zip(self.rule.factor_types, proposal)))
                if trimmed not in seen:
                    seen[trimmed] = None
                    yield trimmed

    def _factors(self, mapping: Sequence[Sequence[int]], of: Layout, waiting: Axes) -> dict[int, Axes]:
        found: dict[int, Axes] = {}
        for factor, sharding in project(mapping, of, self.rule.factor_sizes, self.mesh, True).factors.items():
            kept: list[AxisRef] = []
            for axis in sharding.axes:
                if not axis.is_full or axis in waiting:
                    break
                kept.append(axis)
            found[factor] = tuple(kept)
        return found

    def _merged(self, order: Sequence[dict[int, Axes]]) -> tuple[Axes, ...]:
        chosen: list[Axes] = [()] * self.rule.num_factors
        used: set[str] = set()
        for source in order:
            for factor, axes in source.items():
                has = chosen[factor]
                if axes[: len(has)] != has:
                    continue
                for axis in axes[len(has) :]:
                    if axis.name in used:
                        break
                    used.add(axis.name)
                    chosen[factor] = (*chosen[factor], axis)
        return tuple(chosen)

    def _legal(self, axes: Sequence[Axes]) -> tuple[Axes, ...]:
        """Without what the op cannot run with."""
        rule = self.rule
        out = list(axes)
        for factor, kind in enumerate(rule.factor_types):
            if kind is FactorType.NEED_REPLICATION or (kind is FactorType.PERMUTATION and self.moved is None):
                out[factor] = ()
            elif factor not in self.uneven:
                while out[factor] and rule.factor_sizes[factor] % ways(out[factor], self.mesh):
                    out[factor] = out[factor][:-1]
        changed = rule.has_compound_dims
        while changed:
            changed = False
            for dims in rule.mappings:
                for dim in dims:
                    full = True
                    for factor in dim:
                        if not full and out[factor]:
                            out[factor] = ()
                            changed = True
                        full = full and ways(out[factor], self.mesh) == rule.factor_sizes[factor]
        return tuple(out)

    def layouts(self, axes: Sequence[Axes]) -> list[Layout]:
        """The layout of every tensor under the axes."""
        return [
            layout([tuple(axis for factor in dim for axis in axes[factor]) for dim in mapping]) if mapping else layout(())
            for mapping in self.rule.mappings
        ]

    def rate(self, axes: tuple[Axes, ...], waiting: Axes, group: tuple[int, ...]) -> tuple[tuple[float, float], Decision]:
        """What running so costs."""
        rule, mesh = self.rule, self.mesh
        count = len(self.operands)
        placed = self.layouts(axes)
        needed = tuple(partial(of, waiting) if i in group else of for i, of in enumerate(placed[:count]))
        summed = tuple(axis for factor in rule.reduction for axis in axes[factor])
        at_once = summed if self.combine != "add" else ()
        left = tuple(sorted((*waiting, *(() if at_once else summed))))
        made = tuple(partial(of, left) for of in placed[count:])
        total, inside = 0.0, 0
        for operand, want in zip(self.operands, needed, strict=True):
            if operand.versions is not None:
                total += operand.often * min(_cost(version, want, operand, mesh) for version in operand.versions)
        for result, has, bare in zip(self.results, made, placed[count:], strict=True):
            if at_once:
                piece = result.bits * math.prod(-(-n // ways(d.axes, mesh)) for n, d in zip(result.shape, bare.dims)) // 8
                inside += received("all_reduce", ways(at_once, mesh), piece, piece) + STARTING
            total += _later(has, result, mesh)
        counts = [ways(a, mesh) for a in axes]
        if self.moved is not None:
            exchanged = self.moved(counts)
            inside += exchanged + STARTING if exchanged else 0
        work = self.weight * math.prod(rule.factor_sizes) / math.prod(counts)
        return (total + inside + work, -float(len(waiting))), Decision(axes, needed, made, at_once, inside, work, total + inside + work)


def _later(has: Layout, result: Tensor, mesh: Mesh) -> int:
    """What bringing a result to where it will be asked for costs; each layout from the cheapest of those there are by then."""
    if result.versions is None:
        return _cost(has, layout([d.axes for d in has.dims]), result, mesh)
    there = [has]
    total = 0
    for wanted in result.versions:
        if any(axis not in has.unreduced for axis in wanted.unreduced):
            wanted = partial(wanted, [axis for axis in wanted.unreduced if axis in has.unreduced])
        total += min(_cost(version, wanted, result, mesh) for version in there)
        there.append(wanted)
    return total


def _cost(version: Layout, want: Layout, tensor: Tensor, mesh: Mesh) -> int:
    if version is want:
        return 0
    if any(axis not in version.unreduced for axis in want.unreduced):
        return 1 << 60
    return cost(version, want, tensor.shape, tensor.bits, mesh, STARTING)
