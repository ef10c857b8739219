"""The reshards and reductions around one op, as a pure function of its rule and shardings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from shardy_py.dialect import AxisRef, FactorType, Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import (
    Axes,
    add_axis_or_merge,
    common_prefix_of_lists,
    is_strict_prefix,
    merged,
    num_shards,
    overlaps,
    set_difference,
    sort_and_merge,
    truncate_by_removing_overlaps,
)
from shardy_py.dialect.projection import FactorSharding, TensorFactors, project, unproject
from shardy_py.dialect.rule import factor_symbol
from shardy_py.errors import ShardyError
from shardy_py.ir import Type
from shardy_py.opt.explicit_reshards.unreduced import unreduced_of
from shardy_py.rules.traits import DOTS

FactorAxes = Mapping[int, Axes]
"""Factor -> its axes in one tensor; factors that the tensor does not have, or that an overflow hides, are left out."""

AxesPerFactor = list[Axes]
"""The axes of every factor of a rule, those under which the op runs."""


@dataclass(frozen=True)
class Decision:
    """The reshards and reductions to insert around one op.

    Attributes:
        results: `(result number, sharding)` of results that the op makes with another sharding than it had; a reshard
            back follows.
        unless_equal: Whether an operand is left alone that has an equivalent sharding already. It may have one behind a
            propagation barrier, where the choice looks at another sharding than the operand's own.
    """

    mesh: str | Mesh
    operands: tuple[tuple[int, TensorSharding], ...] = ()
    results: tuple[tuple[int, TensorSharding], ...] = ()
    reduced: Axes = ()
    unless_equal: bool = False


@dataclass(frozen=True)
class _Setting:
    """An op with the axes of its tensors dealt out to factors."""

    op_name: str
    rule: OpShardingRule
    shardings: Sequence[TensorSharding | None]
    types: Sequence[Type]
    mesh_name: str | Mesh
    mesh: Mesh
    meshes: Mapping[str, Mesh]
    tensors: Sequence[TensorFactors]

    def with_axes(self, i: int, axes: Mapping[int, Axes] | AxesPerFactor) -> TensorSharding:
        """The sharding of a tensor whose factors have the given axes and no overflow."""
        factors = {f: FactorSharding(axes[f], old.closed, old.minor_most) for f, old in self.tensors[i].factors.items()}
        tensor = TensorFactors(factors, ())
        return unproject(self.rule.mappings[i], tensor, self.shardings[i], self.rule.factor_sizes, self.mesh, self.mesh_name)

    def reduced(self, common: AxesPerFactor) -> Axes:
        """The axes along which results are summed up if the op runs under the given axes."""
        axes = [axis for factor in self.rule.reduction for axis in common[factor]]
        return set_difference(axes, unreduced_of(self.shardings[len(self.rule.operand_mappings)]), self.mesh)


_Changes = list[tuple[int, TensorSharding]]
"""`(tensor number, new sharding)`, operands before results."""


def decide(
    op_name: str,
    rule: OpShardingRule,
    shardings: Sequence[TensorSharding | None],
    types: Sequence[Type],
    meshes: Mapping[str, Mesh],
    full: bool,
) -> Decision | None:
    """The axes under which an op runs, as the reshards that they imply; without `full`, only for `dot_case` and reductions."""
    named_mesh = most_used_mesh(shardings, meshes)
    if named_mesh is None:
        return None
    mesh_name, mesh = named_mesh
    tensors = [project(m, s, rule.factor_sizes, mesh, True) for m, s in zip(rule.mappings, shardings, strict=True)]
    setting = _Setting(op_name, rule, shardings, types, mesh_name, mesh, meshes, tensors)
    redistributed = full and op_name == "stablehlo.reshape" and any(map(_overflows, tensors))
    if full:
        if redistributed:
            common = redistribute(rule, tensors, mesh_name, mesh)
        else:
            common = find_common_axes(rule, factor_axes(tensors), [type_.size for type_ in types], mesh)
        changes, reduced = _changes(setting, common, redistributed), setting.reduced(common)
    else:
        changes, reduced = _dot_change(setting), _reduced_by_choice(setting)
    count = len(rule.operand_mappings)
    reduced = set_difference(reduced, unreduced_of(shardings[count]), mesh)
    if not changes and not reduced:
        return None
    return Decision(
        mesh_name,
        tuple((i, sharding) for i, sharding in changes if i < count),
        tuple((i - count, sharding) for i, sharding in changes if i >= count),
        sort_and_merge(reduced, mesh),
        redistributed,
    )


def most_used_mesh(shardings: Sequence[TensorSharding | None], meshes: Mapping[str, Mesh]) -> tuple[str | Mesh, Mesh] | None:
    """The mesh on which an op runs, with its name; None where the shardings are over different axes or one device.

    Meshes that differ in the order of their devices only do go together; the one that most sharded tensors are on is
    taken, and of several the one that was first on so many.
    """
    best: tuple[str | Mesh, Mesh] | None = None
    counts: dict[str | Mesh, int] = {}
    most = 0
    for sharding, mesh in matching_meshes(shardings, meshes):
        name = sharding.mesh
        count = counts[name] = counts.get(name, 0) + (not sharding.is_fully_replicated)
        if best is None or count > most:
            best, most = (name, mesh), count
    return best


def matching_meshes(shardings: Sequence[TensorSharding | None], meshes: Mapping[str, Mesh]) -> list[tuple[TensorSharding, Mesh]]:
    """Shardings with their meshes, but for empty ones; nothing where these are over different axes or one device."""
    pairs: list[tuple[TensorSharding, Mesh]] = []
    for sharding in shardings:
        if sharding is None:
            continue
        mesh = sharding.mesh_in(meshes)
        if mesh.is_empty:
            continue
        if mesh.is_maximal or (pairs and not mesh.same_axes(pairs[0][1])):
            return []
        pairs.append((sharding, mesh))
    return pairs


def _changes(setting: _Setting, common: AxesPerFactor, redistributed: bool) -> _Changes:
    """The shardings that change when all tensors get the common axes."""
    changes: _Changes = []
    for i, (tensor, old) in enumerate(zip(setting.tensors, setting.shardings, strict=True)):
        other_order = old is not None and not old.is_fully_replicated and old.mesh_in(setting.meshes) is not setting.mesh
        changed = other_order or _overflows(tensor) or any(sharding.axes != common[f] for f, sharding in tensor.factors.items())
        if not changed:
            continue
        new = setting.with_axes(i, common)
        is_result = i >= len(setting.rule.operand_mappings)
        if not (redistributed and is_result and new.is_equivalent(old)):
            changes.append((i, new))
    return changes


def _dot_change(setting: _Setting) -> _Changes:
    """The result of a dot that is resharded after the op rather than have an operand resharded."""
    if setting.op_name not in DOTS:
        return []
    tensors = factor_axes(setting.tensors)
    factor_and_axes = result_axes_of_dot(setting.rule, tensors, [type_.size for type_ in setting.types])
    if factor_and_axes is None:
        return []
    factor, axes = factor_and_axes
    return [(2, setting.with_axes(2, {**tensors[2], factor: axes}))]


def _reduced_by_choice(setting: _Setting) -> Axes:
    """The axes of reduction factors of an op whose result has unreduced axes; of another one, the partitioner sees to them."""
    rule = setting.rule
    if not rule.reduction or not unreduced_of(setting.shardings[len(rule.operand_mappings)]):
        return ()
    reduced: list[AxisRef] = []
    for factor in rule.reduction:
        factor_axes = [tensor.factors[factor].axes for tensor in setting.tensors if factor in tensor.factors]
        if any(axes != factor_axes[0] for axes in factor_axes):
            raise ShardyError(
                f"operands are sharded differently along reduction factor {factor_symbol(factor)}",
                where=f"'{setting.op_name}' with {rule}",
                why="the result has unreduced axes, so the operands must say along which axes it is reduced",
                fix="shard the operands alike, or leave the result without unreduced axes",
            )
        reduced.extend(factor_axes[0] if factor_axes else ())
    return tuple(reduced)


def _overflows(tensor: TensorFactors) -> bool:
    return any(sharding.overflow for sharding in tensor.factors.values())


def result_axes_of_dot(rule: OpShardingRule, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int]) -> tuple[int, Axes] | None:
    """The factor to shard in the result of a dot as in its operand, so that only the result is resharded.

    A result that is to be sharded by the very axes along which the dot sums, on a factor where the operand has others,
    is made with the operand's axes: its all-reduce and the reshard behind become one reduce-scatter, and no operand moves.
    It may be no larger than the operand with that factor; on a batching factor, than the larger operand.

    Example:
        `[{"x"}, {"y"}]` times `[{"y"}, {}]`, wanted as `[{"y"}, {}]`, is made as `[{"x"}, {}]`.

    Returns:
        `(factor, axes)`, or None where the op is no such dot.
    """
    lhs, rhs, result = tensors
    if any(axes != rhs[factor] for factor, axes in lhs.items() if factor in rhs):
        return None
    own = [axes for factor, axes in lhs.items() if factor not in rhs]
    others = [axes for factor, axes in rhs.items() if factor not in lhs]
    if any(overlap_between(axes, other) for axes in own for other in others):
        return None
    conflicts = [factor for factor, axes in result.items() if axes != lhs.get(factor, rhs.get(factor))]
    if len(conflicts) != 1 or not (
        conflicts[0] in lhs or conflicts[0] in rhs
    ):  # only the result has the factor, by a rule that the user attached
        return None
    factor = conflicts[0]
    sides = [i for i, operand in enumerate((lhs, rhs)) if factor in operand]
    axes = tensors[sides[0]][factor]
    reduced = tuple(axis for reduction in rule.reduction for axis in lhs[reduction])
    if not axes or not reduced or result[factor] != reduced or tensor_sizes[2] > max(tensor_sizes[i] for i in sides):
        return None
    return factor, axes


def redistribute(rule: OpShardingRule, tensors: Sequence[TensorFactors], mesh_name: str | Mesh, mesh: Mesh) -> AxesPerFactor:
    """The axes of each factor that operand and result of a reshape can both have.

    All axes of the side that is cut into more parts, the operand on ties, are dealt out over the factors of each side.
    Each side may then have less of them than before; each factor gets what both have at its beginning.
    """
    operand, result = tensors
    axes = max(_all_axes(rule, operand, 0), _all_axes(rule, result, 1), key=lambda axes: num_shards(axes, mesh))
    dealt: list[Mapping[int, FactorSharding]] = []
    for mapping, tensor in zip(rule.mappings, tensors, strict=True):
        sharding = _deal(mapping, tensor, axes, rule, mesh_name, mesh)
        dealt.append(project(mapping, sharding, rule.factor_sizes, mesh, True).factors)
    common: AxesPerFactor = [()] * rule.num_factors
    for factor in range(rule.num_factors):
        axes_of_sides = [side[factor].axes for side in dealt if factor in side]
        if axes_of_sides:
            common[factor] = common_prefix_of_lists(axes_of_sides[0], axes_of_sides[-1])
    return common


def _all_axes(rule: OpShardingRule, tensor: TensorFactors, i: int) -> Axes:
    axes: list[AxisRef] = []
    for dim in rule.mappings[i]:
        for factor in dim:
            sharding = tensor.factors.get(factor)
            if sharding is not None:
                axes.extend((*sharding.axes, *sharding.overflow))
    return tuple(axes)


def _deal(
    mapping: Sequence[Sequence[int]], tensor: TensorFactors, axes: Axes, rule: OpShardingRule, mesh_name: str | Mesh, mesh: Mesh
) -> TensorSharding:
    """The sharding of a tensor whose factors take the axes in turn, each axis to the extent that it divides the rest of a factor.

    Factors that an overflow hid take none. From the first axis that finds no factor on, the rest overflows the last one.
    """
    order = [factor for dim in mapping for factor in dim if factor in tensor.factors]
    left = {factor: rule.factor_sizes[factor] for factor in order}
    factors = {factor: FactorSharding((), True, factor == dim[-1]) for dim in mapping for factor in dim if factor in left}
    pending = list(axes)
    while pending:
        axis = pending[0]
        size = axis.size_in(mesh)
        taker = next((factor for factor in order if gcd(left[factor], size) > 1), None)
        if taker is None:
            break
        part = gcd(left[taker], size)
        left[taker] //= part
        portion = axis
        if part == size:
            pending.pop(0)
        else:
            pre = axis.pre_size or 1
            portion = AxisRef(axis.name, pre, part)
            pending[0] = AxisRef(axis.name, pre * part, size // part)
        factors[taker].axes = merged((*factors[taker].axes, portion), mesh)
    if order:
        last = factors[order[-1]]
        if last.minor_most:
            last.axes = merged((*last.axes, *pending), mesh)
        else:
            last.overflow = tuple(pending)
    return unproject(mapping, TensorFactors(factors, ()), None, rule.factor_sizes, mesh, mesh_name)


def find_common_axes(rule: OpShardingRule, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int], mesh: Mesh) -> AxesPerFactor:
    """The axes under which an op runs: the common ones where its tensors agree, else the cheapest.

    Cost is estimated by the sizes of the tensors that need not move. Of two tensors the preferred one wins; of more,
    the factors are settled by `vote`. Axes that factors with need of replication would have had go to the batching factors.

    Source: `findCommonAxes` of Shardy's explicit_reshards_util.cc.
    """
    agreed = compatible_axes(rule, tensors)
    if agreed is not None:
        return agreed
    if len(rule.non_scalar_tensors) == 2 and not rule.need_replication and not rule.has_compound_dims:
        return _axes_of_preferred(rule, tensors, tensor_sizes, mesh)
    chosen = vote(rule, tensors, tensor_sizes, mesh)
    for factor in rule.need_replication:
        if rule.is_in_all_non_scalar_tensors(factor):
            _give_to_batching_factors(rule, chosen[factor], chosen, mesh)
        chosen[factor] = ()
    return chosen


def compatible_axes(rule: OpShardingRule, tensors: Sequence[FactorAxes]) -> AxesPerFactor | None:
    """The axes of each factor if all tensors agree and the op can run so; else None.

    Factors that need replication must have no axes, and no axis may be used for two factors.
    """
    common: list[Axes | None] = [None] * rule.num_factors
    for tensor in tensors:
        for factor, axes in tensor.items():
            if axes and rule.factor_types[factor] is FactorType.NEED_REPLICATION:
                return None
            if common[factor] is None:
                common[factor] = axes
            elif common[factor] != axes:
                return None
    agreed = [axes or () for axes in common]
    return None if any_overlap(agreed) else agreed


def _axes_of_preferred(rule: OpShardingRule, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int], mesh: Mesh) -> AxesPerFactor:
    """The axes of the preferred of two tensors, and of the other what does not overlap them on factors of its own."""
    first, second = rule.non_scalar_tensors

    def preference(i: int) -> tuple[bool, int, int]:
        permuted = any(axes and rule.factor_types[factor] is FactorType.PERMUTATION for factor, axes in tensors[i].items())
        return not permuted, tensor_sizes[i], num_shards(tuple(axis for axes in tensors[i].values() for axis in axes), mesh)

    preferred, other = (second, first) if preference(second) > preference(first) else (first, second)
    used = tuple(axis for axes in tensors[preferred].values() for axis in axes)
    chosen: AxesPerFactor = [()] * rule.num_factors
    for factor, axes in tensors[other].items():
        chosen[factor] = truncate_by_removing_overlaps(axes, used)
    for factor, axes in tensors[preferred].items():
        chosen[factor] = axes
    return chosen


def _give_to_batching_factors(rule: OpShardingRule, axes: Axes, chosen: AxesPerFactor, mesh: Mesh) -> None:
    """Appends axes to the batching factors in order, as long as they divide."""
    rest = list(axes)
    for factor in rule.batching_factors:
        size = rule.factor_sizes[factor]
        if not size:
            continue
        extended = list(chosen[factor])
        parts = num_shards(chosen[factor], mesh)
        while rest and size % (parts * rest[0].size_in(mesh)) == 0:
            parts *= rest[0].size_in(mesh)
            add_axis_or_merge(extended, rest.pop(0), mesh)
        chosen[factor] = tuple(extended)


_PRECEDENCE = {FactorType.PASS_THROUGH: 3, FactorType.REDUCTION: 2, FactorType.PERMUTATION: 1, FactorType.NEED_REPLICATION: 0}


@dataclass
class AxesCandidate:
    """Axes proposed for a factor, with the sizes of all tensors that have them, and the further parts that they cut the factor into."""

    factor: int
    axes: Axes
    total: int
    precedence: int
    shards: int

    @property
    def rank(self) -> tuple[Any, ...]:
        """The sort key of candidates; the largest is taken."""
        return (self.total, self.precedence, self.shards, self.factor, len(self.axes), self.axes)


def vote(rule: OpShardingRule, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int], mesh: Mesh) -> AxesPerFactor:
    """Gives factors the best candidate, one after the other, until none is left.

    A candidate of a factor that stands behind another one in a dimension waits until that one is cut into single
    elements, as the dimension could not be sharded like that. When one wins, the others lose what overlaps it.
    """
    chosen: AxesPerFactor = [()] * rule.num_factors
    waiting = _predecessors(rule)
    candidates = _proposals(rule, tensors, tensor_sizes, mesh)
    while ready := [candidate for candidate in candidates if not waiting[candidate.factor]]:
        best = max(ready, key=lambda candidate: candidate.rank)
        factor, axes = best.factor, best.axes
        chosen[factor] = axes
        if num_shards(axes, mesh) == rule.factor_sizes[factor]:
            for others in waiting:
                others.discard(factor)
        candidates = [candidate for candidate in candidates if _update(candidate, factor, axes, chosen, mesh)]
    return chosen


def _proposals(rule: OpShardingRule, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int], mesh: Mesh) -> list[AxesCandidate]:
    """Every prefix of the axes that any tensor has on a factor, once."""
    proposed: dict[tuple[int, Axes], None] = {}
    for tensor in tensors:
        for factor, axes in tensor.items():
            for end in range(1, len(axes) + 1):
                proposed[factor, axes[:end]] = None
    return [
        AxesCandidate(
            factor, axes, _total(factor, axes, tensors, tensor_sizes), _PRECEDENCE[rule.factor_types[factor]], num_shards(axes, mesh)
        )
        for factor, axes in proposed
    ]


def _total(factor: int, axes: Axes, tensors: Sequence[FactorAxes], tensor_sizes: Sequence[int]) -> int:
    """The sizes of the tensors that have the axes on the factor, or more behind them."""
    total = 0
    for tensor, size in zip(tensors, tensor_sizes, strict=True):
        own = tensor.get(factor)
        if own is not None and (axes == own or is_strict_prefix(axes, own)):
            total += size
    return total


def _predecessors(rule: OpShardingRule) -> list[set[int]]:
    """For every factor those that stand right before it in a dimension of any tensor."""
    before: list[set[int]] = [set() for _ in rule.factor_sizes]
    for mapping in rule.mappings:
        for dim in mapping:
            for major, minor in itertools.pairwise(dim):
                before[minor].add(major)
    return before


def _update(candidate: AxesCandidate, factor: int, axes: Axes, chosen: AxesPerFactor, mesh: Mesh) -> bool:
    """Removes the axes of the winner from a candidate; False if none remain.

    A candidate that does not overlap counts in full again, even if its factor has been given axes in between; Shardy
    does it like that, and which candidate is next depends on it.
    """
    chosen_axes = chosen[candidate.factor]
    if candidate.factor == factor:
        if not is_strict_prefix(axes, candidate.axes):
            return False
        candidate.shards = num_shards(candidate.axes, mesh) // num_shards(axes, mesh)
        return True
    if not overlap_between(candidate.axes, axes):
        candidate.shards = num_shards(candidate.axes, mesh)
        return True
    candidate.axes = truncate_by_removing_overlaps(candidate.axes, axes)
    if candidate.axes == chosen_axes:
        return False
    candidate.shards = num_shards(candidate.axes, mesh) // num_shards(chosen_axes, mesh)
    return True


def factor_axes(tensors: Sequence[TensorFactors]) -> list[FactorAxes]:
    """The axes of every factor of every tensor, overflow left out."""
    return [{factor: sharding.axes for factor, sharding in tensor.factors.items()} for tensor in tensors]


def overlap_between(axes: Axes, others: Axes) -> bool:
    """Whether any axis of one list shares a part with any of the other."""
    return any(overlaps(axis, other) for axis in axes for other in others)


def any_overlap(per_factor: Sequence[Axes]) -> bool:
    """Whether two factors share a part of an axis."""
    used = [axes for axes in per_factor if axes]
    return any(overlap_between(axes, others) for i, axes in enumerate(used) for others in used[:i])
