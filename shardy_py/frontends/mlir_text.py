"""Parts of a module without a representation in a `Program`, kept as MLIR's text.

An op keeps the attributes that no pass sets as one text under `ir.attribute_text.MLIR_TEXT_KEY`, so that copies of the op share it; a
program keeps its top-level ops that are neither function nor mesh there. `MODELLED` says
which attributes are written from the `Program` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardy_py.dialect.collectives import AXES_OF
from shardy_py.frontends._jax import ir
from shardy_py.frontends.mlir_attributes import SHARDING_ATTRIBUTE, plain
from shardy_py.frontends.mlir_entries import attribute_text
from shardy_py.ir.attribute_text import AttributeText, name_text, split_entries

PROPERTIES = "mlir.properties"
"""Name under which an op of an unknown dialect keeps the text of its properties."""

RESOURCES = "mlir.resources"
"""Name under which a program keeps the data of constants that its text refers to by name."""

_SHARDING = "sdy.sharding"
_RULE = "sdy.sharding_rule"

MODELLED: Mapping[str, frozenset[str]] = {
    "func.call": frozenset(("callee",)),
    "sdy.constant": frozenset(("value",)),
    "sdy.manual_computation": frozenset(("in_shardings", "manual_axes", "out_shardings")),
    "sdy.named_computation": frozenset(("in_shardings", "name", "out_shardings")),
    "sdy.propagation_barrier": frozenset(("allowed_direction",)),
    "sdy.sharding_group": frozenset(("group_id",)),
    "stablehlo.constant": frozenset(("value",)),
    **{name: frozenset((attribute,)) for name, attribute in SHARDING_ATTRIBUTE.items()},
    **{name: frozenset((SHARDING_ATTRIBUTE[name], attribute, "reduction_op")) for name, attribute in AXES_OF.items()},
}
"""Name of an op -> its attributes that are read into the `Program` and may be set by passes."""


def attribute_texts(op: ir.OpView) -> tuple[dict[str, str], dict[str, Any]]:
    """Splits the attributes of an op: texts of those without a dialect prefix, and those with one, SDY's parsed."""
    texts: dict[str, str] = {}
    prefixed: dict[str, Any] = {}
    attributes = op.attributes
    for name in attributes:
        if "." not in name:
            texts[name] = attribute_text(op, name)
        elif name in (_SHARDING, _RULE):
            prefixed[name] = plain(attributes[name])
        else:
            prefixed[name] = AttributeText(attribute_text(op, name))
    if not op.operation.context.is_registered_operation(op.operation.name):
        head = str(op.operation.get_asm(print_generic_op_form=True)).partition("\n")[0]
        _, mark, rest = head.partition(") <{")
        if mark:
            prefixed[PROPERTIES] = AttributeText(f"<{{{', '.join(split_entries(rest))}}}>")
    return texts, prefixed


def unread_attributes(op_name: str, texts: Mapping[str, str]) -> AttributeText | None:
    """`{a = 1, b = 2}` with the attributes that a `Program` does not set; None where there are none."""
    modelled = MODELLED.get(op_name, frozenset())
    entries = [f"{name_text(name)} = {text}" for name, text in texts.items() if name not in modelled]
    return AttributeText(f"{{{', '.join(entries)}}}") if entries else None


def module_resources(module: ir.Module) -> dict[str, AttributeText]:
    """The data of constants that the text of a module refers to by name, as the section at the end of the text."""
    _, mark, section = str(module).rpartition("\n{-#")
    return {RESOURCES: AttributeText(f"{{-#{section}")} if mark and "dialect_resources" in section else {}


@dataclass(frozen=True, eq=False, slots=True)
class LocationText:
    """A location of an op as MLIR writes it.

    A program is a cycle of objects, so that it stays until Python looks for garbage, which it does by their number. A location itself
    would keep the module's context for as long, a megabyte for what may be a dozen objects.
    """

    text: str


def location_text(location: object) -> str:
    """` loc(...)` of an op that was read from MLIR, else nothing."""
    return f" {location.text}" if isinstance(location, LocationText) else f" {location}" if isinstance(location, ir.Location) else ""
