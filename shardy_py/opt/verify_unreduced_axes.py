"""Checks that parts of a sum are combined where the program says so, and by the reduction that made them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.axis import contains, reduction_of
from shardy_py.errors import VerificationError
from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.opt.explicit_reshards.unreduced import KINDS, unreduced_of
from shardy_py.passes.base import FUNCTION, Pass
from shardy_py.passes.dataflow import get_sharding, manual_axes, without_manual_axes
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import CALL, functions_by_name, place
from shardy_py.rules.traits import CONSTRAINTS, DOTS

_RETURNS = frozenset(("func.return", "sdy.return"))
_REDUCES = frozenset(("sdy.all_reduce", "sdy.reduce_scatter"))
_REDUCES_BY_BODY = frozenset(("stablehlo.all_reduce", "stablehlo.reduce_scatter"))
_UNCHECKED = CONSTRAINTS | {"sdy.propagation_barrier", "stablehlo.return"}
_WITHOUT = "without a blessed operation (e.g., sdy.reshard). This is an invalid transition from unreduced to reduced."


@dataclass(frozen=True, kw_only=True)
class VerifyUnreducedAxes(Pass):
    """Checks that only reductions, reshards and constraints end unreduced axes."""

    name = "sdy-verify-unreduced-axes"
    anchor = FUNCTION

    def run(self, program: Program, log: Log | None = None) -> None:
        """Raises a VerificationError with the first op of each function that drops an unreduced axis, or combines its parts otherwise.

        What a reshard or a constraint makes is not checked where it is used. Source: Shardy's verify_unreduced_axes.cc.
        """
        verifier = _UnreducedVerifier(program)
        errors = [error for function in program.functions if (error := verifier.first(function.body))]
        if errors:
            text = "\n".join(f"'{op.name}' op {message}" for op, message in errors)
            raise VerificationError(text, where=place(program, errors[0][0]), fix="reshard the value before its use")


class _UnreducedVerifier:
    def __init__(self, program: Program) -> None:
        self.meshes = program.meshes
        self.functions = functions_by_name(program)

    def first(self, block: Block) -> tuple[Op, str] | None:
        """The first op that is wrong, those in the regions of an op before it, and what is."""
        for op in block.ops:
            for region in op.regions:
                if error := self.first(region):
                    return error
            if message := next(self.errors(op, block), None):
                return op, message
        return None

    def errors(self, op: Op, block: Block) -> Iterator[str]:
        """What is wrong with an op."""
        if op.name in _UNCHECKED:
            return
        if op.name == CALL:
            function = self.functions[op.attributes["callee"]]
            yield from _mismatches(op.operands, [v.sharding for v in function.arguments], "at call argument {}.")
            yield from _mismatches(op.results, function.result_shardings, "at call result {}.")
        elif op.name in _RETURNS:
            expected = [get_sharding(v) if s is None else s for v, s in zip(op.operands, _expected(block), strict=False)]
            yield from _mismatches(op.operands, expected, f"at return value {{}} {_WITHOUT}")
        elif op.name in _REDUCES:
            if get_sharding(op.operands[0]) is None:
                yield "operand must be sharded."
        else:
            yield from self.kept(op)
            yield from self.introduced(op)

    def kept(self, op: Op) -> Iterator[str]:
        """Unreduced axes of operands that the results drop, or combine in another way."""
        reduction = _body_reduction(op) if op.name in _REDUCES_BY_BODY else None
        results = [get_sharding(result) for result in op.results]
        after = [axis for sharding in results for axis in unreduced_of(sharding)]
        for operand in op.operands:
            sharding = get_sharding(operand)
            axes = unreduced_of(sharding)
            dropped = [axis for axis in axes if not any(contains(other, axis) for other in after)]
            if reduction is not None:
                if dropped and reduction_of(axes) != reduction:
                    yield f"cannot reduce '{reduction_of(axes)}' unreduced axes. Expected '{reduction}'."
            elif sharding is not None and axes and not _is_reshard(operand) and not self.on_another_mesh(sharding, results):
                if dropped:
                    yield f"dropped unreduced axis '{dropped[0].name}' {_WITHOUT}"
                for other in map(unreduced_of, results):
                    if other and (change := (reduction_of(axes), reduction_of(other)))[0] != change[1]:
                        yield f"cannot change the reduction operator of kept unreduced axes from {change[0]} to {change[1]}."

    def introduced(self, op: Op) -> Iterator[str]:
        """Unreduced axes that an op adds by a reduction which it does not make."""
        if op.name not in DOTS and op.name != "stablehlo.reduce":
            return
        before = [axis for operand in op.operands if not _is_reshard(operand) for axis in unreduced_of(get_sharding(operand))]
        reduction = "sum" if op.name in DOTS else _body_reduction(op)
        for result in op.results:
            axes = unreduced_of(get_sharding(result))
            new = [axis for axis in axes if axis not in before]
            if new and reduction is None:
                yield f"cannot add new unreduced axis '{new[0].name}'."
            elif new and reduction_of(axes) != reduction:
                yield f"cannot introduce '{reduction_of(axes)}' unreduced axes. Expected '{reduction}'."

    def on_another_mesh(self, sharding: TensorSharding, others: Sequence[TensorSharding | None]) -> bool:
        """Whether any of the other shardings is over another mesh."""
        mesh = sharding.mesh_in(self.meshes)
        return any(other is not None and other.mesh_in(self.meshes) is not mesh for other in others)


def _mismatches(values: Sequence[Value], shardings: Sequence[TensorSharding | None], where: str) -> Iterator[str]:
    for i, (value, sharding) in enumerate(zip(values, shardings, strict=False)):
        axes, others = unreduced_of(get_sharding(value)), unreduced_of(sharding)
        if tuple(axes) != tuple(others) and not _is_reshard(value):
            names = sorted({axis.name for axis in set(axes) ^ set(others)})
            yield f"has unreduced axes mismatch for '{', '.join(names)}' {where.format(i)}"


def _expected(block: Block) -> Sequence[TensorSharding | None]:
    """The shardings of what a block returns, as its values see them."""
    parent = block.parent
    if isinstance(parent, Function):
        return parent.result_shardings
    shardings = [] if parent is None else [get_sharding(result) for result in parent.results]
    return [None if s is None or parent is None else without_manual_axes(s, manual_axes(parent)) for s in shardings]


def _is_reshard(value: Value) -> bool:
    maker = value.defining_op
    return maker is not None and maker.name in CONSTRAINTS


def _body_reduction(op: Op) -> str | None:
    """How the region of a reduction combines two values; None where it makes several results, or neither sum, maximum nor minimum."""
    returned = op.regions[0].terminator.operands if op.regions else ()
    maker = returned[0].defining_op if len(returned) == 1 else None
    return None if maker is None else KINDS.get(maker.name)
