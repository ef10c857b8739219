"""The text of a program and of the values passed to it, equal in all processes that run the same."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import jaxlib
import numpy as np

from shardy_py.api.signature import settings_by_name
from shardy_py.api.tracing import TracedCall
from shardy_py.frontends.context import is_extended_dtype, known_value
from shardy_py.ir.printer import print_program
from shardy_py.plan.record import PlanRecord


def statement(plan: PlanRecord, traced: TracedCall, devices: Sequence[Any]) -> str:
    """A program that is about to run, one fact per line."""
    request = traced.request
    layout = request.layout
    ids = " ".join(f"{device.process_index}:{device.id}" for device in devices)
    lines = [
        f"function {request.name}",
        f"jax {jax.__version__}, jaxlib {jaxlib.__version__}",
        f"lowering {plan.lowering}",
        f"mesh {request.view.describe()}",
        f"devices {ids}",
        *(f"{name} = {value!r}" for name, value in settings_by_name().items()),
        f"donated {', '.join(layout.labels[i] for i in layout.donated) or 'nothing'}",
        *(f"input {value}" for value in plan.inputs),
        *(f"output {value}" for value in plan.outputs),
        print_program(plan.program),
        *(f"closed over {_type(value)} {content(value) or ''}".rstrip() for value in traced.jaxpr.consts),
    ]
    # Names of callables may hold their addresses, which differ between processes.
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(lines))


def content(value: Any) -> str | None:
    """The digest of a value, or of the one that a tracer stands for; None where this process does not hold all of it."""
    array = host_value(value)
    if array is None:
        return None
    # Bytes, whatever the element type: bfloat16 and the like export no buffer.
    flat = np.ascontiguousarray(array).reshape(-1)
    return hashlib.sha256(flat.view(np.uint8).data if flat.size else b"").hexdigest()[:16]


def host_value(value: Any) -> np.ndarray | None:
    """A value on the host; None where this process does not have all of it, PRNG keys as their data."""
    value = known_value(value)
    if isinstance(value, jax.Array):
        if not value.is_fully_replicated and not value.is_fully_addressable:
            return None
        if is_extended_dtype(value.dtype):
            value = jax.random.key_data(value)
        if not value.is_fully_addressable:
            value = value.addressable_data(0)
    elif not isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        return None
    return np.asarray(value)


def passed_values(leaves: Sequence[Any]) -> list[str | None]:
    """Digests of arguments that must be equal in all processes; None for arrays over several, and tracers without a value."""
    values = (known_value(leaf) for leaf in leaves)
    return [None if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable else content(leaf) for leaf in values]


def preview(value: Any) -> str:
    """`0.1257, -0.1321, 0.6404, ...`: what a message shows of an argument."""
    array = host_value(value)
    if array is None:
        return "unknown"
    flat = array.reshape(-1)
    shown = [f"{x:.6g}" if np.issubdtype(flat.dtype, np.floating) else str(x) for x in flat[:4]]
    return ", ".join(shown) + (", ..." if flat.size > 4 else "")


def _type(value: Any) -> str:
    return f"{getattr(value, 'dtype', type(value).__name__)}{list(getattr(value, 'shape', ()))}"
