"""The propagation passes in one function: user priorities as rounds, each of which runs the worklist to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding
from shardy_py.ir import Program
from shardy_py.passes import dataflow
from shardy_py.passes.propagation.computation_shardings import shardings_on_values
from shardy_py.passes.propagation.driver import Propagation
from shardy_py.passes.propagation.graph import Holder, walk_blocks
from shardy_py.passes.propagation.log import Log, Step
from shardy_py.passes.propagation.sharding_groups import sharding_groups
from shardy_py.passes.propagation.static_shapes import check_static_shapes
from shardy_py.passes.propagation.step import Strategy


def propagate(
    program: Program,
    *,
    strategy: Strategy,
    op_priority: bool,
    user_priority: bool,
    conservative: bool,
    settled: bool = False,
    log: Log | None,
) -> None:
    """Lets sharding groups agree, runs a round per user priority, and writes results back."""
    check_static_shapes(program)
    with shardings_on_values(program):
        groups = sharding_groups(program, log)
        propagation = Propagation(program, groups=groups, conservative=conservative, settled=settled, log=log)
        holders = list(_holders(propagation))
        if log is not None:
            log += [Step.outside(holder, holder.sharding, holder.sharding, "annotation") for holder in holders]
        references = _take_priorities(program, holders, log) if user_priority else {}
        propagation.run(strategy, op_priority=op_priority)
        for priority in sorted(references):
            propagation.user_priority = priority
            for holder, original in references[priority]:
                _restore(holder, original, priority, log)
            propagation.run(strategy, op_priority=op_priority)
        propagation.finish()


def _holders(propagation: Propagation) -> Iterator[Holder]:
    program = propagation.program
    for function in program.functions:
        yield from (v for v in function.arguments if dataflow.shardable_value(v) is v)
        if function is propagation.graph.main:
            yield from propagation.graph.results
        for op in walk_blocks(function.body):
            for result in op.results:
                if result.sharding is not None and dataflow.shardable_value(result) is result:
                    yield result
            if op.name in dataflow.COMPUTATIONS:
                yield from (v for v in op.regions[0].arguments if v.sharding is not None and dataflow.shardable_value(v) is v)


def _take_priorities(program: Program, holders: Sequence[Holder], log: Log | None) -> dict[int, list[tuple[Holder, TensorSharding]]]:
    """Keeps only what has priority 0; returns what is to be restored at each later priority, in program order."""
    references: dict[int, list[tuple[Holder, TensorSharding]]] = {}
    for holder in holders:
        original = holder.sharding
        if original is None or all(dim.priority is None for dim in original.dims):
            continue
        for priority in sorted({dim.priority for dim in original.dims if dim.priority}):
            references.setdefault(priority, []).append((holder, original))
        mesh = _mesh(program, original)
        dims = tuple(
            DimensionSharding((), is_closed=True) if dim.priority else DimensionSharding(dim.axes, dim.is_closed) for dim in original.dims
        )
        waiting = [axis for dim in original.dims if dim.priority for axis in dim.axes]
        replicated = (
            tuple(sorted((*original.replicated, *waiting), key=lambda axis: axis.sort_key(mesh))) if waiting else original.replicated
        )
        holder.sharding = TensorSharding(original.mesh, dims, replicated, original.unreduced)
        if log is not None and waiting:
            log.append(Step.outside(holder, original, holder.sharding, "priority"))
    return references


def _restore(holder: Holder, original: TensorSharding, priority: int, log: Log | None) -> None:
    now = holder.sharding
    assert now is not None
    freed: list[AxisRef] = []
    dims = list(now.dims)
    for d, dim in enumerate(original.dims):
        if (dim.priority or 0) == priority:
            dims[d] = DimensionSharding(dim.axes, dim.is_closed)
            freed.extend(dim.axes)
    replicated = tuple(axis for axis in now.replicated if axis not in freed)
    holder.sharding = TensorSharding(now.mesh, tuple(dims), replicated, now.unreduced)
    if log is not None:
        log.append(Step.outside(holder, now, holder.sharding, "priority", user_priority=priority))


def _mesh(program: Program, sharding: TensorSharding) -> Mesh:
    return sharding.mesh_in(program.meshes)
