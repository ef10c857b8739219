"""Interprets a jaxpr of global shapes on local arrays, inside the trace of one region."""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jax.extend.source_info_util import current, current_name_stack, user_context

from shardy_py.backends.local.jaxpr_analysis import NO_CONTEXT, JaxprAnalysis, Step
from shardy_py.backends.local.local_rule import Equation, LocalContext, LocalRule, bind, bits_of
from shardy_py.backends.local.reshard import all_reduce, in_mesh_order, reshard
from shardy_py.backends.local.sharded_value import RegionContext, ShardedValue, Values
from shardy_py.dialect import Mesh, OpShardingRule, TensorSharding
from shardy_py.dialect.axis import Axes
from shardy_py.dialect.projection import project
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.locations import locate
from shardy_py.partition.factor_axes import INDEXED, axes_of_factors
from shardy_py.partition.region.layouts import Layout, dim_axes, local_shape, names, replicated
from shardy_py.partition.region.reshard_steps import reshard_steps
from shardy_py.partition.region.runnable import layouts_under, runnable
from shardy_py.partition.region.strategies import ANY_LAYOUT, EquationSpec, Strategy, TensorLayouts, strategies, strategy_along
from shardy_py.plan.checks.wording import graded
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.findings import Finding, Severity

Array = Any
Handler = Callable[["Interpreter", JaxprEqn, int, Values, Scope | None], Values]
ScopedValues = dict[int, dict[Var, ShardedValue]]
"""Id of a scope -> values of its variables; scopes tell call sites of one jaxpr apart."""
EquationSite = tuple[int, int]
"""An equation at one call site: ids of the scope and of the equation."""


class LayoutHint(enum.Enum):
    """The goal of a strategy as long as the uses of its results are unknown."""

    PLAN = "the fewest bytes between operands and planned results"
    FORWARD = "the fewest bytes of operands"
    PLANNER = "the axes that a planner's model runs each equation along"


