"""Equations whose results may be recomputed instead of kept, and the time it takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal, Var

from shardy_py.cost.hardware import Hardware
from shardy_py.pipelines.flat import Node
from shardy_py.pipelines.jaxprs import bytes_of, dtype_of, named_dimensions, shape_of

MOVES = frozenset(
    {
        "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "slice", "split", "concatenate", "stack", "unstack", "pad",
        "rev", "iota", "copy", "copy_p", "stop_gradient", "sharding_constraint", "reshard",
    }
)  # fmt: skip
"""Primitives that compute nothing; XLA reads through them."""

POINTWISE = frozenset(
    {
        "abs", "add", "add_any", "and", "bitcast_convert_type", "ceil", "clamp", "complex", "conj", "convert_element_type", "div", "eq",
        "eq_to", "floor", "ge", "gt", "imag", "integer_pow", "is_finite", "le", "le_to", "lt", "lt_to", "max", "min", "mul", "ne", "neg",
        "nextafter", "not", "one_minus_square", "or", "real", "reduce_precision", "rem", "round", "select_n", "shift_left",
        "shift_right_arithmetic", "shift_right_logical", "sign", "square", "sub", "xor",
    }
)  # fmt: skip
"""Primitives of about one operation per element."""

TRANSCENDENTAL = frozenset(
    {
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
        "log", "log1p", "logistic", "pow", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
    }
)  # fmt: skip
"""Primitives of as many operations per element as the hardware says."""

REDUCTIONS = frozenset(
    {"argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum", "reduce_xor"}
)
"""Primitives that read all of their operand before anyone reads their result."""

CHEAP = MOVES | POINTWISE | TRANSCENDENTAL | REDUCTIONS
"""Primitives that may be recomputed."""

ALONG = {"concatenate": "dimension", "rev": "dimensions"}
"""Primitives that move elements along dimensions -> the parameter that names these."""

Axes = Callable[[Var], tuple[tuple[str, ...], ...]]
"""A value to the mesh axes that cut each of its dimensions."""


EXACT = frozenset({"eq", "eq_to", "ne"})
"""Primitives that ask whether values are equal to the last bit."""

CHOICES = frozenset({"max", "min", "reduce_max", "reduce_min", "clamp", "select_n"})
"""Primitives whose result is one of their operands to the last bit."""


def is_cheap(eqn: JaxprEqn) -> bool:
    """Whether an equation may be recomputed."""
    return eqn.primitive.name in CHEAP and not eqn.effects


def bound(nodes: Iterable[Node]) -> list[tuple[Var, Var]]:
    """Pairs of values: wherever the first is recomputed, the second must be recomputed too.

    The derivative of a maximum asks which operand is equal to it. Another program rounds differently: a recomputed operand
    is not equal to the maximum of the original, and the derivative would be lost.
    """
    maker: dict[Var, JaxprEqn] = {}

    def root(v: Any) -> Any:
        """The source of a value, through ops that only move data."""
        while isinstance(v, Var) and v in maker and maker[v].primitive.name in MOVES and len(maker[v].invars) == 1:
            v = maker[v].invars[0]
        return v

    pairs: dict[tuple[Var, Var], None] = {}
    for node in nodes:
        eqn = node.eqn
        maker.update(dict.fromkeys(eqn.outvars, eqn))
        if eqn.primitive.name in EXACT and jax.numpy.issubdtype(dtype_of(eqn.invars[0]), jax.numpy.inexact):
            pair = tuple(root(v) for v in eqn.invars)
            if any(isinstance(v, Literal) for v in pair):
                continue
            chosen = [v in maker and maker[v].primitive.name in CHOICES for v in pair]
            for (a, b), is_chosen in zip((pair[::-1], pair), chosen):
                if is_chosen or not any(chosen):
                    pairs[a, b] = None
    return list(pairs)


def recompute_seconds(eqn: JaxprEqn, hardware: Hardware) -> float:
    """Seconds of recomputing a cheap equation, where XLA fuses it with its readers.

    It computes and moves nothing: its operands are read in place of its result, and their bytes count where they are kept. A reduction
    ends before its readers start, so that its operand is read once more.
    """
    name = eqn.primitive.name
    if name in MOVES:
        return 0.0
    largest = max((_elements(v) for v in (*eqn.invars, *eqn.outvars)), default=0)
    seconds = largest * (hardware.transcendental_operations if name in TRANSCENDENTAL else 1.0) / hardware.vector_flops
    if name in REDUCTIONS:
        return max(seconds, sum(bytes_of(v) for v in eqn.invars if not isinstance(v, Literal)) / hardware.hbm_bandwidth)
    return seconds


def communicates(eqn: JaxprEqn, axes: Axes) -> bool:
    """Whether devices have to communicate to compute a cheap equation: it changes a dimension that is sharded, or shards it otherwise."""
    results = [axes(v) for v in eqn.outvars]
    for k, v in enumerate(eqn.invars):
        if isinstance(v, Literal):
            continue
        for cut, to in zip(axes(v), _dimensions(eqn, k)):
            if cut and (to is None or any(axes_of_result[to][: len(cut)] != cut for axes_of_result in results)):
                return True
    return False


def _elements(v: Any) -> int:
    return math.prod(shape_of(v))


def _dimensions(eqn: JaxprEqn, operand: int) -> list[int | None]:
    """For every dimension of an operand the dimension of the results that it is; None where elements of different places meet or move."""
    name, params = eqn.primitive.name, eqn.params
    before, after = shape_of(eqn.invars[operand]), shape_of(eqn.outvars[0])
    if name == "broadcast_in_dim":
        return list(params["broadcast_dimensions"])
    if name == "transpose":
        return [params["permutation"].index(d) for d in range(len(before))]
    if name in ("reshape", "squeeze", "expand_dims", "bitcast_convert_type"):
        return _same_place(before, after)
    if name in REDUCTIONS or name == "unstack":
        reduced = params["axes"] if name in REDUCTIONS else (params["axis"],)
        number = itertools.count()
        return [None if d in reduced else next(number) for d in range(len(before))]
    if name == "stack":
        return [d + (d >= params["axis"]) for d in range(len(before))]
    lost: set[int] = set()
    if name in ALONG:
        lost = named_dimensions(eqn, ALONG[name])
    elif name == "pad":
        lost = {d for d, padding in enumerate(params["padding_config"]) if any(padding)}
    return [d if d not in lost and d < len(after) and before[d] == after[d] else None for d in range(len(before))]


def _same_place(before: tuple[int, ...], after: tuple[int, ...]) -> list[int | None]:
    """For each dimension of the operand of a reshape, the dimension of the result that begins at the same place, or None."""
    starts: dict[int, int] = {}
    place = 1
    for d, size in enumerate(after):
        if size > 1:
            starts[place] = d
        place *= size
    dimensions: list[int | None] = []
    place = 1
    for size in before:
        dimensions.append(starts.get(place) if size > 1 else None)
        place *= size
    return dimensions
