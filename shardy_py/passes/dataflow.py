"""Data-flow edges: which values of a while, case, barrier or computation op must have one sharding, and where it stands.

An edge has an owner (an op result or a block argument), sources that flow into it (operands of the op or of a
terminator), and targets that it flows into (the owner and, for a while, the arguments of both regions). While a
program has `sdy.data_flow_edge` ops, the result of such an op holds the sharding of all values of its edge.
Shardy's ShardableDataFlowOpInterface.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import DimensionSharding, TensorSharding
from shardy_py.dialect.axis import reduced_like
from shardy_py.ir import Block, Function, Op, Value
from shardy_py.ir.verifier import COMPUTATIONS as COMPUTATIONS

EDGE = "sdy.data_flow_edge"
FUNC_EDGE = "sdy.func_data_flow_edge"
WHILE = "stablehlo.while"
CASE = "stablehlo.case"
NAMED_COMPUTATION = "sdy.named_computation"
MANUAL_COMPUTATION = "sdy.manual_computation"
DATA_FLOW_OPS = frozenset((WHILE, CASE, "stablehlo.optimization_barrier", NAMED_COMPUTATION, MANUAL_COMPUTATION))
"""Ops whose block arguments own edges of their own."""


def owners(op: Op) -> list[Value]:
    """The values that own an edge of a data-flow op: block arguments first, then results."""
    if op.name in COMPUTATIONS:
        return [*op.regions[0].arguments, *op.results]
    return op.results if op.name in DATA_FLOW_OPS else []


def sources(owner: Value) -> list[tuple[Op, int]]:
    """The `(op, operand number)` that flow into the edge of an owner, in Shardy's order."""
    i = owner.index
    if isinstance(owner.owner, Block):
        parent = owner.owner.parent
        assert isinstance(parent, Op)
        return [(parent, i)]
    op = owner.owner
    if op.name == WHILE:
        return [(op, i), (op.regions[1].terminator, i)]
    if op.regions:
        return [(region.terminator, i) for region in op.regions]
    return [(op, i)]


def other_targets(owner: Value) -> list[Value]:
    """The values besides the owner that its edge flows into: the arguments of both regions of a while."""
    op = owner.owner
    if isinstance(op, Op) and op.name == WHILE:
        return [region.arguments[owner.index] for region in op.regions]
    return []


def owner_of(target: Value) -> Value | None:
    """The owner of the edge that flows into a value; None where there is none."""
    if isinstance(target.owner, Op):
        return target if target.owner.name in DATA_FLOW_OPS else None
    parent = target.owner.parent
    if not isinstance(parent, Op):
        return None
    if parent.name in COMPUTATIONS:
        return target
    return parent.results[target.index] if parent.name == WHILE else None


def owner_fed_by(op: Op, operand: int) -> Value | None:
    """The owner of the edge that an operand flows into; None where it flows into none."""
    name = op.name
    if name in COMPUTATIONS:
        return op.regions[0].arguments[operand]
    if name in DATA_FLOW_OPS:
        return None if name == CASE else op.results[operand]
    block = op.block
    if block is None or block.ops[-1] is not op or not isinstance(block.parent, Op):
        return None
    parent = block.parent
    if parent.name not in DATA_FLOW_OPS or (parent.name == WHILE and parent.regions[1] is not block):
        return None
    return parent.results[operand]


def edge_of_owner(owner: Value) -> Op | None:
    """The `sdy.data_flow_edge` op on an owner, or None."""
    for op, _ in owner.uses:
        if op.name == EDGE:
            return op
    return None


def edge_of(target: Value) -> Op | None:
    """The `sdy.data_flow_edge` op whose edge flows into a value, or None."""
    owner = owner_of(target)
    return None if owner is None else edge_of_owner(owner)


def shardable_value(value: Value) -> Value | None:
    """The value that holds the sharding of `value`: itself, its edge, or the owner of its edge; None where none can."""
    if isinstance(value.owner, Op) and value.owner.name not in DATA_FLOW_OPS:
        return value
    if isinstance(value.owner, Block) and isinstance(value.owner.parent, Function):
        return value
    owner = owner_of(value)
    if owner is None:
        return None
    edge = edge_of_owner(owner)
    return owner if edge is None else edge.results[0]


def get_sharding(value: Value) -> TensorSharding | None:
    """The sharding a value has, wherever it is kept."""
    holder = shardable_value(value)
    if holder is None:
        return None
    if isinstance(holder.owner, Block):
        op = holder.owner.parent
        if isinstance(op, Function):
            return holder.sharding
        assert isinstance(op, Op)
        shardings = op.attributes.get("in_shardings")
        return without_manual_axes(shardings[holder.index], manual_axes(op)) if shardings else None
    if holder.owner.name in COMPUTATIONS:
        shardings = holder.owner.attributes.get("out_shardings")
        return shardings[holder.index] if shardings else None
    return holder.sharding


