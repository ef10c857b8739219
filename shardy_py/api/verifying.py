"""Verifying: a call run as planned beside the same call on one device, and beside what XLA alone makes of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.core import Tracer, eval_jaxpr
from jax.extend.core import ClosedJaxpr
from jax.sharding import AxisType
from jax.sharding import Mesh as JaxMesh

from shardy_py.api.agreement import covering
from shardy_py.api.errors import ArgumentTypeError
from shardy_py.api.meshes import MESH_NAME
from shardy_py.api.partitioning import Planned, RegionBuilder
from shardy_py.api.planning import described_results
from shardy_py.api.running import CompiledCall, program_of
from shardy_py.api.static_leaves import static_tree
from shardy_py.api.tracing import TracedCall
from shardy_py.backends.compare import Comparison, compare, fetch, fetched_or_error, first_line, plain, tolerance_of
from shardy_py.backends.first_difference import PORTION, FirstDifference, OpSearch, Run, observed_bytes, spread, tolerances
from shardy_py.backends.flat import FlatProgram, flatten
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.backends.reference import Reference, without_mesh
from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.dialect.axis import num_shards
from shardy_py.errors import MeshError, ShardyError
from shardy_py.frontends.context import is_extended_dtype
from shardy_py.frontends.jaxpr import Imported
from shardy_py.frontends.leaves import Leaves
from shardy_py.ir import TensorType
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.values import PlannedValue


class DifferenceError(ShardyError, AssertionError):
    """A sharded run gives other values than the unsharded one.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> double = sp.auto_shard(lambda x: x * 2, mesh={"data": 1})
        >>> try:
        ...     verified = double.verify(jnp.ones(8)).check()
        ... except sp.DifferenceError as error:
        ...     print(error)
    """


@dataclass(frozen=True)
class RunComparison:
    """One way of running a function beside the unsharded run.

    Attributes:
        first_difference: The first op that is wrong; None where none is, or ops were not compared.
        ops: Number of ops that were compared one by one, each on the operands it had.
        problem: Why it could not be run.
    """

    outputs: tuple[Comparison, ...]
    first_difference: FirstDifference | None = None
    ops: int = 0
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether all outputs agree, save for explained rounding, and no op was found wrong."""
        wrong = self.first_difference is not None and self.first_difference.alone
        return self.problem is None and not wrong and all(c.agrees or c.rounding is not None for c in self.outputs)

    def lines(self) -> list[str]:
        """The comparison as text; outputs that agree share a line."""
        if self.problem is not None:
            return [f"  it does not run: {self.problem}"]
        lines = [f"  {c}" for c in self.outputs if not c.agrees]
        close = [c for c in self.outputs if c.agrees and c.max_abs]
        equal = len([c for c in self.outputs if c.agrees]) - len(close)
        if equal:
            lines.append(f"  {_count(equal, 'output')} equal to the last bit")
        if close:
            worst = max(close, key=lambda c: c.max_rel)
            lines.append(f"  {_count(len(close), 'output')} within rounding, at most {worst.max_rel:.2g} relative ({worst.path})")
        first = self.first_difference
        if self.ops and (first is None or not first.alone):
            lines.append(f"  {_count(self.ops, 'op')} compared one by one: each gives what one device gives on the same operands")
        if first is not None:
            lines += ["  " + line for line in f"first difference: {first}".splitlines()]
        return [*lines, *(f"  {note}" for note in self.notes)]


