"""Splits a step into the part that runs once per microbatch and the part that runs once per step.

Microbatches are the devices of a virtual mesh axis along which the batch is cut. The step is partitioned over that axis by the rules that
cut equations over devices, forward only: a dimension of examples passes through an equation, or is summed over. So a microbatch runs what
a device would run, a sum over devices is one over microbatches, and what reads the sum runs once: data parallelism in time instead of over
devices. Whatever else devices would exchange is refused.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import ShapedArray, eval_jaxpr
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jax.extend.source_info_util import current_name_stack, user_context

from shardy_py.backends.local import loops
from shardy_py.backends.local.calls import run_body
from shardy_py.backends.local.hoist import defer_sums
from shardy_py.backends.local.interpreter import Interpreter, LayoutHint
from shardy_py.backends.local.jaxpr_analysis import NO_CONTEXT, JaxprAnalysis
from shardy_py.backends.local.jaxpr_rewriting import retraced, rewrite_by_name
from shardy_py.backends.local.local_rule import Equation, LocalRule
from shardy_py.backends.local.loops import settled_layout
from shardy_py.backends.local.ruled_call import KERNELS, ruled_call
from shardy_py.backends.local.sharded_value import RegionContext, ShardedValue, Values
from shardy_py.backends.local.table import HANDLERS, LOCAL_RULES, RUNS_WHOLE
from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import Axes
from shardy_py.dialect.projection import project
from shardy_py.frontends.context import local_type
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.jaxprs import bodies, inlined, open_jaxpr, with_bodies
from shardy_py.frontends.loops import scan_counts
from shardy_py.frontends.mesh_context import no_mesh
from shardy_py.frontends.transforms import axes_bound, traced_locally
from shardy_py.ir.jax_collectives import COLLECTIVE_KINDS
from shardy_py.partition.region.layouts import Layout, layout, local_shape, replicated
from shardy_py.partition.region.runnable import runnable
from shardy_py.partition.region.strategies import EquationSpec, Strategy, TensorLayouts, strategy_along
from shardy_py.pipelines.errors import PipelineError, place
from shardy_py.pipelines.flatten import FlatEquation, FlatStep, live
from shardy_py.pipelines.jaxprs import Atom, closed_jaxpr, dtype_of, is_extended_dtype, reads, shape_of, short, struct_of

AXIS = "pipeline microbatches"
OVER: Axes = (AxisRef(AXIS),)
UNSEEN = "a microbatch does not see the examples of the others"


@dataclass(frozen=True)
class SplitStep:
    """A step cut in two.

    Attributes:
        prologue: Values of the whole batch, without parameters, that microbatches need.
        number: The number of the microbatch, where one asks for the positions of its examples.
        examples: Variables of a microbatch that depend on its examples.
        dims: Result per example -> its dimension of examples.
        data_only: Variables that depend on the batch but not on other arguments, single numbers excepted.
        whole_of: Variable of the microbatch, or of the update -> variable of the whole batch.
    """

    micro: FlatStep
    update: list[FlatEquation]
    results: tuple[Atom, ...]
    number: Var
    examples: set[Var]
    whole: FlatStep
    whole_of: dict[Var, Var]
    sums: list[Var]
    prologue: list[Var]
    data_only: set[Var]
    dims: dict[Var, int]
    out_tree: Any = None
    is_loss: bool = False

    @property
    def batch(self) -> list[Var]:
        """The arguments that are parts of the batch."""
        return [v for v in self.micro.invars if v in self.examples]

    @property
    def parameters(self) -> list[Var]:
        """The other arguments."""
        return [v for v in self.micro.invars if v not in self.examples]


def split(whole: FlatStep, batch: Sequence[bool], count: int, local_statistics: bool) -> SplitStep:
    """Cuts a step. Raises PipelineError if the step depends on its batch in a way that microbatches do not reproduce."""
    return _StepSplitter(_local(whole, batch, count), whole, batch, count, local_statistics or count == 1).split()


@dataclass(frozen=True)
class _LocalStep:
    """A step on one microbatch, with sums over all; `number` is the microbatch's."""

    nodes: list[FlatEquation]
    invars: tuple[Var, ...]
    consts: dict[Var, Any]
    results: list[Atom]
    number: Var
    dims: dict[Var, int]
    whole_of: dict[Var, Var]
    complete: set[Var]