def set_sharding(value: Value, sharding: TensorSharding) -> bool:
    """Sets the sharding of a value where it is kept; False where the value can have none.

    The other results of an op none of whose results has a sharding become fully open, as an op states either all
    its shardings or none.
    """
    holder = shardable_value(value)
    if holder is None:
        return False
    if isinstance(holder.owner, Block):
        op = holder.owner.parent
        if isinstance(op, Op):
            set_in_shardings(op, [sharding if i == holder.index else None for i in range(len(op.operands))], keep=True)
            return True
    elif holder.owner.name in COMPUTATIONS:
        op = holder.owner
        shardings = list(op.attributes.get("out_shardings") or fill(op.results, [None] * len(op.results), sharding.mesh))
        shardings[holder.index] = sharding
        op.attributes = {**op.attributes, "out_shardings": tuple(shardings)}
        return True
    else:
        results = holder.owner.results
        if len(results) > 1 and all(result.sharding is None for result in results):
            for result in results:
                result.sharding = TensorSharding.open(sharding.mesh, result.type.rank)
    holder.sharding = sharding
    return True


def set_in_shardings(op: Op, shardings: Sequence[TensorSharding | None], *, keep: bool = False) -> None:
    """States the shardings of a computation's block arguments, manual axes in front; with `keep`, None keeps what is stated."""
    current = op.attributes.get("in_shardings")
    mesh = next(sharding.mesh for sharding in shardings if sharding is not None)
    manual = manual_axes(op)
    outside = [
        current[i] if keep and current and shardings[i] is None else with_manual_axes(sharding, current[i] if current else None, manual)
        for i, sharding in enumerate(fill(op.regions[0].arguments, shardings, mesh))
    ]
    op.attributes = {**op.attributes, "in_shardings": tuple(outside)}


def fill(values: Sequence[Value], shardings: Sequence[TensorSharding | None], mesh: object) -> list[TensorSharding]:
    """The shardings, fully open where there is None."""
    return [TensorSharding.open(mesh, v.type.rank) if s is None else s for v, s in zip(values, shardings, strict=True)]  # type: ignore[arg-type]


def manual_axes(op: Op) -> tuple[str, ...]:
    """Axes that a manual computation makes manual; none for another op."""
    return tuple(op.attributes.get("manual_axes") or ())


def without_manual_axes(sharding: TensorSharding, manual: Sequence[str]) -> TensorSharding:
    """An outer sharding as the body of a manual computation sees it."""
    if not manual:
        return sharding
    dims: list[DimensionSharding] = []
    for dim in sharding.dims:
        axes = tuple(axis for axis in dim.axes if axis.name not in manual)
        priority = dim.priority if axes or not dim.is_closed else None
        dims.append(DimensionSharding(axes, dim.is_closed, priority))
    replicated = tuple(axis for axis in sharding.replicated if axis.name not in manual)
    unreduced = tuple(axis for axis in sharding.unreduced if axis.name not in manual)
    return TensorSharding(sharding.mesh, tuple(dims), replicated, reduced_like(unreduced, sharding.unreduced))


def with_manual_axes(sharding: TensorSharding, outer: TensorSharding | None, manual: Sequence[str]) -> TensorSharding:
    """A sharding in the body as an outer value sees it; `outer` says where the manual axes stand. Inverse of `without_manual_axes`."""
    if not manual or outer is None:
        return sharding
    dims = [
        DimensionSharding((*(axis for axis in old.axes if axis.name in manual), *new.axes), new.is_closed, new.priority)
        for old, new in zip(outer.dims, sharding.dims, strict=True)
    ]
    return TensorSharding(outer.mesh, tuple(dims), outer.replicated, outer.unreduced)


def before_edge(owner: Value, sharding: TensorSharding | None) -> TensorSharding | None:
    """A sharding of an owner in the view of its sources: manual axes are added to a block argument's, taken from a result's."""
    outer, manual = _outer_sharding(owner)
    if sharding is None or not manual:
        return sharding
    if isinstance(owner.owner, Block):
        return with_manual_axes(sharding, outer, manual)
    return without_manual_axes(sharding, manual)


def sharding_for_sources(owner: Value) -> TensorSharding | None:
    """The sharding of an owner in the view of its sources; what a computation states for an argument stays as it is stated."""
    if isinstance(owner.owner, Block) and edge_of_owner(owner) is None:
        return _outer_sharding(owner)[0]
    return before_edge(owner, get_sharding(owner))


def after_edge(owner: Value, sharding: TensorSharding) -> TensorSharding:
    """The inverse of `before_edge`."""
    outer, manual = _outer_sharding(owner)
    if not manual:
        return sharding
    if isinstance(owner.owner, Block):
        return without_manual_axes(sharding, manual)
    return with_manual_axes(sharding, outer, manual)


def _outer_sharding(owner: Value) -> tuple[TensorSharding | None, tuple[str, ...]]:
    op = owner.owner.parent if isinstance(owner.owner, Block) else owner.owner
    if not isinstance(op, Op) or op.name not in COMPUTATIONS:
        return None, ()
    shardings = op.attributes.get("in_shardings" if isinstance(owner.owner, Block) else "out_shardings")
    return (shardings[owner.index] if shardings else None), manual_axes(op)
