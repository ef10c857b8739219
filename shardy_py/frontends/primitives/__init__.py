"""Native templates of JAX primitives, one module per family; a primitive named twice is an error."""

from __future__ import annotations

from shardy_py.frontends.primitives import collectives, elementwise, indexing, products, reductions, shapes
from shardy_py.frontends.primitives.template import TemplateBuilder

FAMILIES = (collectives, elementwise, indexing, products, reductions, shapes)


def _merged() -> dict[str, TemplateBuilder]:
    merged: dict[str, TemplateBuilder] = {}
    for family in FAMILIES:
        for name, builder in family.TEMPLATES.items():
            if name in merged:
                raise ValueError(f"primitive {name!r} has two native templates; the second is in {family.__name__}")
            merged[name] = builder
    return merged


TEMPLATES: dict[str, TemplateBuilder] = _merged()
