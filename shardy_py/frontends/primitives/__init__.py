"""Native templates of JAX primitives, one module per family; a primitive named twice is an error."""

from __future__ import annotations

from shardy_py.frontends.primitives import elementwise, products, reductions, shapes
from shardy_py.frontends.primitives.template import TemplateBuilder
from shardy_py.ir.tables import merge_tables

FAMILIES = (elementwise, products, reductions, shapes)

TEMPLATES: dict[str, TemplateBuilder] = merge_tables(family.TEMPLATES for family in FAMILIES)