class Interpreter:
    """Runs jaxprs on local arrays.

    Args:
        previous: An earlier dry run of the same jaxprs; its requests are the wanted layouts of this run.

    Attributes:
        findings: Equations that had to run whole, with their price.
        values: In a dry run, values of the results of equations and of the arguments of loop bodies.
        charges: In a dry run, bytes that a device receives to run each equation.
        late: Trips of the loop behind which a variable is summed over devices.
    """

    def __init__(
        self,
        region: RegionContext,
        layout_of: Callable[[TensorSharding | None, int], Layout],
        analysis: JaxprAnalysis,
        previous: Interpreter | None = None,
        hint: LayoutHint = LayoutHint.PLAN,
        ranks: Mapping[EquationSite, int] | None = None,
        dry_run: Interpreter | None = None,
    ) -> None:
        self.ranks = ranks or {}
        self.charges: dict[EquationSite, int] = {}
        self.region = region
        self.hint = hint
        self.previous = previous
        self.previous_values = previous.values if previous is not None else {}
        self._requests = previous.requests if previous is not None else {}
        self._dry_run = dry_run
        self.values: ScopedValues = {}
        self.layout_of = layout_of
        self.analysis = analysis
        self.findings: list[Finding] = []
        self._sizes = dict(region.mesh.shape)
        self._scalars: dict[tuple[Any, int], ShardedValue] = {}
        self.late: dict[Any, int] = {}

    @property
    def mesh(self) -> Mesh:
        """The region's mesh."""
        return self.region.mesh

    @property
    def layout_feedback(self) -> Hashable:
        """All that the next run learns from this one: the first layout of every value, and the requested ones."""
        first = [next(iter(value.copies), None) for values in self.values.values() for value in values.values()]
        return tuple(first), tuple([tuple(requests.values()) for requests in self.requests.values()])

    @functools.cached_property
    def requests(self) -> dict[int, dict[Var, tuple[Layout, ...]]]:
        """The requested layouts of every value, after the run."""
        return {where: {v: tuple(value.requested) for v, value in values.items()} for where, values in self.values.items()}

    def release(self) -> None:
        """Drops the values of a dry run: those that can be rematerialized refer to it, and freeing such cycles costs Python much."""
        self.values.clear()
        self._scalars.clear()

    def new_value(self, array: Array, at: Layout, shape: tuple[int, ...], dtype: Any, *, uses: int = 0) -> ShardedValue:
        """A value with this device's part in one layout."""
        return ShardedValue(self.region, shape, dtype, at, array, uses=uses)

    def constant(self, value: Any, aval: Any) -> ShardedValue:
        """A replicated constant."""
        shape = tuple(getattr(aval, "shape", ()))
        return self.new_value(value, replicated(len(shape)), shape, getattr(aval, "dtype", None), uses=2)

    def jaxpr(self, jaxpr: Jaxpr, consts: Sequence[ShardedValue], arguments: Sequence[ShardedValue], scope: Scope | None) -> Values:
        """Runs a jaxpr; its results may have partial sums."""
        if scope is None:
            scope = self.analysis.scope(jaxpr)
        elif scope.jaxpr is not jaxpr and len(scope.jaxpr.invars) == len(jaxpr.invars):
            jaxpr = scope.jaxpr
        uses = self.analysis.uses(jaxpr)
        env: dict[Any, ShardedValue] = {}
        for v, value in zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True):
            value.uses = uses.get(v, 0) if value.uses == 1 else max(value.uses, 2)
            if value.planned is None:
                value.planned = scope.env.get(v)
            env[v] = value
        count = len(env)
        steps = self.analysis.steps(jaxpr)
        if self.region.dry:
            self._dry_run_steps(steps, env, scope)
            self.values.setdefault(id(scope), {}).update(itertools.islice(env.items(), count, None))
        else:
            self._run_steps(steps, env, scope)
        return [self._literal(v) if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]

    def _run_steps(self, steps: Sequence[Step], env: dict[Any, ShardedValue], scope: Scope) -> None:
        """Traces equations."""
        literals, movements = self._literal, self.region.movements
        around = movements.primitive
        for index, eqn, equation, reads, literal, results in steps:
            operands = [literals(v) if isinstance(v, Literal) else env[v] for v in reads] if literal else [env[v] for v in reads]
            movements.primitive = eqn.primitive.name
            with self.at_source(eqn):
                outs = self._run(eqn, index, equation, operands, scope)
            for (v, used), value in zip(results, outs, strict=True):
                if value.uses < 2:
                    value.uses = used
                if value.planned is None:
                    value.planned = scope.env.get(v)
                env[v] = self._settled(v, value)
        movements.primitive = around

    def _dry_run_steps(self, steps: Sequence[Step], env: dict[Any, ShardedValue], scope: Scope | None) -> None:
        """Tallies the costs of equations without tracing them."""
        literals, region, best_strategy = self._literal, self.region, self.best_strategy
        for index, eqn, equation, reads, literal, results in steps:
            operands = [literals(v) if isinstance(v, Literal) else env[v] for v in reads] if literal else [env[v] for v in reads]
            local_rule = None if equation is None or equation.is_empty else equation.cache.get("local_rule")
            best = None if equation is None or local_rule is None else best_strategy(equation, local_rule, operands, scope)
            if equation is None or best is None:
                outs = self._run(eqn, index, equation, operands, scope)
                for (v, used), value in zip(results, outs, strict=True):
                    if value.uses < 2:
                        value.uses = used
                    env[v] = self._settled(v, value)
            else:
                strategy = best[1]
                self._tally(eqn, operands, strategy, scope)
                for (v, used), at, shape, dtype in zip(results, strategy.results, equation.result_shapes, equation.result_dtypes):
                    env[v] = self._settled(v, ShardedValue(region, shape, dtype, at, uses=used))

    def _settled(self, v: Any, value: ShardedValue) -> ShardedValue:
        """The value of a variable, which is moved behind the loop if it is partial sums that are added up there."""
        if v in self.late and any(at.unreduced for at in value.copies):
            value.trips = self.region.trips / self.late[v]
        return value

    def _tally(self, eqn: JaxprEqn, operands: Sequence[ShardedValue], strategy: Strategy, scope: Scope | None) -> None:
        """Adds the cost of an equation to the tally of a dry run."""
        region = self.region
        spent = region.spent
        for value, at in zip(operands, strategy.operands):
            if at in value.copies:
                value.requested[at] = None
            else:
                value.get(at)
        trips = region.trips
        region.work += strategy.work * trips
        if strategy.inside:
            region.spent += strategy.inside * trips
        if region.spent > spent:
            self.charges[id(scope), id(eqn)] = region.spent - spent

    def record_value(self, v: Var, value: ShardedValue, scope: Scope | None) -> None:
        """Records the argument of a body for later runs, in a dry run."""
        if scope is not None and self.region.dry:
            self.values.setdefault(id(scope), {})[v] = value

    def previous_value(self, v: Any, scope: Scope | None) -> ShardedValue | None:
        """The value of a variable in the previous dry run, if any."""
        values = self.previous_values.get(id(scope))
        return None if values is None else values.get(v)

    def dry_run_value(self, v: Any, scope: Scope | None) -> ShardedValue | None:
        """The value of a variable in the dry run of the same choices; None in dry runs."""
        values = None if self._dry_run is None else self._dry_run.values.get(id(scope))
        return None if values is None else values.get(v)

    def _literal(self, v: Literal) -> ShardedValue:
        if not self.region.dry or getattr(v.aval, "shape", ()):
            return self.constant(_plain(v), v.aval)
        key = (getattr(v.aval, "dtype", None), self.region.trips)
        value = self._scalars.get(key)
        if value is None:
            value = self._scalars[key] = self.constant(None, v.aval)
        return value

    def at_source(self, eqn: JaxprEqn) -> contextlib.AbstractContextManager[Any]:
        """A context that gives traced equations the source location of an equation."""
        if self.region.dry:
            return NO_CONTEXT
        # JAX traces some bodies without the user's frames; their equations take the line of the call.
        source = eqn.source_info if locate(eqn.source_info) is not None else current()
        return user_context(source.traceback, name_stack=current_name_stack() + eqn.source_info.name_stack)

    def moving(self, variables: Sequence[Any], scope: Scope | None) -> contextlib.AbstractContextManager[Any]:
        """A context in which collectives are of the planned values of variables."""
        if scope is None or self.region.dry:
            return NO_CONTEXT
        return self.region.movements.moving(scope.env.get(v) for v in variables if not isinstance(v, Literal))

    def _exchanging(
        self, local_rule: LocalRule, axes: Sequence[Axes], operands: Values, eqn: JaxprEqn, scope: Scope | None
    ) -> contextlib.AbstractContextManager[Any]:
        """A context in which collectives are of the operand whose pieces a local rule exchanges, else of the results."""
        if local_rule.bytes_inside is None:
            return NO_CONTEXT
        cut = {factor for factor in local_rule.rule.permutation if axes[factor]}
        for value, mapping in zip(operands, local_rule.rule.operand_mappings, strict=True):
            if not cut.isdisjoint(itertools.chain.from_iterable(mapping)):
                return self.region.movements.moving([value.planned])
        return self.moving(eqn.outvars, scope)

    def _run(self, eqn: JaxprEqn, index: int, equation: Equation | None, operands: Values, scope: Scope | None) -> Values:
        """Runs an equation by its primitive's handler, or by its local rule."""
        if equation is not None:
            return self.run_rule(equation, operands, scope)
        return self.analysis.handlers[eqn.primitive.name](self, eqn, index, operands, scope)

    def run_rule(self, equation: Equation, operands: Values, scope: Scope | None, local_rule: LocalRule | None = None) -> Values:
        """Runs an equation by a local rule, by default its primitive's."""
        eqn = equation.eqn
        if equation.is_empty:
            return [self.arbitrary(s, d) for s, d in zip(equation.result_shapes, equation.result_dtypes, strict=True)]
        if local_rule is None:
            local_rule = equation.cache.get("local_rule") or self.analysis.local_rule(equation)
            if local_rule is None:
                body = self.analysis.body(eqn, self.region.platform)
                if body is None:
                    return self.run_whole(equation, operands)
                consts = [self.constant(c, v.aval) for c, v in zip(body.consts, body.jaxpr.constvars, strict=True)]
                with self.moving(eqn.outvars, scope):
                    return self.jaxpr(body.jaxpr, consts, operands, None)
        best = self.best_strategy(equation, local_rule, operands, scope)
        if best is None:
            return [self._rematerialized(equation, local_rule, operands, i) for i in range(len(eqn.outvars))]
        local_rule, strategy = best
        shapes, dtypes = equation.result_shapes, equation.result_dtypes
        region = self.region
        if region.dry:
            self._tally(eqn, operands, strategy, scope)
            return [ShardedValue(region, s, d, at) for at, s, d in zip(strategy.results, shapes, dtypes)]
        if not any(strategy.axes) and any(local_rule.rule.factor_sizes[f] > 1 for f in local_rule.rule.need_replication):
            dims = [not set(local_rule.rule.need_replication) & set(dim) for dim in local_rule.rule.operand_mappings[0]]
            free = " or ".join(str(d) for d, is_free in enumerate(dims) if is_free)
            fix = f"shard dimension {free} of its first operand instead" if free and not all(dims) else ""
            self.report_gathers(eqn, operands, "whole-dimension", f"{equation.name} runs whole on every device", fix, severity="info")
        arrays = [value.get(at) for value, at in zip(operands, strategy.operands, strict=True)]
        with self._exchanging(local_rule, strategy.axes, operands, eqn, scope):
            parts = self.apply_rule(equation, local_rule, strategy.axes, arrays)
        if strategy.reduced:
            over = in_mesh_order(strategy.reduced, self.mesh)
            parts = [self._reduced(x, over, local_rule, v, scope) for x, v in zip(parts, eqn.outvars, strict=True)]
        return [self.new_value(x, at, s, d) for x, at, s, d in zip(parts, strategy.results, shapes, dtypes, strict=True)]

    def _reduced(self, x: Array, over: Axes, local_rule: LocalRule, v: Any, scope: Scope | None) -> Array:
        """The result of an equation, given this device's part of the reduction."""
        with self.moving([v], scope):
            return all_reduce(x, over, local_rule.combine, self.region.platform)

    def apply_rule(self, equation: Equation, local_rule: LocalRule, axes: Sequence[Any], arrays: list[Array]) -> list[Array]:
        """Runs a local rule under the axes of its factors."""
        local = LocalContext(equation, local_rule, [names(a) for a in axes], self._sizes, self.region.platform)
        with self.analysis.settings_of(equation.eqn):
            return local_rule.run(local, arrays)

    def best_strategy(
        self, equation: Equation, local_rule: LocalRule, operands: Sequence[ShardedValue], scope: Scope | None
    ) -> tuple[LocalRule, Strategy] | None:
        """The local rule and the strategy by which an equation runs.

        Returns:
            The local rule, or one of its alternatives, and the strategy; None where all operands are free in any layout, so that results
            are computed in the layout of each use.
        """
        trips, anywhere = self.region.trips, True
        key: list[Any] = [id(local_rule)]
        for value in operands:
            if value.rematerialize is None:
                at = next(iter(value.copies))
                if value.shape or at.unreduced:
                    anywhere = False
                key.append(at if len(value.copies) == 1 and not at.unreduced and trips == value.trips else value.layout_key)
            else:
                key.append(value.layout_key)
        if anywhere and self._can_rematerialize(equation, local_rule):
            return None
        requests = self._requests.get(id(scope))
        for v, used in zip(equation.eqn.outvars, equation.used):
            if not used:
                key.append(())
            else:
                requested = None if requests is None else requests.get(v)
                key.append(self.wanted_layouts(v, scope) if requested is None else requested)
        planned = self._planned_op(equation, scope) if self.hint is LayoutHint.PLANNER else None
        late = tuple([self.late.get(v, 1) for v in equation.eqn.outvars]) if self.late else ()
        ranked = equation.cache.get((*key, planned, late))
        if ranked is None:
            operand_layouts, result_layouts = [value.layout_key for value in operands], key[1 + len(operands) :]
            ranked = self._strategies(equation, local_rule, operand_layouts, result_layouts, planned, late)
            equation.cache[(*key, planned, late)] = ranked
        return ranked[min(self.ranks.get((id(scope), id(equation.eqn)), 0), len(ranked) - 1)] if self.ranks else ranked[0]

    def _strategies(
        self,
        equation: Equation,
        local_rule: LocalRule,
        operand_layouts: Sequence[Any],
        result_layouts: Sequence[Any],
        planned: PlannedOp | None,
        late: Sequence[int],
    ) -> list[tuple[LocalRule, Strategy]]:
        """Strategies for an equation, the cheapest first; `late` has the loop trips behind which each result is moved, if any."""
        operands = tuple(
            [TensorLayouts(s, bits_of(d), *key) for s, d, key in zip(equation.shapes, equation.dtypes, operand_layouts, strict=True)]
        )
        results = tuple(map(TensorLayouts, equation.result_shapes, map(bits_of, equation.result_dtypes), result_layouts))
        results = tuple([r._replace(moves_per_trip=1 / n) for r, n in zip(results, late)]) or results
        ranked: list[tuple[LocalRule, Strategy]] = []
        for each in (local_rule, *local_rule.alternatives):
            own = each.combine, each.uneven, each.linear, each.bytes_inside, each.weight
            spec = EquationSpec(each.rule, operands, results, self.mesh, *own)
            if planned is None or each.bytes_inside is not None:
                ranked += [(each, strategy) for strategy in strategies(spec)]
            else:
                ranked.append((each, strategy_along(spec, planned.axes(each.rule, self.mesh))))
        return sorted(ranked, key=lambda pair: pair[1].cost)

    def _planned_op(self, equation: Equation, scope: Scope | None) -> PlannedOp | None:
        """The planned op of an equation, or None."""
        eqn = equation.eqn
        values = [] if scope is None else [value for v in eqn.outvars if (value := scope.env.get(v)) is not None]
        op = values[0].defining_op if values else None
        if op is None:
            return None
        operands, results = (
            tuple([self.planned(v, scope) or replicated(len(shape)) for v, shape in zip(variables, shapes)])
            for variables, shapes in ((eqn.invars, equation.shapes), (eqn.outvars, equation.result_shapes))
        )
        # An equation that is imported as its operand, such as a copy, or as several ops, such as eigh, runs as its results are sharded.
        is_one_op = op.primitive == equation.name and (op.name not in INDEXED or len(op.operands) == len(eqn.invars))
        return PlannedOp(op.name if is_one_op else "", operands, results)

    def wanted_layouts(self, v: Any, scope: Scope | None) -> tuple[Layout, ...] | None:
        """The layouts in which a result will be used: requested ones of the previous run, or the planned one; `ANY_LAYOUT` if unknown."""
        requests = self._requests.get(id(scope))
        requested = None if requests is None else requests.get(v)
        if requested is not None:
            return requested
        planned = None if self.hint is LayoutHint.FORWARD else self.planned(v, scope)
        return ANY_LAYOUT if planned is None else (planned,)

    def planned(self, v: Any, scope: Scope | None) -> Layout | None:
        """The planned layout of a variable; None where there is none, and for literals."""
        if scope is None or isinstance(v, Literal):
            return None
        value = scope.env.get(v)
        if value is None:
            return None
        return self.layout_of(value.sharding, len(getattr(v.aval, "shape", ())))

    def run_whole(self, equation: Equation, operands: Sequence[ShardedValue]) -> Values:
        """Runs an equation on whole operands on every device, and reports the gathers."""
        eqn = equation.eqn
        rule = 'name the dimensions of a batch at the front, @sp.sharding_rule("b i j -> b i j"), ' if equation.name == "ffi_call" else ""
        fix = f"shard its operands otherwise, {rule}or call it on parts inside of sp.manual_computation"
        self.report_gathers(eqn, operands, "runs-whole", f"{equation.name} runs whole on every device", fix)
        arrays = [value.whole() for value in operands]
        with self.analysis.settings_of(eqn):
            parts = [None] * len(eqn.outvars) if self.region.dry else bind(eqn, arrays, eqn.params)
        return [self.result(x, v) for x, v in zip(parts, eqn.outvars, strict=True)]

    def report_gathers(
        self, eqn: JaxprEqn, operands: Sequence[ShardedValue], kind: str, why: str, fix: str, severity: Severity | None = None
    ) -> None:
        """Adds a finding if whole operands have to be brought to every device; by default bytes decide on the severity."""
        price = 0 if self.region.dry else sum(value.price(replicated(value.rank)) for value in operands)
        if price:
            message, where = f"{why}, which brings {format_bytes(price)} to each", locate(eqn.source_info)
            self.findings.append(Finding(kind, message, "", "" if where is None else where.place, severity or graded(price), price, fix))

    def result(self, array: Array, v: Any) -> ShardedValue:
        """A replicated result."""
        shape = tuple(getattr(v.aval, "shape", ()))
        return self.new_value(array, replicated(len(shape)), shape, getattr(v.aval, "dtype", None))

    def arbitrary(self, shape: tuple[int, ...], dtype: Any) -> ShardedValue:
        """A value of arbitrary elements: it has none, or no result depends on them."""
        value = ShardedValue(self.region, shape, dtype, uses=2)
        value.rematerialize = lambda target: None if self.region.dry else lax.full(local_shape(shape, target, self.mesh), 0, dtype)
        return value

    def _can_rematerialize(self, equation: Equation, local_rule: LocalRule) -> bool:
        """Whether an equation can compute its results in any layout, given operands in any layout."""
        return not (
            equation.eqn.effects or local_rule.rule.reduction or local_rule.bytes_inside is not None or not any(equation.result_shapes)
        )

    def _rematerialized(self, equation: Equation, local_rule: LocalRule, operands: Sequence[ShardedValue], i: int) -> ShardedValue:
        """A result that is computed at each use, in the layout of that use."""
        shape, dtype = equation.result_shapes[i], equation.result_dtypes[i]
        value = ShardedValue(self.region, shape, dtype, uses=2)
        eqn = equation.eqn

        def rematerialize(target: Layout) -> Array:
            key = ("remade", id(local_rule), i, target)
            cached = equation.cache.get(key)
            if cached is None:
                axes = self._axes_for(local_rule, i, target, shape)
                placed = layouts_under(local_rule.rule, axes)
                cached = equation.cache[key] = placed[len(operands) + i], axes, placed[: len(operands)]
            at, axes, layouts = cached
            if self.region.dry:
                for operand, where in zip(operands, layouts, strict=True):
                    operand.get(where)
                return None
            with self.at_source(eqn):
                arrays = [operand.get(where) for operand, where in zip(operands, layouts, strict=True)]
                part = self.apply_rule(equation, local_rule, axes, arrays)[i]
                return part if at is target else reshard(part, at, target, shape, self.mesh, self.region.platform)

        value.rematerialize = rematerialize
        return value

    def _axes_for(self, local_rule: LocalRule, i: int, target: Layout, shape: tuple[int, ...]) -> tuple[Axes, ...]:
        """The axes of factors under which a result has a layout, or needs only slices to get it."""
        rule, mesh = local_rule.rule, self.mesh
        axes: list[Axes] = [()] * rule.num_factors
        mapping = rule.result_mappings[i]
        for factor, sharding in project(mapping, target, rule.factor_sizes, mesh, True).factors.items() if mapping else ():
            if all(axis.is_full for axis in sharding.axes):
                axes[factor] = sharding.axes
        runnable_axes = runnable(rule, axes, mesh, local_rule.uneven, local_rule.bytes_inside is not None)
        at = layouts_under(rule, runnable_axes)[len(rule.operand_mappings) + i]
        is_sliced = all(move.kind == "all_slice" for move in reshard_steps(at, target, shape, mesh))
        return runnable_axes if is_sliced else ((),) * rule.num_factors


def _plain(v: Literal) -> Any:
    """The value of a literal without the mesh it was traced under, from which JAX would cast it at every use."""
    value, aval = v.val, cast(Any, v.aval)
    if not isinstance(value, np.ndarray) and not hasattr(value, "__array__"):
        return value
    plain = np.asarray(value)
    return value if aval.weak_type or plain.dtype != aval.dtype else plain


class PlannedOp(NamedTuple):
    """An op and the layouts that were planned for its values."""

    name: str
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]

    def axes(self, rule: OpShardingRule, mesh: Mesh) -> list[Axes]:
        """The axes of every factor, as `factor_axes` decides between the planned layouts."""
        return axes_of_factors(self.name, rule, list(map(dim_axes, (*self.operands, *self.results))), mesh)
