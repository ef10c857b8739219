"""The forms of all primitives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardy_py.backends.local import (
    annotations,
    argminmax,
    calls,
    convolution,
    cumulative,
    dynamic_slicing,
    effects,
    elementwise,
    fft,
    indexing,
    iota,
    linear_algebra,
    loops,
    products,
    random_bits,
    reductions,
    remaining,
    shapes,
    slicing,
    sorting,
    windows,
)



def _joined(tables: Iterable[dict[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for table in tables:
        for name, builder in table.items():
            if name in joined:
                raise ValueError(f"primitive '{name}' stands in two tables; remove one")
            joined[name] = builder
    return joined


FORMS = _joined(
    (
        argminmax.FORMS,
        convolution.FORMS,
        cumulative.FORMS,
        dynamic_slicing.FORMS,
        elementwise.FORMS,
        fft.FORMS,
        indexing.FORMS,
        iota.FORMS,
        linear_algebra.FORMS,
        products.FORMS,
        random_bits.FORMS,
        reductions.FORMS,
        remaining.FORMS,
        shapes.FORMS,
        slicing.FORMS,
        sorting.FORMS,
        windows.FORMS,
    )
)
"""Primitive -> builder of its form."""

HANDLERS = _joined((annotations.HANDLERS, calls.HANDLERS, effects.HANDLERS, loops.HANDLERS))
"""Primitive -> what runs it, for equations that hold jaxprs or speak of shardings."""
