"""Turns implicit batch dimensions of gathers and scatters, whose index is an iota, into explicit ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardy_py.ir import Op, Program, Value
from shardy_py.ir.attribute_text import MLIR_TEXT_KEY, AttributeText
from shardy_py.opt.canonicalize import Canonicalize
from shardy_py.opt.edits import insert_before
from shardy_py.opt.partitioner import local_ops
from shardy_py.passes.base import FUNCTION, Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import blocks_of

_CONCATENATE = "stablehlo.concatenate"
_FIELDS = {
    "stablehlo.gather": ("collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map"),
    "stablehlo.scatter": ("inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims", "scatter_dims_to_operand_dims"),
}
"""Names of the same four lists of dimensions in either op."""

_NUMBERS = re.compile(r"(#stablehlo\.(?:gather|scatter)<)([^<>]*)(>)")
_LIST = re.compile(r"(\w+) = (\[[^\]]*\]|\d+)")


@dataclass(frozen=True, kw_only=True)
class ExplicitGatherScatterBatching(Pass):
    """Makes batch dimensions of gathers and scatters explicit."""

    name = "sdy-explicit-gather-scatter-batching"
    anchor = FUNCTION

    def run(self, program: Program, log: Log | None = None) -> None:
        """Makes dimension 0 of the operand and of the indices a batching dimension where its index is an iota along dimension 0.

        Such an op looks up row i for batch i. Its index component goes away, so that propagation sees one dimension instead of a gather
        along it. The iota is found in an operand of the concatenation that makes the indices, behind broadcasts, reshapes,
        clamps and selects. Unlike in the reference, a reshape must leave dimension 0 as it is. Dead ops are removed.

        Source: Shardy's explicit_gather_scatter_batching.cc.
        """
        for block in blocks_of(program):
            for op in list(block.ops):
                if op.name in _FIELDS:
                    _make_explicit(op)
        Canonicalize(enable_patterns=("dead-code",)).run(program)


def _make_explicit(op: Op) -> None:
    dropped, batching, indices_batching, index_map = _FIELDS[op.name]
    attributes = op.attributes
    position = (len(op.operands) - 1) // 2 if op.name == "stablehlo.scatter" else 1
    operand, indices = op.operands[0], op.operands[position]
    vector, mapped = attributes["index_vector_dim"], tuple(attributes[index_map])
    if attributes[batching] or 0 not in mapped or 0 not in attributes[dropped] or not 0 < vector < indices.type.rank:
        return
    if len(mapped) < 2 or operand.type.shape[0] != indices.type.shape[0]:
        return
    component = mapped.index(0)
    if not _is_iota(_component(indices, vector, component)):
        return
    op.set_operand(position, _without(indices, vector, component, op))
    changed: dict[str, tuple[int, ...]] = {
        dropped: tuple(d for d in attributes[dropped] if d != 0),
        batching: (0,),
        indices_batching: (0,),
        index_map: tuple(d for i, d in enumerate(mapped) if i != component),
    }
    op.attributes = {**attributes, **changed}
    if MLIR_TEXT_KEY in attributes:
        text = _NUMBERS.sub(lambda match: f"{match[1]}{_numbers(match[2], changed)}{match[3]}", attributes[MLIR_TEXT_KEY], count=1)
        op.attributes[MLIR_TEXT_KEY] = AttributeText(text)
    op.rule, op.rule_decided = (op.rule, True) if op.rule is not None and op.rule.is_custom else (None, False)


def _component(indices: Value, vector: int, component: int) -> Value:
    """The operand of the concatenation that a component of the indices lies in; else the indices."""
    definition = indices.defining_op
    if definition is None or definition.name != _CONCATENATE or definition.attributes["dimension"] != vector:
        return indices
    end = 0
    for operand in definition.operands:
        end += operand.type.shape[vector]
        if component < end:
            return operand
    return indices


def _is_iota(value: Value) -> bool:
    """Whether a value counts up along dimension 0."""
    op = value.defining_op
    if op is None:
        return False
    if op.name == "stablehlo.iota":
        return op.attributes["iota_dimension"] == 0
    first = op.operands[0] if op.operands else None
    keeps = first is not None and first.type.shape[:1] == value.type.shape[:1]
    if op.name == "stablehlo.broadcast_in_dim":
        return keeps and tuple(op.attributes["broadcast_dimensions"])[:1] == (0,) and _is_iota(op.operands[0])
    if op.name == "stablehlo.reshape":
        return keeps and _is_iota(op.operands[0])
    if op.name == "stablehlo.clamp":
        return _is_iota(op.operands[1])
    return op.name == "stablehlo.select" and any(map(_is_iota, op.operands[1:]))


def _without(indices: Value, vector: int, component: int, user: Op) -> Value:
    """The indices without a component; what has to be made for it stands right before the user."""
    count = indices.type.shape[vector]
    definition = indices.defining_op
    if (
        definition is not None
        and definition.name == _CONCATENATE
        and definition.attributes["dimension"] == vector
        and len(definition.operands) == count
    ):
        parts = [operand for i, operand in enumerate(definition.operands) if i != component]
    else:
        bounds = [(start, end) for start, end in ((0, component), (component + 1, count)) if start < end]
        shape = indices.type.shape
        parts = [
            _inserted(
                local_ops.slice_(
                    indices,
                    tuple(start if d == vector else 0 for d in range(len(shape))),
                    tuple(end if d == vector else size for d, size in enumerate(shape)),
                    user,
                    None,
                ),
                user,
            )
            for start, end in bounds
        ]
    if len(parts) == 1:
        return parts[0]
    return _inserted(local_ops.concatenate(parts, vector, user, None), user)


def _inserted(op: Op, user: Op) -> Value:
    """The result of an op, which is put right before a user."""
    insert_before(user, [op])
    return op.result


def _numbers(text: str, changed: dict[str, tuple[int, ...]]) -> str:
    """The text of dimension numbers with some lists replaced."""
    fields = {**dict(_LIST.findall(text)), **{name: f"[{', '.join(map(str, dims))}]" for name, dims in changed.items()}}
    return ", ".join(f"{name} = {fields[name]}" for name in _ORDER if fields.get(name, "[]") != "[]")


_ORDER = (
    "offset_dims",
    "update_window_dims",
    "collapsed_slice_dims",
    "inserted_window_dims",
    "operand_batching_dims",
    "input_batching_dims",
    "start_indices_batching_dims",
    "scatter_indices_batching_dims",
    "start_index_map",
    "scatter_dims_to_operand_dims",
    "index_vector_dim",
)
"""In which order MLIR writes the fields."""
