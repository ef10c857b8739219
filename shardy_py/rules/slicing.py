"""Rules of ops that cut tensors or put them together: slice, pad, concatenate, dynamic_slice, dynamic_update_slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shardy_py.dialect import FactorType, OpShardingRule
from shardy_py.rules.builder import NO_DIM, Builder, FactorBuilder, Signature
from shardy_py.rules.traits import CONSTANTS

if TYPE_CHECKING:
    from shardy_py.ir.core import Op


def slice_or_pad(signature: Signature) -> OpShardingRule:
    """Dimensions of equal size pass through, from 0.12 on those without padding; others are permutations of the operand's size."""
    padded: tuple[int, ...] = ()
    if signature.semantics.has("pad: equal sizes permute"):
        pads = zip(*[signature.attributes.get(name, ()) for name in _PADDING], strict=True)
        padded = tuple(dim for dim, amounts in enumerate(pads) if any(amounts))
    return _resized(signature, FactorType.PERMUTATION, signature.conservative, padded)


_PADDING = ("edge_padding_low", "edge_padding_high", "interior_padding")


def _resized(signature: Signature, changed: FactorType, blocked: bool, padded: Sequence[int] = ()) -> OpShardingRule:
    """Dimensions of equal size that are not padded pass through; others are of a type, and blocked or not."""
    operand, result = signature.operands[0], signature.results[0]
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(operand):
        if size == result[dim] and dim not in padded:
            builder.add((dim,), (dim,), size)
        else:
            builder.add((dim,), (dim,), size, changed, blocked=blocked and size != result[dim])
    return builder.build()


def concatenate(signature: Signature) -> OpShardingRule:
    """Other dimensions pass through; the joined one needs replication, or is a permutation where slices are rejoined.

    The context of the signature is `joins_slices`.
    """
    (result,) = signature.results
    joined = signature.attributes["dimension"]
    joined_type = FactorType.PERMUTATION if signature.context else FactorType.NEED_REPLICATION
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(result):
        if dim != joined:
            builder.add_to_all(dim, size)
        elif not signature.conservative:
            builder.add_to_all(dim, size, joined_type)
    return builder.build()


def joins_slices(op: Op) -> bool:
    """Whether a concatenate joins only slices, or one value and slices of that value."""
    slices = [operand.defining_op for operand in op.operands]
    is_slice = [definition is not None and definition.name == "stablehlo.slice" for definition in slices]
    if all(is_slice):
        return True
    if not any(is_slice):
        return False
    first = None
    for operand, definition, sliced in zip(op.operands, slices, is_slice, strict=True):
        source = definition.operands[0] if definition is not None and sliced else operand
        if first is None:
            first = source
        elif source is not first:
            return False
    return True


def dynamic_slice(signature: Signature) -> OpShardingRule:
    """Dimensions that are kept whole pass through; sliced ones need replication and do not propagate."""
    return _resized(signature, FactorType.NEED_REPLICATION, True)


def dynamic_update_slice(signature: Signature) -> OpShardingRule:
    """Dimensions of equal size pass through; else operand and result share a factor and the update has its own, from 0.12 on permutations.

    The context of the signature is `has_constant_starts`.
    """
    operand, update = signature.operands[:2]
    operand_type, update_type = FactorType.PASS_THROUGH, FactorType.PASS_THROUGH if signature.context else FactorType.NEED_REPLICATION
    if signature.semantics.has("dynamic_update_slice: updates permute"):
        operand_type = update_type = FactorType.PERMUTATION
    builder = FactorBuilder(signature.operands, signature.results)
    for dim, size in enumerate(operand):
        if size == update[dim]:
            builder.add((dim, dim), (dim,), size)
        else:
            builder.add((dim,), (dim,), size, operand_type)
            builder.add((NO_DIM, dim), (), update[dim], update_type)
    return builder.build()


def has_constant_starts(op: Op) -> bool:
    """Whether every start index of a dynamic_update_slice is a constant."""
    for start in op.operands[2:]:
        definition = start.defining_op
        if definition is None or definition.name not in CONSTANTS:
            return False
    return True


RULES: dict[str, Builder] = {
    "stablehlo.concatenate": concatenate,
    "stablehlo.dynamic_slice": dynamic_slice,
    "stablehlo.dynamic_update_slice": dynamic_update_slice,
    "stablehlo.pad": slice_or_pad,
    "stablehlo.slice": slice_or_pad,
}

CONTEXT: dict[str, Callable[[Op], bool]] = {
    "stablehlo.concatenate": joins_slices,
    "stablehlo.dynamic_update_slice": has_constant_starts,
}
