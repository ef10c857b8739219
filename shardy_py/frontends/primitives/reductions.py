"""Reductions, sorts and windows: `reduce_sum` and its kin, `reduce`, `sort`, `reduce_window_*`, `select_and_scatter`."""

from __future__ import annotations

import functools
from typing import Any

from shardy_py.frontends.jaxprs import open_jaxpr
from shardy_py.frontends.primitives.elementwise import BINARY_OPS
from shardy_py.frontends.primitives.template import Builder, OpsTemplate, TemplateBuilder, ints, permuted

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
_WINDOW_UNITS = {"reduce_window_max": "lowest", "reduce_window_min": "highest", "reduce_window_sum": 0}
_COMPLEX_PAIRS = ("stablehlo.maximum", "stablehlo.minimum")


def _body(op: str, dtype: str) -> str:
    """The name of a reducer that is a single op; extrema of complex values are several ops."""
    return "" if dtype.startswith("complex") and op in _COMPLEX_PAIRS else op


def _reduce(op: str, unit: object, b: Builder) -> OpsTemplate:
    start = b.constant((), b.out_type.dtype, unit)
    axes = ints(b.params["axes"])
    return b.build((b.op("stablehlo.reduce", (0, start), b.out_type, dimensions=axes, body=_body(op, b.out_type.dtype)),))


def common_body(jaxpr: Any) -> str:
    """The op that a reducer applies to pairs of its arguments for each result, or "" where it does more."""
    if jaxpr is None:
        return ""
    jaxpr = open_jaxpr(jaxpr)
    arguments = {id(v) for v in jaxpr.invars}
    makers = {id(v): eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    names = set()
    for out in jaxpr.outvars:
        eqn = makers.get(id(out))
        if eqn is None or len(eqn.invars) != 2 or any(id(v) not in arguments for v in eqn.invars):
            return ""
        names.add(_body(BINARY_OPS.get(eqn.primitive.name, ""), str(out.aval.dtype)))
    return names.pop() if len(names) == 1 else ""


def _general_reduce(b: Builder) -> OpsTemplate:
    axes = ints(b.params["dimensions"])
    return b.build(b.ops("stablehlo.reduce", b.operands, b.out_types, dimensions=axes, body=common_body(b.params["jaxpr"])))


def _sort(b: Builder) -> OpsTemplate:
    return b.build(b.ops("stablehlo.sort", b.operands, b.out_types, dimension=int(b.params["dimension"])))


def _top_k(b: Builder) -> OpsTemplate:
    """`chlo.top_k` along the last dimension; any other dimension is transposed there and back."""
    rank, axis, x = b.type(0).rank, int(b.params["axis"]), 0
    if axis == rank - 1:
        return b.build(b.ops("chlo.top_k", (x,), b.out_types, k=int(b.params["k"])))
    swapped = list(range(rank))
    swapped[axis], swapped[-1] = swapped[-1], swapped[axis]
    permutation = tuple(swapped)
    x = b.op("stablehlo.transpose", (x,), permuted(b.type(x), permutation), permutation=permutation)
    parts = b.ops("chlo.top_k", (x,), [permuted(t, permutation) for t in b.out_types], k=int(b.params["k"]))
    parts = [b.typed(s, a) for s, a in zip(parts, b.out_avals)]
    back = [b.op("stablehlo.transpose", (s,), t, permutation=permutation) for s, t in zip(parts, b.out_types)]
    return b.build(back, typed=False)


def _window(b: Builder, *dilated: str) -> dict[str, Any]:
    p = b.params
    return {
        "window_dimensions": ints(p["window_dimensions"]),
        "window_strides": ints(p["window_strides"]),
        **{f"{name}_dilations": ints(p[f"{name}_dilation"] or (1,) * len(p["window_dimensions"])) for name in dilated},
        "padding": tuple(map(ints, p["padding"])),
    }


def _reduce_window(unit: object, b: Builder) -> OpsTemplate:
    start = b.constant((), b.out_type.dtype, unit)
    return b.build((b.op("stablehlo.reduce_window", (0, start), b.out_type, **_window(b, "base", "window")),))


def _general_reduce_window(b: Builder) -> OpsTemplate:
    return b.build(b.ops("stablehlo.reduce_window", b.operands, b.out_types, **_window(b, "base", "window")))


def _select_and_scatter(b: Builder) -> OpsTemplate:
    return b.build((b.op("stablehlo.select_and_scatter", b.operands, b.out_type, **_window(b)),))


TEMPLATES: dict[str, TemplateBuilder] = {
    **{name: functools.partial(_reduce, op, unit) for name, (op, unit) in _REDUCERS.items()},
    **{name: functools.partial(_reduce_window, unit) for name, unit in _WINDOW_UNITS.items()},
    "reduce": _general_reduce,
    "reduce_window": _general_reduce_window,
    "select_and_scatter": _select_and_scatter,
    "sort": _sort,
    "top_k": _top_k,
}