@dataclass(frozen=True)
class Verification:
    """The result of `AutoSharded.verify`.

    Attributes:
        name: The function's name.
        location: Where it is defined.
        mesh: `data=2, model=4`.
        run: The run as planned beside the unsharded run.
        plain_xla: `jax.jit` with the same annotations and nothing of this package in it, beside the unsharded run; None where it was
            not asked for.
        idle: Why nothing was compared in this process, where it has no device of the mesh; the processes that have them compare.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> double = sp.auto_shard(lambda x: x * 2, mesh={"data": 1})
        >>> double.verify(jnp.ones(8)).agrees
        True
    """

    name: str
    location: str
    mesh: str
    run: RunComparison
    plain_xla: RunComparison | None
    idle: str | None = None

    @property
    def agrees(self) -> bool:
        """Whether the planned run agrees with the unsharded one, in the parts that this process holds; rounding does not count."""
        return self.run.agrees

    @property
    def outputs(self) -> tuple[Comparison, ...]:
        """One per leaf of the result."""
        return self.run.outputs

    @property
    def first_difference(self) -> FirstDifference | None:
        """The first op that differs."""
        return self.run.first_difference

    def check(self) -> Verification:
        """Itself.

        Raises:
            DifferenceError: The planned run differs from the unsharded one.
        """
        if self.agrees:
            return self
        first = self.first_difference
        head, *details = [self.location] if first is None else str(first).splitlines()
        bad = [str(c) for c in self.outputs if not c.agrees and c.rounding is None]
        raise DifferenceError(
            f"{self.name} gives different values on mesh {self.mesh} than on one device",
            where=head,
            why=self.run.problem or "; ".join(bad[:3]) or "an op is wrong, although the outputs agree",
            fix="if the op is wrong on the operands it had, constrain its operands to another sharding (P() replicates), and report it; "
            "if rounding has grown, pass rtol= or run in float64",
            notes=(*(line.strip() for line in details), *self.run.notes),
        )

    def __str__(self) -> str:
        if self.idle is not None:
            return f"{self.name} on mesh {self.mesh} was not compared here: {self.idle}"
        verb = "agrees with" if self.agrees else "differs from"
        lines = [f"{self.name} on mesh {self.mesh} {verb} the unsharded run", *self.run.lines()]
        if self.plain_xla is not None:
            lines.append(f"plain jax.jit {'agrees too' if self.plain_xla.agrees else 'is wrong'}")
            if not self.plain_xla.agrees:
                lines += self.plain_xla.lines()
        return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


EXPLAINS = 10.0
"""A difference is rounding where the arguments' last digits change the result by at least a tenth of it, and every op is right."""


def verify(
    planned: Planned, slots: Sequence[Any], rtol: float | None, atol: float | None, every_op: bool | None, plain_xla: bool
) -> Verification:
    """Compares a planned call with the unsharded one; see `AutoSharded.verify`."""
    planned = _keeping(planned)
    traced = planned.traced
    request = traced.request
    mesh = request.view.runnable()
    if not isinstance(mesh, JaxMesh):
        raise MeshError("the mesh has no devices", where=f"verify of {request.location}", why="verifying runs the function",
                        fix="pass jax.make_mesh(...)")  # fmt: skip
    idle = _idle(mesh)
    if idle is not None:
        return Verification(request.name, request.location, request.view.describe(), RunComparison(()), None, idle)
    inputs = _inputs(planned, slots)
    results = [fetched_or_error(x) for x in jax.tree.leaves(static_tree(CompiledCall(planned)(slots)))]
    with covering():  # the processes of the mesh have agreed on the whole
        reference = Reference(mesh := mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names)))
        unsharded, flat = reference.of(planned.traced.jaxpr), _flat(planned)
        expected = [fetch(x) for x in unsharded(inputs)]
        comparer = _Comparer(planned, reference, unsharded, inputs, expected, flat, rtol, atol, every_op)
        run = comparer.compare(results, planned_run(planned, mesh), flat)
        beside = _by_xla_alone(comparer, mesh, run, results) if plain_xla else None
    return Verification(request.name, request.location, request.view.describe(), run, beside)


def _by_xla_alone(comparer: _Comparer, mesh: JaxMesh, run: RunComparison, results: Sequence[Any]) -> RunComparison:
    """The run by XLA alone beside the unsharded one."""
    planned, annotated, alone = comparer.planned, _annotated(comparer.planned, comparer.flat), plain_run(mesh)
    try:
        other = [fetched_or_error(x) for x in alone(replace(annotated, closed=planned.traced.jaxpr), ())(comparer.inputs)]
        # What is equal to the last bit comes from the same program, but for ops that the outputs do not depend on.
        return run if _identical(results, other) else comparer.compare(other, alone, annotated, described=False)
    except Exception as error:  # whatever XLA raises where it finds no program
        return RunComparison((), problem=first_line(error))


def _idle(mesh: JaxMesh) -> str | None:
    """Why this process cannot compare anything; None where it has a device of the mesh."""
    own, owners = jax.process_index(), sorted({device.process_index for device in mesh.devices.flat})
    if own in owners:
        return None
    return f"process {own} has none of the mesh's devices, which belong to process{'es' * (len(owners) > 1)} {', '.join(map(str, owners))}"


