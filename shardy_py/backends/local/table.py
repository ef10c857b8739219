"""The forms of all primitives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardy_py.backends.local import annotations, calls, elementwise, loops, products, reductions, shapes



def _joined(tables: Iterable[dict[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for table in tables:
        for name, builder in table.items():
            if name in joined:
                raise ValueError(f"primitive '{name}' stands in two tables; remove one")
            joined[name] = builder
    return joined


FORMS = _joined((elementwise.FORMS, products.FORMS, reductions.FORMS, shapes.FORMS))
"""Primitive -> builder of its form."""

HANDLERS = _joined((annotations.HANDLERS, calls.HANDLERS, loops.HANDLERS))
"""Primitive -> what runs it, for equations that hold jaxprs or speak of shardings."""