_NUMBER = re.compile(r"equation#(\d+)")


def _local(whole: FlatStep, batch: Sequence[bool], count: int) -> _LocalStep:
    """The step of one microbatch, by the rules of a device."""
    whole = _with_own_rows(whole)
    variables = list(dict.fromkeys(v for node in whole.nodes for v in node.eqn.outvars))
    arguments = [*whole.consts, *whole.invars]
    jaxpr = closed_jaxpr([node.eqn for node in whole.nodes], arguments, variables).jaxpr
    interpreter = _Partitioner(count, [node.eqn for node in whole.nodes])
    cut = [*[False] * len(whole.consts), *batch]
    layouts = [_first(len(shape_of(v))) if each else replicated(len(shape_of(v))) for v, each in zip(arguments, cut)]
    number = Var(ShapedArray((), np.dtype("int32")))
    dims: dict[int, int] = {}
    where: list[tuple[Var, bool]] = []
    producer = {v: node.eqn for node in whole.nodes for v in node.eqn.outvars}

    def run(*parts: Any) -> list[Any]:
        values = [
            interpreter.new_value(x, at, shape_of(v), dtype_of(v), uses=2) for x, at, v in zip(parts, layouts, arguments, strict=True)
        ]
        env = dict(zip(arguments, values)) | dict(zip(variables, interpreter.jaxpr(jaxpr, [], values, None)))
        results = []
        for position, v in enumerate(whole.outvars):
            if isinstance(v, Literal):
                results.append(v.val)
                continue
            value = env[v]
            at = replicated(value.rank) if value.rematerialize is not None else settled_layout(value)
            with interpreter.at_source(producer[v]) if v in producer else NO_CONTEXT:
                results.append(value.get(at))
            if any(dim.axes for dim in at.dims):
                dims[position] = next(d for d, dim in enumerate(at.dims) if dim.axes)
        copies = [(v, at, x) for v, value in env.items() for at, x in value.copies.items()]
        where.extend((v, not _axes(at) and not at.unreduced) for v, at, _ in copies)
        return [*results, *(x for _, _, x in copies)]

    sizes = {AXIS: count}
    types = [local_type(v.aval, local_shape(shape_of(v), at, interpreter.mesh)) for v, at in zip(arguments, layouts)]
    with no_mesh(), axes_bound(sizes):
        traced = traced_locally(run, types)
        body = defer_sums(traced.jaxpr, sizes, 1 << 62)
    nodes = []
    renamed: dict[Var, Atom] = {}
    for eqn in body.eqns:
        if eqn.primitive.name == "axis_index":
            renamed[eqn.outvars[0]] = number
            continue
        numbers = _NUMBER.findall(str(eqn.source_info.name_stack))
        node = whole.nodes[int(numbers[-1])] if numbers else FlatEquation(eqn)
        nodes.append(replace(node, eqn=eqn.replace(source_info=node.eqn.source_info)).renamed(renamed))
    outvars = [renamed.get(v, v) if isinstance(v, Var) else v for v in body.outvars]
    consts = dict(zip(body.invars, whole.consts.values())) | dict(zip(body.constvars, traced.consts)) | {number: np.int32(0)}
    results, copies = outvars[: len(whole.outvars)], outvars[len(whole.outvars) :]
    return _LocalStep(
        live(nodes, results), tuple(body.invars[len(whole.consts) :]), consts, results, number,
        {v: d for position, d in dims.items() if isinstance(v := results[position], Var)},
        {v: w for v, (w, _) in zip(copies, where) if isinstance(v, Var)},
        {v for v, (_, is_complete) in zip(copies, where) if is_complete and isinstance(v, Var)},
    )  # fmt: skip