@dataclass(frozen=True)
class _Comparer:
    planned: Planned
    reference: Reference
    unsharded: Callable[[Sequence[Any]], list[Any]]
    inputs: list[Any]
    expected: list[Any]
    flat: FlatProgram
    rtol: float | None
    atol: float | None
    every_op: bool | None

    def compare(self, results: Sequence[Any], run: Run, flat: FlatProgram, *, described: bool = True) -> RunComparison:
        """Compares outputs, then ops where outputs differ or the options request ops.

        Args:
            described: Whether to look for the op at which rounding grew, too.
        """
        paths = [value.path for value in self.planned.plan.outputs]
        comparisons = [
            compare(path, want, has, rtol=_tolerance(self.rtol, wide, want), atol=self.atol)
            for path, want, has, wide in zip(paths, self.expected, results, tolerances(self.flat))
        ]
        agree = all(c.agrees for c in comparisons)
        total = observed_bytes(flat)
        if self.every_op is False and agree:
            return RunComparison(tuple(comparisons))
        if self.every_op is None and agree and total > PORTION:
            note = f"ops were not compared one by one: their results are {format_bytes(total)}; every_op=True compares them"
            return RunComparison(tuple(comparisons), notes=(note,))
        try:
            return self._by_op(comparisons, OpSearch(self.reference, run, self.rtol), flat, described)
        except Exception as error:  # such as XLA finding no program where intermediates are outputs
            return RunComparison(tuple(comparisons), notes=(f"ops could not be compared one by one: {first_line(error)}",))

    def _by_op(self, comparisons: list[Comparison], search: OpSearch, flat: FlatProgram, described: bool) -> RunComparison:
        wrong, apart = search.first(flat, self.inputs)
        if wrong is not None or all(c.agrees for c in comparisons):
            return RunComparison(tuple(comparisons), wrong, search.checked)
        comparisons = self._explained(comparisons)
        if all(c.agrees or c.rounding is not None for c in comparisons):
            return RunComparison(tuple(comparisons), apart if described else None, search.checked)
        note = "no op is wrong on the operands it had when intermediates are outputs of the program, which changes how XLA fuses"
        return RunComparison(tuple(comparisons), apart, search.checked, notes=(note,))

    @functools.cached_property
    def _changed(self) -> list[np.ndarray]:
        return spread(self.unsharded, self.inputs, self.expected)

    def _explained(self, comparisons: list[Comparison]) -> list[Comparison]:
        """Marks differences that a change of the arguments in their last digit makes as well; integers have to be equal."""
        explained = []
        for c, d in zip(comparisons, self._changed):
            most = float(d.max()) if d.size else 0.0
            rounding = not c.agrees and c.problem is None and c.rtol > 0 and c.max_abs <= EXPLAINS * most
            explained.append(replace(c, rounding=most) if rounding else c)
        return explained


def _tolerance(rtol: float | None, wide: float, expected: Any) -> float | None:
    return rtol if rtol is not None or not tolerance_of(expected.dtype) else wide


