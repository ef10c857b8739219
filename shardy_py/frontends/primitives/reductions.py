"""Reductions and collectives: `reduce_sum` and its kin, `psum` and its kin."""

from __future__ import annotations

import functools
import math

from shardy_py.frontends.primitives.template import Builder, OpsTemplate, TemplateBuilder, Unsupported, ints
from shardy_py.ir import TensorType
from shardy_py.ir.jax_collectives import PSUMS

# The name of the reducing op and of its unit.
_REDUCERS = {
    "reduce_and": ("stablehlo.and", "all ones"),
    "reduce_max": ("stablehlo.maximum", "lowest"),
    "reduce_min": ("stablehlo.minimum", "highest"),
    "reduce_or": ("stablehlo.or", 0),
    "reduce_prod": ("stablehlo.multiply", 1),
    "reduce_sum": ("stablehlo.add", 0),
    "reduce_xor": ("stablehlo.xor", 0),
}
_PAIRS = ("stablehlo.maximum", "stablehlo.minimum")
"""Reducers that compare complex numbers as pairs, by several ops."""


def _reduce(op: str, unit: object, b: Builder) -> OpsTemplate:
    if b.out_type.dtype.startswith("complex") and op in _PAIRS:
        raise Unsupported
    start = b.constant((), b.out_type.dtype, unit)
    return b.build((b.op("stablehlo.reduce", (0, start), b.out_type, dimensions=ints(b.params["axes"]), body=op),))


_UNITS = {"stablehlo.add": 0, "stablehlo.maximum": "lowest", "stablehlo.minimum": "highest", "stablehlo.multiply": 1}


def _all_reduce(reducer: str, b: Builder) -> OpsTemplate:
    """`_allreduce_lowering`: a reduce of the positional axes, then one across devices."""
    x = 0
    positional = tuple(a for a in b.params["axes"] if isinstance(a, int))
    if positional:
        shape = tuple(n for d, n in enumerate(b.type(0).shape) if d not in positional)
        unit = b.constant((), b.type(0).dtype, _UNITS[reducer])
        x = b.op("stablehlo.reduce", (0, unit), TensorType(shape, b.type(0).dtype), dimensions=positional, body=reducer)
    if len(positional) < len(b.params["axes"]):
        x = b.op("stablehlo.all_reduce", (x,), b.type(x))
    return b.build((x,))


def _all_gather(b: Builder) -> OpsTemplate:
    axis, x = int(b.params["all_gather_dimension"]), 0
    if not b.params["tiled"]:
        shape = b.type(0).shape
        x = b.broadcast(0, (*shape[:axis], 1, *shape[axis:]), [d for d in range(len(shape) + 1) if d != axis])
    return b.build((b.op("stablehlo.all_gather", (x,), b.out_type, all_gather_dim=axis),))


def _reduce_scatter(b: Builder) -> OpsTemplate:
    axis = int(b.params["scatter_dimension"])
    shape = b.type(0).shape
    scattered = TensorType((*shape[:axis], shape[axis] // int(b.params["axis_size"]), *shape[axis + 1 :]), b.type(0).dtype)
    out = b.op("stablehlo.reduce_scatter", (0,), scattered, scatter_dimension=axis)
    if not b.params["tiled"]:
        out = b.op("stablehlo.reshape", (out,), b.out_type)
    return b.build((out,))


def _group_size(b: Builder) -> int:
    groups = b.params.get("axis_index_groups")
    if groups is not None:
        return len(groups[0])
    names = b.params["axis_name"]
    return math.prod(b.axis_sizes.get(name, 0) for name in (names if isinstance(names, tuple) else (names,)))


def _all_to_all(b: Builder) -> OpsTemplate:
    """An all-to-all; a no-op if each group is one device."""
    if _group_size(b) == 1:
        return b.build((0,))
    attributes = {"split_dimension": int(b.params["split_axis"]), "concat_dimension": int(b.params["concat_axis"])}
    return b.build((b.op("stablehlo.all_to_all", (0,), b.out_type, **attributes),))


def _one(op: str, b: Builder) -> OpsTemplate:
    return b.build((b.op(op, (0,), b.out_type),))


TEMPLATES: dict[str, TemplateBuilder] = {
    **{name: functools.partial(_reduce, op, unit) for name, (op, unit) in _REDUCERS.items()},
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), _all_gather),
    **{name: functools.partial(_all_reduce, "stablehlo.add") for name in PSUMS},
    **dict.fromkeys(("reduce_scatter", "unreduced_reduce_scatter"), _reduce_scatter),
    "all_to_all": _all_to_all,
    "pbroadcast": functools.partial(_one, "stablehlo.collective_broadcast"),
    "pmax": functools.partial(_all_reduce, "stablehlo.maximum"),
    "pmin": functools.partial(_all_reduce, "stablehlo.minimum"),
    "pmul": functools.partial(_all_reduce, "stablehlo.multiply"),
    "ppermute": functools.partial(_one, "stablehlo.collective_permute"),
}