def _with_own_rows(step: FlatStep) -> FlatStep:
    """The step with `x[arange(n), y]` as an index into each row by itself."""
    producer = {v: node.eqn for node in step.nodes for v in node.eqn.outvars}

    @functools.cache
    def fixed(v: Var) -> Any:
        """The value of a variable that depends on no argument, else None."""
        eqn = producer.get(v)
        if v in step.consts or eqn is None:
            return step.consts.get(v)
        operands = {w: fixed(w) for w in reads(eqn)}
        if eqn.effects or any(x is None for x in operands.values()):
            return None
        jaxpr = closed_jaxpr([eqn], operands, eqn.outvars).jaxpr
        return eval_jaxpr(jaxpr, (), *operands.values())[eqn.outvars.index(v)]

    def own_rows(eqn: JaxprEqn) -> tuple[int, int] | None:
        """The column of indices that numbers the rows of the operand, and their dimension of rows."""
        if eqn.primitive.name not in _INDEXING or eqn.params["dimension_numbers"].operand_batching_dims:
            return None
        indices: Any = eqn.invars[1]
        joined = producer.get(indices)
        columns = joined.invars if joined is not None and joined.primitive.name == "concatenate" else [indices]
        numbers, (index_map, points, _) = eqn.params["dimension_numbers"], _INDEXING[eqn.primitive.name]
        for column, v in enumerate(columns if len(columns) == shape_of(indices)[-1] else ()):
            dim = getattr(numbers, index_map)[column]
            value = fixed(v) if isinstance(v, Var) and dim in getattr(numbers, points) else None
            for d, n in enumerate(() if value is None else shape_of(v)[:-1]):
                rows = np.moveaxis(np.asarray(value), d, -1)
                if n == shape_of(eqn.invars[0])[dim] and np.array_equal(rows, np.broadcast_to(np.arange(n), rows.shape)):
                    return column, d
        return None

    nodes: list[FlatEquation] = []
    for node in step.nodes:
        eqn = node.eqn
        rows = own_rows(eqn)
        if rows is None:
            nodes.append(node)
            continue
        numbers, (index_map, points, batching) = eqn.params["dimension_numbers"], _INDEXING[eqn.primitive.name]
        dims = list(getattr(numbers, index_map))
        dim = dims.pop(rows[0])
        changed = {index_map: tuple(dims), points: tuple(d for d in getattr(numbers, points) if d != dim)}
        numbers = numbers._replace(**changed, operand_batching_dims=(dim,), **{batching: (rows[1],)})

        def run(x: Any, indices: Any, *others: Any, eqn: JaxprEqn = eqn, column: int = rows[0], numbers: Any = numbers) -> Any:
            return eqn.primitive.bind(x, jax.numpy.delete(indices, column, -1), *others, **{**eqn.params, "dimension_numbers": numbers})

        eqns, _ = inlined(jax.make_jaxpr(run)(*map(struct_of, eqn.invars)).jaxpr, eqn.invars, lambda _, eqn=eqn: eqn.source_info)
        nodes += [replace(node, eqn=each) for each in (*eqns[:-1], eqns[-1].replace(outvars=eqn.outvars))]
    return replace(step, nodes=tuple(nodes))


_SCATTER = "scatter_dims_to_operand_dims", "inserted_window_dims", "scatter_indices_batching_dims"
_INDEXING = {
    "gather": ("start_index_map", "collapsed_slice_dims", "start_indices_batching_dims"),
    **dict.fromkeys(("scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter_add"), _SCATTER),
}


