"""Texts of single attributes, as MLIR prints them."""

from __future__ import annotations

import re

from shardy_py.frontends._jax import ir
from shardy_py.ir.attribute_text import split_entries


def attribute_text(op: ir.OpView, name: str) -> str:
    """The text of one attribute, also where jaxlib has no class for it, as for elements of complex numbers."""
    try:
        return str(op.attributes[name])
    except TypeError:
        text = str(op.operation.get_asm(print_generic_op_form=True))
        start = re.search(rf"[<{{ ]{re.escape(name)} = ", text)
        if start is None:
            raise
        return next(split_entries(text[start.end() :]))