def _identical(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two runs gave the same bits."""
    if any(isinstance(x, Exception) for x in (*some, *others)):
        return False
    pairs = [(plain(a), plain(b)) for a, b in zip(some, others)]
    return all(a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in pairs)


def _keeping(planned: Planned) -> Planned:
    """The call with no argument donated."""
    traced = planned.traced
    layout = replace(traced.request.layout, donated=())
    return replace(planned, plan=replace(planned.plan, donation=()), traced=replace(traced, request=replace(traced.request, layout=layout)))


def _inputs(planned: Planned, slots: Sequence[Any]) -> list[Any]:
    """Whole copies of the leaves of the arguments, of the types that were traced."""
    request = planned.traced.request
    leaves = jax.tree.leaves(tuple(slots[i] for i in request.layout.dynamic))
    for leaf, described in zip(leaves, request.leaves):
        if isinstance(leaf, (jax.ShapeDtypeStruct, Tracer)):
            raise ArgumentTypeError(
                f"{described.path} is a {type(leaf).__name__}, which has no values",
                where=f"verify of {request.location}",
                why="verifying runs the function, sharded and unsharded",
                fix="pass arrays, outside of jax.jit and jax.grad; `.plan(...)` takes shapes",
            )
    return [fetch(x) if is_extended_dtype(s.dtype) else np.asarray(fetch(x)).astype(s.dtype) for x, s in zip(leaves, request.structs)]


def _flat(planned: Planned) -> FlatProgram:
    traced, plan = planned.traced, planned.plan
    ins, outs = [v.sharding for v in plan.inputs], [v.sharding for v in plan.outputs]
    scope = planned.imported.scope
    closed = traced.jaxpr if scope.jaxpr is traced.jaxpr.jaxpr else ClosedJaxpr(scope.jaxpr, traced.jaxpr.consts)
    return flatten(closed, scope, ins, outs)


def _annotated(planned: Planned, flat: FlatProgram) -> FlatProgram:
    """The program with the shardings that the user gave, and no others; with no inputs sharded, those that were planned."""
    traced = planned.traced
    user_shardings = traced.request.shardings
    if jax.process_count() > 1:  # jax.jit takes whole arrays only where it is told how they are sharded
        user_shardings = [plan if s is None else s for s, plan in zip(user_shardings, flat.in_shardings)]
    named = user_shardings if any(s is not None for s in user_shardings) else flat.in_shardings
    ins = [plan if s is not None and any(d.is_open for d in s.dims) else s for s, plan in zip(named, flat.in_shardings)]
    return replace(flat, in_shardings=tuple(ins), out_shardings=tuple(described_results(traced)[1].shardings))


def planned_run(planned: Planned, mesh: JaxMesh) -> Run:
    """Runs parts of a program as the plan's lowering runs the whole."""
    plan, request = planned.plan, planned.traced.request
    by_planner = planned.region is not None and planned.region.by_planner
    request = replace(request, settings=replace(request.settings, lowering=plan.lowering))
    named = NamedShardings(mesh)

    def run(flat: FlatProgram, observed: Sequence[Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
        closed = flat.giving(observed)
        out_shardings = [*flat.out_shardings, *map(flat.sharding, observed)]
        inputs = [_value("input", i, v, s, plan.mesh) for i, (v, s) in enumerate(zip(closed.jaxpr.invars, flat.in_shardings))]
        outputs = [_value("output", i, v, s, plan.mesh) for i, (v, s) in enumerate(zip(closed.jaxpr.outvars, out_shardings))]
        imported = Imported(planned.imported.program, replace(flat.scope, jaxpr=closed.jaxpr), [])
        results = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.outvars]  # pyright: ignore[reportAttributeAccessIssue]
        call = TracedCall(request, closed, Leaves.of(results), (None,) * len(results), (None,) * len(results))
        region = None if plan.lowering == "jit" else RegionBuilder(imported, call, by_planner=by_planner)
        part = Planned(replace(plan, inputs=tuple(inputs), outputs=tuple(outputs), partitioner=region), imported, call, region)
        ins, outs = ([named(v.sharding, len(v.shape)) for v in values] for values in (inputs, outputs))
        return _jitted(program_of(part, mesh), ins, [None if 0 in v.shape else out for v, out in zip(outputs, outs)])

    return run


def _jitted(run: Callable[..., Any], ins: Sequence[Any], outs: Sequence[Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function of arrays under `jax.jit`; on several processes, each of which holds them entirely, they are placed before."""
    call = jax.jit(lambda xs: run(*xs), in_shardings=(list(ins),), out_shardings=list(outs))

    def outside(xs: Sequence[Any]) -> Sequence[Any]:
        with without_mesh():
            several = jax.process_count() > 1
            return call([jax.device_put(x, sharding) for x, sharding in zip(xs, ins)] if several else list(xs))

    return outside


def plain_run(mesh: JaxMesh) -> Run:
    """Runs a program by `jax.jit` alone, with the shardings of its inputs and outputs that are given."""
    named = NamedShardings(mesh)
    sizes = Mesh(tuple(mesh.shape.items()))

    def of(sharding: TensorSharding | None, v: Any) -> Any:
        return None if sharding is None else named(_usable(sharding, v.aval.shape, sizes), len(v.aval.shape))

    def run(flat: FlatProgram, observed: Sequence[Any]) -> Callable[[Sequence[Any]], Sequence[Any]]:
        closed = flat.giving(observed)
        ins = [of(s, v) for s, v in zip(flat.in_shardings, flat.jaxpr.invars)]
        outs = [of(s, v) for s, v in zip(flat.out_shardings, flat.jaxpr.outvars)]
        return _jitted(functools.partial(eval_jaxpr, closed.jaxpr, closed.consts), ins, [*outs, *(None for _ in observed)])

    return run


def _value(kind: Any, number: int, v: Any, sharding: TensorSharding | None, mesh: Mesh) -> PlannedValue:
    shape = tuple(v.aval.shape)
    return PlannedValue(f"{kind}{number}", kind, TensorType(shape, str(v.aval.dtype)), _usable(sharding, shape, mesh))


def _usable(sharding: TensorSharding | None, shape: Sequence[int], mesh: Mesh) -> TensorSharding:
    """The closest sharding that `in_shardings` accepts: indivisible dimensions whole, and no partial sums."""
    if sharding is None:
        return TensorSharding.closed(MESH_NAME, len(shape))
    closed = sharding.with_dims(sharding.dims[: len(shape)]).closed_like()
    dims = [d if not size % num_shards(d.axes, mesh) else d.with_axes(()) for d, size in zip(closed.dims, shape)]
    return TensorSharding(MESH_NAME, tuple(dims))