class _Partitioner(Interpreter):
    """Runs equations on the examples of one microbatch; dimensions of examples are those of operands, never chosen."""

    def __init__(self, count: int, eqns: Sequence[JaxprEqn]) -> None:
        self.count = count
        self.numbers = {id(eqn): i for i, eqn in enumerate(eqns)}
        mesh = Mesh([(AXIS, count)])
        analysis = JaxprAnalysis(LOCAL_RULES, {**HANDLERS, **_HANDLERS}, mesh, RUNS_WHOLE)
        self.is_trial = False
        self.ends: dict[int, list[Layout]] = {}  # id of a body -> layouts of its results, when it ran last
        super().__init__(RegionContext(mesh, jax.default_backend()), lambda _, rank: replicated(rank), analysis, hint=LayoutHint.FORWARD)

    def jaxpr(self, jaxpr: Jaxpr, consts: Sequence[ShardedValue], arguments: Sequence[ShardedValue], scope: Scope | None) -> Values:
        results = super().jaxpr(jaxpr, consts, arguments, scope)
        self.ends[id(jaxpr)] = [settled_layout(x) for x in results]
        return results

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Traces what is only looked at, and so is dead code: nothing is printed there."""
        before, self.is_trial = self.is_trial, True
        yield
        self.is_trial = before

    def settled(self, loop: Any, eqn: JaxprEqn, operands: Values, body: Any, carries: Sequence[int]) -> Values:
        """The operands of a loop, with what it carries cut where that is so at the end of a trip; by trial."""
        operands = list(operands)
        while any(not is_cut(operands[i]) for i in carries):
            with self.trial():
                loop(self, eqn, 0, operands, None)
            grown = [(i, end) for i, end in zip(carries, self.ends[id(open_jaxpr(body))]) if _axes(end) and not is_cut(operands[i])]
            for i, end in grown:
                operands[i] = self.new_value(operands[i].get(end), end, operands[i].shape, operands[i].dtype)
            if not grown:
                break
        return operands

    def at_source(self, eqn: JaxprEqn) -> Any:
        number = self.numbers.get(id(eqn))
        if number is None:
            return super().at_source(eqn)
        return user_context(eqn.source_info.traceback, name_stack=current_name_stack().extend(f"equation#{number}"))

    def best_strategy(
        self, equation: Equation, local_rule: LocalRule, operands: Sequence[ShardedValue], scope: Scope | None
    ) -> tuple[LocalRule, Strategy] | None:
        anywhere = all(x.rematerialize is not None or not (x.shape or next(iter(x.copies)).unreduced) for x in operands)
        if anywhere and self._can_rematerialize(equation, local_rule):
            return None
        options = (local_rule, *local_rule.alternatives)
        for each in options:
            try:
                return each, self._strategy(equation, each, operands)
            except PipelineError:
                if each is options[-1]:
                    raise
        raise AssertionError

    def _strategy(self, equation: Equation, local_rule: LocalRule, operands: Sequence[ShardedValue]) -> Strategy:
        rule, eqn = local_rule.rule, equation.eqn
        tensors = [TensorLayouts(x.shape, x.bits, *x.layout_key) for x in operands]
        results = [TensorLayouts(s, 0, None) for s in equation.result_shapes]
        spec = EquationSpec(
            rule, tuple(tensors), tuple(results), self.mesh, local_rule.combine, local_rule.uneven, local_rule.linear, None, 0.0
        )
        axes: list[Axes] = [()] * rule.num_factors
        source: Atom = None
        for v, x, mapping in zip(eqn.invars, operands, rule.operand_mappings, strict=True):
            if x.rematerialize is None and is_cut(x):
                source = v
                for factor, sharding in project(mapping, settled_layout(x), rule.factor_sizes, self.mesh, True).factors.items():
                    if any(axis.is_full for axis in sharding.axes):
                        axes[factor] = OVER
        if source is None:
            return strategy_along(spec, axes)
        cut = [factor for factor, over in enumerate(axes) if over]
        ordered = bool({*cut} & {*rule.need_replication, *rule.permutation})
        error = functools.partial(PipelineError, where=place(eqn), why=UNSEEN, fix="do this outside of the pipelined function")
        if equation.name in _INDEXING and len(cut) > 1:
            raise error(f"{equation.name} picks examples of {short(source)} by number")
        if not cut or (not ordered and runnable(rule, axes, self.mesh, local_rule.uneven, False) != tuple(axes)):
            raise PipelineError(
                f"{equation.name} regroups the examples of {short(source)}", where=place(eqn),
                why="what is in one row of its result is spread over several microbatches, or the other way round",
                fix="keep the examples in a dimension of their own, the first, and stack arrays of examples along another",
            )  # fmt: skip
        if len(cut) > 1:
            raise error(f"examples meet each other in {short(eqn.outvars[0])}")
        if cut[0] in rule.reduction and local_rule.combine != "add":
            integers = not jax.dtypes.issubdtype(dtype_of(eqn.outvars[0]), np.inexact)
            raise PipelineError(
                f"{equation.name} makes one value of all examples: {short(eqn.outvars[0])}", where=place(eqn),
                why="microbatches are added up, and this is not a sum over examples" + (" (it is a selection)" if integers else ""),
                fix="return the values per example and reduce them outside, or sum them",
            )  # fmt: skip
        if self.count > 1 and ordered:
            raise error(f"{equation.name} runs along the examples of {short(source)}")
        return spec.rate(tuple(axes), (), ())

    def apply_rule(self, equation: Equation, local_rule: LocalRule, axes: Sequence[Any], arrays: list[Any]) -> list[Any]:
        return super().apply_rule(equation, local_rule, axes if self.count > 1 else [()] * len(axes), arrays)

    def run_whole(self, equation: Equation, operands: Sequence[ShardedValue]) -> Values:
        cut = [v for v, x in zip(equation.eqn.invars, operands) if is_cut(x)]
        if cut:
            raise PipelineError(
                f"{equation.name} takes the examples of {short(cut[0])} all at once", where=place(equation.eqn), why=UNSEEN,
                fix='name the dimensions of a batch at the front with @sp.sharding_rule("b i j -> b i j")',
            )  # fmt: skip
        return super().run_whole(equation, operands)


def _axes(at: Layout) -> bool:
    return any(dim.axes for dim in at.dims)


def is_cut(value: ShardedValue) -> bool:
    """Whether a microbatch has its own part of a value."""
    return value.rematerialize is None and _axes(settled_layout(value))


def _as_it_is(interpreter: _Partitioner, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """An equation that any part of its operands may go through: constraints, and prints, of each microbatch by itself."""
    if interpreter.is_trial and not eqn.outvars:
        return []
    layouts = [replicated(x.rank) if x.rematerialize is not None else settled_layout(x) for x in operands]
    arrays = [x.get(at) for x, at in zip(operands, layouts)]
    results = eqn.primitive.bind(*arrays, **eqn.primitive.get_bind_params(eqn.params))
    return [
        interpreter.new_value(x, at, shape_of(v), dtype_of(v))
        for x, at, v in zip(results if eqn.primitive.multiple_results else [results], layouts, eqn.outvars)
    ]


def _at_once(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    return interpreter.run_whole(Equation(eqn), operands)


def _scan(interpreter: _Partitioner, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """A loop, or one over examples, of which each microbatch runs its own."""
    consts, carried = scan_counts(eqn)
    if not any(is_cut(x) and settled_layout(x).dims[0].axes for x in operands[consts + carried :]):
        ends = range(consts, consts + carried)
        return loops.scan(interpreter, eqn, index, interpreter.settled(loops.scan, eqn, operands, eqn.params["jaxpr"], ends), None)
    if carried:
        raise PipelineError(
            "a loop over the examples carries something from one to the next", where=place(eqn), why=UNSEEN, fix="use jax.vmap"
        )
    length = eqn.params["length"] // interpreter.mesh.size
    parts = [x.get(_first(x.rank)) for x in operands[consts:]]
    rows = [interpreter.new_value(part, replicated(x.rank), part.shape, x.dtype) for part, x in zip(parts, operands[consts:])]
    outvars = [Var(local_type(v.aval, (length, *shape_of(v)[1:]))) for v in eqn.outvars]
    loop = eqn.replace(params={**eqn.params, "length": length}, outvars=outvars)
    results = loops.scan(interpreter, loop, index, [*operands[:consts], *rows], None)
    return [interpreter.new_value(x.whole(), _first(x.rank), shape_of(v), dtype_of(v)) for x, v in zip(results, eqn.outvars)]


def _while(interpreter: _Partitioner, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    ends = range(eqn.params["cond_nconsts"] + eqn.params["body_nconsts"], len(operands))
    operands = interpreter.settled(loops.while_loop, eqn, operands, eqn.params["body_jaxpr"], ends)
    return loops.while_loop(interpreter, eqn, index, operands, None)


def _cond(interpreter: _Partitioner, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """Branches, whose results are cut where those of one are."""
    number, *arguments = operands
    branches = eqn.params["branches"]
    if eqn.params.get("branches_platforms") is not None:
        return loops.cond(interpreter, eqn, index, operands, None)
    at = [settled_layout(x) for x in arguments]
    parts = [x.get(end) for x, end in zip(arguments, at)]

    def run(branch: Any, *xs: Any) -> Values:
        values = [interpreter.new_value(x, end, v.shape, v.dtype, uses=2) for x, end, v in zip(xs, at, arguments)]
        return run_body(interpreter, branch, values, None)

    with interpreter.trial():
        ends = zip(*([settled_layout(x) for x in run(branch, *parts)] for branch in branches))
    layouts = [next((end for end in results if _axes(end)), results[0]) for results in ends]
    functions = [lambda *xs, branch=branch: [x.get(end) for x, end in zip(run(branch, *xs), layouts)] for branch in branches]
    outs = lax.switch(number.whole(), functions, *parts)
    return [interpreter.new_value(x, end, shape_of(v), dtype_of(v)) for x, end, v in zip(outs, layouts, eqn.outvars)]


def _first(rank: int) -> Layout:
    """The layout of a value whose first dimension is one of examples."""
    return layout([OVER, *[()] * (rank - 1)])


_HANDLERS = {
    **dict.fromkeys(("debug_callback", "debug_print", "layout_constraint", "sdy_sharding_constraint", "sharding_constraint"), _as_it_is),
    **dict.fromkeys(("io_callback", "pallas_call", "pure_callback"), _at_once),
    "cond": _cond,
    "scan": _scan,
    "sdy_ruled_call": functools.partial(ruled_call, kernels=KERNELS | {"pure_callback"}),
    "while": _while,
}


class _StepSplitter:
    """Follows what depends on examples, and what depends on sums over all of them, through the step of one microbatch."""

    def __init__(self, local: _LocalStep, whole: FlatStep, batch: Sequence[bool], count: int, local_statistics: bool) -> None:
        self.local, self.whole, self.count, self.local_statistics = local, whole, count, local_statistics
        own = [v for v, each in zip(local.invars, batch) if each]
        self.examples: set[Var] = {*own, local.number}
        self.data_only: set[Var] = {*own, *local.consts}
        self.once: dict[Var, FlatEquation] = {}  # depend on sums over all examples
        self.total: dict[Var, Var] = {}  # a sum over all examples -> that of a microbatch
        self.own: dict[Var, Var] = {}  # depend on such sums -> the variables that stand for them in a microbatch
        self.prologue: dict[Var, None] = {}
        self.each: list[FlatEquation] = []
        self.later: list[FlatEquation] = []

    def split(self) -> SplitStep:
        for node in self.local.nodes:
            self.visit(node)
        # A sum over microbatches has the name of what it sums, unless it is known beforehand.
        names: dict[Any, Any] = {v: x for v, x in self.total.items() if v not in self.prologue}
        results = tuple(v if isinstance(v, Literal) else names.get(v, v) for v in self.local.results)
        later = [node for node in self.later if not node.eqn.outvars or not self.prologue.keys() >= {*node.eqn.outvars}]
        update = [node.renamed(names) for node in later]
        variables = [v for v in results if isinstance(v, Var)]
        update = live(update, variables)
        computed, updated = {v for node in self.each for v in node.eqn.outvars}, {v for node in update for v in node.eqn.outvars}
        read = dict.fromkeys((*(v for node in update for v in reads(node.eqn)), *variables))
        crossing = [v for v in read if v in computed and v not in updated]
        nodes = live(self.each, crossing)
        used = {*read, *(v for node in nodes for v in reads(node.eqn))}
        sums = set(names.values())
        whole_of = self.local.whole_of
        return SplitStep(
            FlatStep(self.local.invars, tuple(crossing), tuple(nodes), {v: c for v, c in self.local.consts.items() if v in used}),
            update,
            results,
            self.local.number,
            self.examples,
            self.whole,
            {**whole_of, **{copy: whole_of[v] for copies in (self.total, self.own) for v, copy in copies.items() if v in whole_of}},
            [v for v in crossing if v in sums],
            [v for v in self.prologue if v in used],
            self.data_only,
            {v: self.local.dims.get(v, 0) for v in crossing if v not in sums},
        )

    def visit(self, node: FlatEquation) -> None:
        eqn = node.eqn
        operands = reads(eqn)
        if all(v in self.data_only or self.is_number(v) for v in operands):
            self.data_only.update(eqn.outvars)
        if eqn.primitive.name == "psum":
            (self.total[eqn.outvars[0]],) = operands
            self.once[eqn.outvars[0]] = node
        elif any(v in self.examples for v in operands):
            node = replace(node, eqn=self.checked(eqn)).renamed({v: self.inside(v, eqn) for v in operands if v in self.once})
            self.examples.update(eqn.outvars)
            self.each.append(node)
        else:
            self.later.append(node)
            if any(v in self.once for v in operands):
                self.once.update(dict.fromkeys(eqn.outvars, node))
            elif eqn.outvars:  # one without results, such as a print, runs once
                self.each.append(node)

    def is_number(self, v: Var) -> bool:
        """Whether a value is one number that does not depend on the batch, such as a scale of the loss; not a key."""
        return v not in self.examples and v not in self.once and not shape_of(v) and not is_extended_dtype(dtype_of(v))

    def inside(self, v: Var, eqn: JaxprEqn) -> Var:
        """A value of the whole batch as single examples see it: known beforehand, or a statistic of their microbatch, or refused."""
        if v in self.own or v in self.prologue:
            return self.own.get(v, v)
        node = self.once[v]
        if v in self.data_only and v in self.local.complete:
            self.prologue[v] = None
            return v
        if v not in self.total:
            copies = {w: self.inside(w, eqn) for w in reads(node.eqn) if w in self.once}
            self.own.update({w: Var(w.aval) for w in node.eqn.outvars})
            self.each.append(node.renamed(copies, self.own))
        elif self.local_statistics:
            (scaled,) = jax.make_jaxpr(lambda x: x * self.count)(struct_of(v)).jaxpr.eqns
            operands = [self.total[v] if isinstance(w, Var) else w for w in scaled.invars]
            self.own[v] = Var(v.aval)
            self.each.append(replace(node, eqn=scaled.replace(invars=operands, outvars=[self.own[v]])))
        else:
            raise PipelineError(
                f"{short(v)}, a statistic of the batch, is used by single examples", where=place(eqn),
                why=f"{UNSEEN} (batch normalization in training does this)",
                fix='pass batch_statistics="microbatch" for statistics of each microbatch, or normalize over something else',
            )  # fmt: skip
        self.examples.add(self.own[v])
        return self.own[v]

    def checked(self, eqn: JaxprEqn) -> JaxprEqn:
        """The equation, whose loops and branches may sum over a microbatch; refuses what examples of several would have to exchange."""
        inner = list(_inner(eqn))
        at = {e.primitive.name: e for e in (*inner, eqn)}
        for name in sorted(at.keys() & ({*COLLECTIVE_KINDS, "axis_index"} - ({"psum"} if self.local_statistics else set()))):
            if eqn.primitive.name == "while" and name in ("psum", "all_gather") and at[name] in _equations(eqn.params["cond_jaxpr"]):
                raise PipelineError(
                    "a loop ends by a value of all examples", where=place(eqn), why=UNSEEN, fix="run a fixed number of steps"
                )
            what = {
                "psum": "a statistic of the batch, is used by single examples inside of a loop or branch",
                "axis_index": "the positions of examples in their batch are used inside of a loop or branch",
            }.get(name, "an example needs those of other microbatches")
            raise PipelineError(what, where=place(at[name]), why=UNSEEN, fix="do this outside of the pipelined function")
        if "psum" not in at:
            return eqn
        own = {"psum": lambda e, sizes: retraced(lambda x: [x * self.count], e, sizes)}
        params = with_bodies(eqn, lambda _, body: rewrite_by_name(body, {AXIS: self.count}, own))
        return eqn.replace(params=params, effects={e for e in eqn.effects if type(e).__name__ != "NamedAxisEffect"})


def _equations(body: Any) -> list[JaxprEqn]:
    return [inner for eqn in open_jaxpr(body).eqns for inner in (eqn, *_inner(eqn))]


def _inner(eqn: JaxprEqn) -> list[JaxprEqn]:
    """The equations of an equation's bodies, and of theirs."""
    return [inner for _, _, body in bodies(eqn) for inner in _equations(body)]
