"""The reason why an axis is not on a dimension: the place where it stops on its way there, and the obstacle."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import Axes, contains, is_prefix, num_shards
from shardy_py.dialect.format import format_axis, short_location
from shardy_py.dialect.projection import TensorFactors, project
from shardy_py.dialect.rule import factor_symbol
from shardy_py.ir import Block, Op, Value
from shardy_py.passes import dataflow
from shardy_py.passes.export.input_output_shardings import NON_DIVISIBLE as INDIVISIBLE
from shardy_py.passes.propagation.compatible import BACKWARD, FORWARD, NONE, compatible_major_axes, fit_across_factors, fit_within_factor
from shardy_py.passes.propagation.graph import Holder
from shardy_py.passes.propagation.step import FactorStrategy, common_mesh, propagate_step
from shardy_py.plan.checks.specs import nearest
from shardy_py.plan.explainer import Explainer, title
from shardy_py.plan.explanation import KINDS, Missing, Reason
from shardy_py.plan.neighbours import Neighbours, dims_with
from shardy_py.plan.values import PlannedValue


class Obstacle(NamedTuple):
    """The obstacle in the way of an axis; `dim` is -1 where it is on none in particular, kind `none` means that there is none."""

    kind: str
    tensor: int
    dim: int = -1
    axis: AxisRef | None = None
    size: int = 0


class Passage(NamedTuple):
    """The passage of an axis from one tensor to another along a factor of both."""

    neighbours: Neighbours
    target: int
    source: int
    factor: int
    axis: str


def obstacle(passage: Passage, explainer: Explainer) -> Obstacle:
    """The obstacle in the way of an axis from one tensor to another when propagation ends."""
    neighbours, target, source, factor, axis = passage
    rule, direction = neighbours.rule, neighbours.directions[factor]
    operands = len(rule.operand_mappings)
    if direction == NONE:
        return Obstacle("barrier" if neighbours.kind == "barrier" else "blocked", source)
    if (direction == FORWARD and source >= operands) or (direction == BACKWARD and source < operands):
        return Obstacle("barrier", source)
    if neighbours.kind == "edge" and neighbours.op is not None and axis in dataflow.manual_axes(neighbours.op):
        return Obstacle("manual", source)
    history, meshes, options = explainer.history, explainer.meshes, explainer.plan.propagation
    strategies = ("basic", "aggressive") if options.strategy == "basic-then-aggressive" else (cast(FactorStrategy, options.strategy),)
    compared = [neighbours.view.seen(i, history.at(holder, history.end)) for i, holder in enumerate(neighbours.holders)]
    named_mesh = common_mesh(compared, meshes)
    if named_mesh is None:
        return Obstacle("mesh", source)
    mesh, mappings = named_mesh[1], rule.mappings
    tensors = [project(m, s, rule.factor_sizes, mesh) for m, s in zip(mappings, compared, strict=True)]
    agreed = compatible_major_axes(tensors, operands, factor, direction)
    source_axes = tensors[source].factors[factor].axes
    place = next((i for i, a in enumerate(source_axes) if a.name == axis), None)
    if place is None:
        return Obstacle("part", source, _dim_of(mappings[source], factor))
    if all(a.name != axis for a in agreed):
        return _conflict(tensors, mappings, factor, source_axes[: place + 1], target)
    conservative = options.conservative and neighbours.kind == "op"
    for i in range(len(tensors)) if strategies == ("basic",) else (target,):
        if factor in tensors[i].factors and (stop := _stop(passage, i, tensors[i], agreed, mesh, conservative)) is not None:
            return stop
    for strategy in strategies:
        how = {"strategy": strategy, "conservative": conservative, "elementwise": neighbours.elementwise}
        update = propagate_step(rule, neighbours.directions, compared, meshes, **how)
        if any(i == target for i, _ in update):
            return Obstacle("none", target)
    return Obstacle("major", target, _dim_of(mappings[target], factor))


def _conflict(
    tensors: Sequence[TensorFactors], mappings: Sequence[Sequence[Sequence[int]]], factor: int, source_axes: Axes, target: int
) -> Obstacle:
    """The first tensor whose axes are no prefix of the source's and have it as no prefix; the target before all others."""
    order = [target, *(i for i in range(len(tensors)) if i != target)]
    for i in order:
        state = tensors[i].factors.get(factor)
        if state is None or is_prefix(state.axes, source_axes) or is_prefix(source_axes, state.axes):
            continue
        other = next((a for a, b in zip(state.axes, source_axes) if a is not b), state.axes[-1])
        return Obstacle("conflict", i, _dim_of(mappings[i], factor), other)
    return Obstacle("conflict", target, _dim_of(mappings[target], factor))


