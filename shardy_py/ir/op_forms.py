"""Assembly formats after MLIR's: the text between an op's name and its attributes, and the form of its type.

An op without a form here is written as `name operands` where it has no attributes of its own, and generically, with its
name in quotes and its attributes in `<{}>`, where it has some.
"""

# Attributes hold anything, so what their lists hold has no type.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.collectives import AXES_OF
from shardy_py.ir.attribute_text import attribute_text, constant_text
from shardy_py.ir.core import Op
from shardy_py.ir.numbering import Names

UNCONSTRAINED = "unconstrained_dims"
"""The attribute of a constraint that has the dimensions that its user leaves open; not written."""


class Form(NamedTuple):
    """The assembly format of one op."""

    write: Callable[[Op, Names], str]
    """Writes the text after the name."""
    attributes: frozenset[str]
    """Attributes that `write` writes."""
    functional: bool
    """Whether the type is always `(operands) -> results`; else one type where all are the same."""
    holds_sharding: bool = False
    """Whether `write` writes the sharding of the result, which is therefore not `sdy.sharding`."""
    optional: frozenset[str] = frozenset()
    """Attributes that `write` writes where they are there."""


def _list(values: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _value(value: Any) -> str:
    return _list(value) if isinstance(value, tuple | list) else attribute_text(value) if isinstance(value, bool) else str(value)


def _suffix(*parts: tuple[str, str]) -> Form:
    """`operands, label = attribute, ...` for `(label, attribute)`; always with a functional type."""

    def write(op: Op, names: Names) -> str:
        texts = [f"{label} = {_value(op.attributes[name])}" for label, name in parts]
        return f" {', '.join([*map(names.get, op.operands), *texts])}"

    return Form(write, frozenset(name for _, name in parts), True)


def _constant(op: Op, _names: Names) -> str:
    return f" {constant_text(op.attributes.get('value'), op.results[0].type)}"


def _slice(op: Op, names: Names) -> str:
    bounds = zip(op.attributes["start_indices"], op.attributes["limit_indices"], op.attributes["strides"], strict=True)
    return f" {names.list(op.operands)} [{', '.join(f'{a}:{b}' if step == 1 else f'{a}:{b}:{step}' for a, b, step in bounds)}]"


def _dot_general(op: Op, names: Names) -> str:
    text = f" {names.list(op.operands)}"
    for label, kind in (("batching_dims", "batching"), ("contracting_dims", "contracting")):
        left, right = (op.attributes[f"{side}_{kind}_dimensions"] for side in ("lhs", "rhs"))
        if left or kind == "contracting":
            text += f", {label} = {_list(left)} x {_list(right)}"
    return text


def _reduce(op: Op, names: Names) -> str:
    half = len(op.operands) // 2
    pairs = zip(op.operands[:half], op.operands[half:], strict=True)
    text = ", ".join(f"({names.get(value)} init: {names.get(start)})" for value, start in pairs)
    body = op.attributes.get("body")
    return f"{text} {f'applies {body} ' if body else ''}across dimensions = {_list(op.attributes['dimensions'])}"


def _called(attribute: str) -> Callable[[Op, Names], str]:
    def write(op: Op, names: Names) -> str:
        return f" @{op.attributes[attribute]}({names.list(op.operands)})"

    return write


def _sharding(sharding: TensorSharding | None) -> str:
    return "" if sharding is None else sharding.text(short=True)


def _labelled(label: str) -> Callable[[Op, Names], str]:
    def write(op: Op, names: Names) -> str:
        sharding = op.results[0].sharding
        return f" {names.list(op.operands)}" + ("" if sharding is None else f" {label}{sharding.text(short=True)}")

    return write


_REDUCTIONS = ("", "max ", "min ")
"""`reduction_op` -> its text; a sum has none."""


def _collective(attribute: str) -> Callable[[Op, Names], str]:
    def write(op: Op, names: Names) -> str:
        reduction: int = op.attributes.get("reduction_op", 0)
        kind = _REDUCTIONS[reduction]
        return f" {kind}{op.attributes[attribute]} {names.list(op.operands)} out_sharding={_sharding(op.results[0].sharding)}"

    return write


def _group(op: Op, names: Names) -> str:
    return f" {names.list(op.operands)} group_id={op.attributes['group_id']}"


def _barrier(op: Op, names: Names) -> str:
    direction = op.attributes["allowed_direction"]
    return f" {names.list(op.operands)} allowed_direction={getattr(direction, 'name', direction)}"


_SHARDED = frozenset[str]()

FORMS: Mapping[str, Form] = {
    "stablehlo.broadcast_in_dim": _suffix(("dims", "broadcast_dimensions")),
    "stablehlo.cholesky": _suffix(("lower", "lower"))._replace(functional=False),
    "stablehlo.compare": _suffix(),
    "stablehlo.concatenate": _suffix(("dim", "dimension")),
    "stablehlo.constant": Form(_constant, frozenset(("value",)), False),
    "stablehlo.custom_call": Form(_called("call_target_name"), frozenset(("call_target_name",)), True),
    "stablehlo.dot": _suffix(),
    "stablehlo.dot_general": Form(
        _dot_general,
        frozenset(f"{side}_{kind}_dimensions" for side in ("lhs", "rhs") for kind in ("batching", "contracting")),
        True,
    ),
    "stablehlo.dynamic_slice": _suffix(("sizes", "slice_sizes")),
    "stablehlo.dynamic_update_slice": _suffix(),
    "stablehlo.fft": _suffix(("type", "fft_type"), ("length", "fft_length")),
    "stablehlo.iota": _suffix(("dim", "iota_dimension"))._replace(functional=False),
    "stablehlo.pad": _suffix(("low", "edge_padding_low"), ("high", "edge_padding_high"), ("interior", "interior_padding")),
    "stablehlo.reduce": Form(_reduce, frozenset(("body", "dimensions")), True),
    "stablehlo.reshape": _suffix(),
    "stablehlo.reverse": _suffix(("dims", "dimensions"))._replace(functional=False),
    "stablehlo.slice": Form(_slice, frozenset(("start_indices", "limit_indices", "strides")), True),
    "stablehlo.transpose": _suffix(("dims", "permutation")),
    "func.call": Form(_called("callee"), frozenset(("callee",)), True),
    "sdy.constant": Form(_constant, frozenset(("value",)), False),
    "sdy.collective_permute": Form(_labelled("out_sharding="), _SHARDED, False, True),
    "sdy.data_flow_edge": Form(_labelled("sharding="), _SHARDED, False, True),
    "sdy.propagation_barrier": Form(_barrier, frozenset(("allowed_direction",)), False),
    "sdy.reshard": Form(_labelled(""), _SHARDED, False, True, frozenset((UNCONSTRAINED,))),
    "sdy.sharding_constraint": Form(_labelled(""), _SHARDED, False, True, frozenset((UNCONSTRAINED,))),
    "sdy.sharding_group": Form(_group, frozenset(("group_id",)), False),
    **{
        name: Form(_collective(attribute), frozenset((attribute,)), False, True, frozenset(("reduction_op",)))
        for name, attribute in AXES_OF.items()
    },
}
"""Name of an op -> how it is written; ops with regions are in `printer`."""