def _stop(passage: Passage, number: int, tensor: TensorFactors, agreed: Axes, mesh: Mesh, conservative: bool) -> Obstacle | None:
    """The obstacle that keeps one tensor from taking the axes up to the axis of the passage."""
    rule, factor, axis = passage.neighbours.rule, passage.factor, passage.axis
    mapping, size = rule.mappings[number], rule.factor_sizes[factor]
    state = tensor.factors[factor]
    dim = _dim_of(mapping, factor)
    before = 1
    for each in agreed:
        if not any(own.name == each.name and contains(own, each) for own in state.axes):
            fitted = fit_within_factor(each, before, tensor, state, size, mesh)
            across = None if fitted is None else fit_across_factors(fitted, tensor, factor)
            if fitted is None or (state.axes and state.axes[-1] is fitted):
                if any(a.name == each.name for a in tensor.blocked_axes):
                    return Obstacle("replicated", number, dim, each)
                if state.closed:
                    return Obstacle("closed", number, dim, each)
                if state.overflow:
                    return Obstacle("overflow", number, dim, state.overflow[0])
                return Obstacle("indivisible", number, dim, each, size // before if size % before == 0 else size)
            if across is None:
                return Obstacle("used", number, _holding(tensor, mapping, each, factor), each)
            if conservative and across.size is not None:
                return Obstacle("conservative", number, dim, each, size)
            if across is not each:
                return None if each.name == axis else Obstacle("indivisible", number, dim, each, size)
        if each.name == axis:
            return None
        before *= each.size_in(mesh)
    return None


def _holding(tensor: TensorFactors, mapping: Sequence[Sequence[int]], axis: AxisRef, factor: int) -> int:
    """The dimension of the other factor that has an axis; the own dimension if no other factor has it."""
    for f, state in tensor.factors.items():
        if f != factor and any(used.name == axis.name for used in (*state.axes, *state.overflow)):
            return _dim_of(mapping, f)
    return _dim_of(mapping, factor)


def _dim_of(mapping: Sequence[Sequence[int]], factor: int) -> int:
    return next(d for d, dim in enumerate(mapping) if factor in dim)


_MAX_STOPS = 16
"""Obstacles at the same distance that are compared."""


Stop = tuple[Passage, Obstacle]
"""The place where an axis stops."""


def missing(explainer: Explainer, holder: Holder, dim: int, axis: str, planned: PlannedValue) -> Missing:
    """The reason why a dimension lacks an axis."""
    return _ObstacleSearch(explainer, holder, dim, axis, planned).answer()


class _ObstacleSearch:
    def __init__(self, explainer: Explainer, holder: Holder, dim: int, axis: str, planned: PlannedValue) -> None:
        self.explainer = explainer
        self.history = explainer.history
        self.neighbourhood = explainer.neighbourhood
        self.holder, self.dim, self.axis, self.planned = holder, dim, axis, planned
        self.size = planned.shape[dim]

    def answer(self) -> Missing:
        own = self.history.at(self.holder, self.history.end)
        if own is not None and own.mesh_in(self.explainer.meshes).is_maximal:
            return self.on_one_device()
        if dims := dims_with(own, self.axis):
            return self.cut() if self.dim in dims else self.used(dims[0])
        if not any(dims_with(s, self.axis) for s in self.history.annotated.values()):
            return self.absence("absent", f"no annotation names {self.axis!r}")
        if (op := self.manual_over()) is not None:
            return self.absence(
                "manual", f"{self.axis!r} is manual inside of the shard_map that it is in", location=self.explainer.locate(op)
            )
        related = self.neighbourhood.related
        stop = self.nearest() if related.root((self.holder, self.dim)) in self.neighbourhood.parts_with(self.axis) else None
        adjacent = stop is not None and stop[0].neighbours.holders[stop[0].target] is self.holder
        if own is not None and own.dims[self.dim].is_closed and not adjacent:
            return self.closed()
        return self.unrelated() if stop is None else self.stopped(stop)

    def manual_over(self) -> Op | None:
        """The manual computation over the axis that the value is made in."""
        owner = self.holder.owner if isinstance(self.holder, Value) else None
        around = owner.parent if isinstance(owner, Op | Block) else None
        ops = around.outward() if isinstance(around, Op) else ()
        return next((op for op in ops if self.axis in dataflow.manual_axes(op)), None)

    def on_one_device(self) -> Missing:
        op = self.holder.owner if isinstance(self.holder, Value) else None
        if not isinstance(op, Op):
            return self.absence("one-device", f"{self.explainer.name(self.holder)} lies on one device")
        through, fix = title(op), "give it a rule with shardy_py.sharding_rule"
        message = f"{through} runs on one device, where its results stay"
        return self.absence("one-device", message, through=through, location=self.explainer.locate(op), fix=fix)

    def absence(self, kind: str, message: str, **parts: object) -> Missing:
        return Missing(self.dim, self.axis, kind, message, **parts)  # pyright: ignore[reportArgumentType]

    def name(self, holder: Holder, dim: int) -> str:
        return f"dimension {dim} of {self.explainer.name(holder)}"

    def chain(self, holder: Holder, dim: int, axis: str) -> tuple[Reason, ...]:
        """The chain of an axis on a dimension, up to the last part of the axis."""
        sharding = self.history.at(holder, self.history.end)
        axes = () if sharding is None else sharding.dims[dim].axes
        last = max((i for i, a in enumerate(axes) if a.name == axis), default=None)
        return () if last is None else self.explainer.chain(holder, dim, axes[: last + 1])

    def used(self, other: int) -> Missing:
        if other in dims_with(self.planned.sharding, self.axis):
            message = f"{self.axis!r} is on dimension {other} of {self.explainer.name(self.holder)}, and an axis is used once"
        else:
            message = f"{self.axis!r} came to dimension {other} of {self.explainer.name(self.holder)}, where it was cut afterwards"
        return self.absence("used", message, winner=self.chain(self.holder, other, self.axis))

    def cut(self) -> Missing:
        cuts = self.history.cuts(self.holder, self.dim)
        name = self.name(self.holder, self.dim)
        for old, _, why in cuts:
            if why == INDIVISIBLE:
                mesh = old.mesh_in(self.explainer.meshes)
                axes = old.dims[self.dim].axes
                shards = num_shards(axes, mesh)
                message = (
                    f"{self.axis!r} came to {name}, but {self.size} is not a multiple of {shards} ({', '.join(map(format_axis, axes))}):"
                    " inputs and outputs have equal pieces"
                )
                fix = f"make it {nearest(self.size, shards)}"
                return self.absence("indivisible", message, winner=self.chain(self.holder, self.dim, self.axis), fix=fix)
        why = cuts[0][2] if cuts else "it was taken away after the propagation"
        return self.absence("cut", f"{self.axis!r} came to {name}, but {why}", winner=self.chain(self.holder, self.dim, self.axis))

    def closed(self) -> Missing:
        annotation, where = self.explainer.closer(self.holder, self.dim)
        message = f"{self.name(self.holder, self.dim)} is closed by {annotation}, and none of its neighbours has {self.axis!r} to give"
        fix = f"name {self.axis!r} in {annotation}, or leave the dimension open: P.UNCONSTRAINED"
        return self.absence("closed", message, location=where, fix=fix)

    def nearest(self) -> Stop | None:
        """The stop of the axis nearest to the dimension, among dimensions that rules relate to it."""
        end, history = self.history.end, self.history
        start = (self.holder, self.dim)
        visited = {start}
        level = [start]
        while level:
            stops: list[Stop] = []
            following = []
            for holder, dim in level:
                for neighbours, i, factor in self.neighbourhood.of_dimension(holder, dim):
                    for j, other in enumerate(neighbours.holders):
                        for d, factors in enumerate(neighbours.rule.mappings[j]):
                            if factor not in factors or (other, d) in visited:
                                continue
                            if d in dims_with(history.at(other, end), self.axis):
                                if len(stops) < _MAX_STOPS:
                                    passage = Passage(neighbours, i, j, factor, self.axis)
                                    stops.append((passage, obstacle(passage, self.explainer)))
                            elif neighbours.directions[factor]:
                                visited.add((other, d))
                                following.append((other, d))
            if stops:
                return min(stops, key=lambda stop: KINDS.index(stop[1].kind) if stop[1].kind in KINDS else len(KINDS))
            level = following
        return None

    def stopped(self, stop: Stop) -> Missing:
        """The reason with the obstacle that stops the axis."""
        passage, blocker = stop
        neighbours, factor = passage.neighbours, passage.factor
        target, source = neighbours.holders[passage.target], neighbours.holders[passage.source]
        target_dim, source_dim = (_dim_of(neighbours.rule.mappings[i], factor) for i in (passage.target, passage.source))
        through, where = self.explainer.through(neighbours)
        here = self.name(target, target_dim)
        place = f" at {short_location(where)}" if where else ""
        lead = f"{self.name(source, source_dim)} has {self.axis!r}, which {through}{place} would bring to {here}"
        kind, why, fix, winner = self.in_words(passage, blocker, target, target_dim)
        far = "" if target is self.holder and target_dim == self.dim else f"; {self.name(self.holder, self.dim)} would get it from there"
        message = f"{lead}, but {why}{far}"
        if kind == "part":
            message = f"{self.name(source, source_dim)} has {self.axis!r}, but on another part than {through}{place} relates to {here}{far}"
        return self.absence(
            kind,
            message,
            value=self.explainer.name(target),
            stopped=target_dim,
            source=self.explainer.name(source),
            source_dim=source_dim,
            through=through,
            rule="" if neighbours.kind != "op" else str(neighbours.rule),
            factor=factor_symbol(factor),
            location=where,
            winner=winner,
            fix=fix,
        )

    def in_words(self, passage: Passage, blocker: Obstacle, target: Holder, target_dim: int) -> tuple[str, str, str, tuple[Reason, ...]]:
        """Kind, reason, fix, and the chain of the blocking axis."""
        neighbours = passage.neighbours
        holder = neighbours.holders[blocker.tensor]
        axis = self.axis if blocker.axis is None else blocker.axis.name
        place = self.name(holder, blocker.dim) if blocker.dim >= 0 else self.explainer.name(holder)
        symbol = factor_symbol(passage.factor)
        if blocker.kind == "conflict":
            return "conflict", *self.conflict(passage, blocker, target, target_dim)
        if blocker.kind == "closed":
            annotation, _ = self.explainer.closer(holder, blocker.dim)
            fix = f"name {axis!r} in {annotation}, or leave the dimension open: P.UNCONSTRAINED"
            return "closed", f"{place} is closed by {annotation}", fix, ()
        if blocker.kind == "replicated":
            annotation, _ = self.explainer.annotation(holder)
            why = f"{annotation} of {self.explainer.name(holder)} says that {axis!r} is not used"
            return "replicated", why, f"name it in {annotation}", ()
        if blocker.kind == "used":
            before = "" if axis == self.axis else f", and {axis!r} comes before {self.axis!r}"
            why = f"{axis!r} is on {place} already{before}"
            return "used", why, "", self.chain(holder, blocker.dim, axis)
        if blocker.kind in ("indivisible", "overflow"):
            shards = self.explainer.plan.mesh.shape.get(axis, 1)
            size = blocker.size or neighbours.rule.factor_sizes[passage.factor]
            why = f"{shards} devices along {axis!r} do not divide the factor {symbol} of size {size} of {place}"
            return "indivisible", why, f"make it {nearest(size, shards)}", ()
        if blocker.kind == "blocked":
            whole = " (it needs it whole)" if passage.factor in neighbours.rule.need_replication else ""
            return "blocked", f"nothing propagates along its factor {symbol}{whole}", "constrain the value itself", ()
        words = {
            "barrier": ("the barrier lets no sharding pass in this direction", "change its allowed_direction"),
            "major": (f"the more significant part of {place} is not sharded whole, so that its factor {symbol} cannot be", ""),
            "conservative": (f"{axis!r} would have to be split, which conservative=True forbids", ""),
            "part": ("", ""),
            "manual": (f"{axis!r} is manual inside of it", ""),
            "mesh": ("its values are on different meshes", ""),
            "late": ("propagation did not visit it again", "constrain the value itself"),
        }
        kind = blocker.kind if blocker.kind in words else "late"
        return kind, *words[kind], ()

    def conflict(self, passage: Passage, blocker: Obstacle, target: Holder, target_dim: int) -> tuple[str, str, tuple[Reason, ...]]:
        neighbours = passage.neighbours
        if blocker.axis is None:
            return "the shardings of its other values do not agree with it", "", ()
        holder, axis = neighbours.holders[blocker.tensor], blocker.axis.name
        place = self.name(holder, blocker.dim)
        winner = self.chain(holder, blocker.dim, axis)
        loser = self.chain(neighbours.holders[passage.source], _dim_of(neighbours.rule.mappings[passage.source], passage.factor), self.axis)
        first = _rank(winner, loser)
        why = f"{place} has {format_axis(blocker.axis)!r} there{first}"
        ends = dict.fromkeys(f"{r.annotation} of {r.value}" for r in winner if r.annotation)
        fix = f"constrain {self.name(target, target_dim)} to {self.axis!r}"
        if ends:
            fix += f", or take {axis!r} from {' and '.join(ends)}"
        return why, fix, winner

    def unrelated(self) -> Missing:
        """The reason with the op that relates no dimension to this one, on the way to the nearest value with the axis."""
        path = self.path()
        if not path:
            return self.absence("unrelated", f"no value that computes with {self.explainer.name(self.holder)} has {self.axis!r}")
        related = self.neighbourhood.related
        home = related.root((self.holder, self.dim))
        here = self.holder
        between = path[-1]
        for between in path:
            _, neighbours, following = between
            rank = len(neighbours.rule.mappings[neighbours.holders.index(following)]) if neighbours is not None else 0
            if all(related.root((following, d)) != home for d in range(rank)):
                break
            if following is not path[-1][2]:
                here = following
        op, neighbours, _ = between
        source = path[-1][2]
        source_dim = dims_with(self.history.at(source, self.history.end), self.axis)[0]
        where = self.explainer.locate(op)
        through = title(op) if op is not None else "the return of the function"
        place = f" at {short_location(where)}" if where else ""
        nearest = f"the nearest that has it is {self.name(source, source_dim)}"
        parts = {
            "value": self.explainer.name(here),
            "source": self.explainer.name(source),
            "source_dim": source_dim,
            "through": through,
            "location": where,
        }
        if neighbours is None:
            if op is not None and op.rule is not None:
                message = f"no rule relates it to a dimension with {self.axis!r}; {nearest}, across {through}{place}"
                return self.absence("unrelated", message, **parts)
            message = f"nothing passes through {through}{place}, which has no sharding rule; {nearest}"
            return self.absence("no-rule", message, fix="give it a rule with shardy_py.sharding_rule", **parts)
        parts["rule"] = str(neighbours.rule)
        if neighbours.kind == "barrier":
            return self.absence("barrier", f"the propagation barrier{place} lets nothing pass; {nearest}", **parts)
        mapping = neighbours.rule.mappings[neighbours.holders.index(here)]
        factors = [f for d, dim in enumerate(mapping) if related.root((here, d)) == home for f in dim]
        parts["factor"] = ",".join(map(factor_symbol, factors))
        if any(not neighbours.directions[f] for f in factors):
            return self.absence("blocked", f"nothing propagates along factor {parts['factor']} of {through}{place}; {nearest}", **parts)
        message = f"no rule relates it to a dimension with {self.axis!r}; {nearest}, across {through}{place}"
        return self.absence("unrelated", message, **parts)

    def path(self) -> list[tuple[Op | None, Neighbours | None, Holder]]:
        """The ops between the value and the nearest one that has the axis, whatever their rules say."""
        previous: dict[Holder, tuple[Holder, Op | None, Neighbours | None]] = {}
        queue = deque([self.holder])
        end = self.history.end
        while queue:
            holder = queue.popleft()
            for op, neighbours, other in self.steps_from(holder):
                if other is self.holder or other in previous:
                    continue
                previous[other] = (holder, op, neighbours)
                if dims_with(self.history.at(other, end), self.axis):
                    steps = []
                    while other is not self.holder:
                        before, op, neighbours = previous[other]
                        steps.append((op, neighbours, other))
                        other = before
                    return steps[::-1]
                queue.append(other)
        return []

    def steps_from(self, holder: Holder) -> Iterator[tuple[Op | None, Neighbours | None, Holder]]:
        """The values that share an op, edge or group with one."""
        for neighbours, _ in self.neighbourhood.at.get(holder, ()):
            for other in neighbours.holders:
                yield neighbours.op, neighbours, other
        if isinstance(holder, Value):
            ops = [user for user, _ in holder.uses]
            if isinstance(holder.owner, Op):
                ops.append(holder.owner)
            for op in ops:
                if op not in self.neighbourhood.ops and not op.regions and op.results:
                    for value in (*op.operands, *op.results):
                        yield op, None, self.history.holder(value)


def _rank(winner: tuple[Reason, ...], loser: tuple[Reason, ...]) -> str:
    """The priority that put the winner before the loser; empty for other causes."""
    if not winner or not loser:
        return ""
    winner_priority, loser_priority = (max(r.user_priority for r in chain) for chain in (winner, loser))
    if winner_priority > loser_priority:
        return ""
    if winner_priority < loser_priority:
        return f" (with the user priority {winner_priority}, {loser[0].axis!r} has {loser_priority})"
    if not winner[0].needs:
        return ""
    if winner[0].op_priority < loser[0].op_priority:
        return f" (which came at op priority {winner[0].op_priority}, {loser[0].axis!r} at {loser[0].op_priority})"
    return " (which came first)" if winner[0].step < loser[0].step else ""
