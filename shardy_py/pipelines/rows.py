"""The place of examples inside of a dimension: in rows of their own, or between an outer and an inner part of it.

A dimension of `outer * rows * inner` elements comes from reshapes such as (rows, time) to (rows * time). A property of a microbatch is one
of the batch as long as every equation keeps these parts apart; one that regroups them would give other numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.pipelines.errors import PipelineError, place
from shardy_py.pipelines.flatten import FlatEquation, FlatStep
from shardy_py.pipelines.jaxprs import shape_of, short


@dataclass(frozen=True)
class ExampleRows:
    """The parts of a dimension of examples: `outer` times all examples of the microbatch, with `inner` neighbours per example."""

    outer: int = 1
    inner: int = 1

    def size(self, rows: int) -> int:
        """Elements of the dimension, for a number of examples."""
        return self.outer * rows * self.inner


def follow(
    eqn: JaxprEqn, operands: Sequence[tuple[int, ExampleRows | None] | None], out_dims: Sequence[tuple[int, ...]], rows: int
) -> list[ExampleRows | None]:
    """The place of the examples in the results of an equation. Raises PipelineError if the equation regroups examples."""
    special = CUTTING.get(eqn.primitive.name)
    if special is not None and operands[0] is not None and operands[0][1] is not None and out_dims[0]:
        layouts = special(eqn, operands, out_dims, rows)
        if layouts is None:
            raise _regroups(eqn)
        return layouts
    parts = {layout for entry in operands if entry is not None and (layout := entry[1]) is not None}
    if len(parts) > 1:
        raise _regroups(eqn)
    if not parts:
        return [None] * len(out_dims)
    (layout,) = parts
    for v, dims in zip(eqn.outvars, out_dims):
        if dims and shape_of(v)[dims[0]] != layout.size(rows):
            raise _regroups(eqn)
    return [layout if dims else None for dims in out_dims]


def _regroups(eqn: JaxprEqn) -> PipelineError:
    return PipelineError(
        f"{eqn.primitive.name} regroups the examples of {short(eqn.invars[0])}", where=place(eqn),
        why="what is in one row of its result is spread over several microbatches, or the other way round",
        fix="keep the examples in a dimension of their own, the first, while they are reshaped, sliced and stacked",
    )  # fmt: skip


def _whole(a: int, b: int) -> int | None:
    return a // b if b and a % b == 0 and a >= b else None


def _reshape(eqn: JaxprEqn, operands: Any, out_dims: Any, rows: int) -> list[ExampleRows | None] | None:
    d, layout = operands[0]
    e = out_dims[0][0]
    before, after = shape_of(eqn.invars[0]), shape_of(eqn.outvars[0])
    outer = _whole(math.prod(before[:d]) * layout.outer, math.prod(after[:e]))
    inner = _whole(math.prod(before[d + 1 :]) * layout.inner, math.prod(after[e + 1 :]))
    return None if outer is None or inner is None else [ExampleRows(outer, inner)]


def _joined(eqn: JaxprEqn, operands: Any, out_dims: Any, rows: int) -> list[ExampleRows | None] | None:
    e = out_dims[0][0]
    layouts = [entry[1] for entry in operands if entry is not None and entry[1] is not None]
    if len({x.inner for x in layouts}) > 1:
        return None
    if eqn.params["dimension"] != e:
        return [layouts[0]] if len(set(layouts)) == 1 else None
    outer = _whole(shape_of(eqn.outvars[0])[e], rows * layouts[0].inner)
    return None if outer is None else [ExampleRows(outer, layouts[0].inner)]


def _cut(eqn: JaxprEqn, operands: Any, out_dims: Any, rows: int) -> list[ExampleRows | None] | None:
    """Slices and pads, and splits: whole runs of all examples may be taken away or added."""
    d, layout = operands[0]
    run = rows * layout.inner
    name = eqn.primitive.name
    start = 0
    if name == "slice":
        start = eqn.params["start_indices"][d]
        strides = eqn.params["strides"]
        if strides is not None and strides[d] != 1:
            return None
    elif name == "pad":
        low, _, between = eqn.params["padding_config"][d]
        start = int(low)
        if between:
            return None
    layouts: list[ExampleRows | None] = []
    for v, dims in zip(eqn.outvars, out_dims):
        outer = _whole(shape_of(v)[dims[0]], run) if dims else None
        if outer is None or start % run:
            return None
        layouts.append(ExampleRows(outer, layout.inner))
    return layouts


CUTTING: dict[str, Callable[[JaxprEqn, Any, Any, int], list[ExampleRows | None] | None]] = {
    "reshape": _reshape,
    "concatenate": _joined,
    "slice": _cut,
    "pad": _cut,
    "split": _cut,
}
"""Primitives that may take runs of examples apart, or put them together -> the place of the examples in their results."""


def on_one_example(two: FlatStep, three: FlatStep) -> FlatStep:
    """The flat program on one example; raises PipelineError if that on three differs in more than sizes."""
    env = _Continued()
    invars = env.variables(two.invars, three.invars)
    consts = dict(
        zip(env.variables(list(two.consts), list(three.consts)), (env.constant(a, b) for a, b in _pairs(two.consts, three.consts)))
    )
    if len(two.nodes) != len(three.nodes):
        raise _not_alike("its end")
    nodes = [FlatEquation(env.equation(a.eqn, b.eqn), a.backward, a.marker) for a, b in zip(two.nodes, three.nodes)]
    outvars = [env.atom(a, b) for a, b in zip(two.outvars, three.outvars)]
    return FlatStep(tuple(invars), tuple(outvars), tuple(nodes), consts)


def _pairs(a: dict[Var, Any], b: dict[Var, Any]) -> list[tuple[Any, Any]]:
    return list(zip(a.values(), b.values()))


def _not_alike(where: str) -> PipelineError:
    return PipelineError(
        "the function is another one on two examples than on three", where=where, why="it reads the size of its batch",
        fix="do not branch or loop on the number of examples, or use fewer microbatches",
    )  # fmt: skip


class _Continued:
    def __init__(self) -> None:
        self.one: dict[Var, Var] = {}

    def variables(self, two: Sequence[Var], three: Sequence[Var]) -> list[Var]:
        variables = []
        for a, b in zip(two, three):
            shape = tuple(_size(m, n) for m, n in zip(shape_of(a), shape_of(b)))
            self.one[a] = Var(a.aval if shape == shape_of(a) else a.aval.update(shape=shape))  # pyright: ignore[reportAttributeAccessIssue]
            variables.append(self.one[a])
        return variables

    def atom(self, a: Any, b: Any) -> Any:
        if not isinstance(a, Literal):
            return self.one[a]
        if np.array_equal(np.asarray(a.val), np.asarray(b.val), equal_nan=np.issubdtype(np.asarray(a.val).dtype, np.inexact)):
            return a
        value = 2 * np.asarray(a.val) - np.asarray(b.val)
        return Literal(value.astype(np.asarray(a.val).dtype)[()], a.aval)

    def constant(self, a: Any, b: Any) -> Any:
        """A captured array that has a row per example keeps its first."""
        if np.shape(a) == np.shape(b):
            return a
        (axis,) = (d for d, (m, n) in enumerate(zip(np.shape(a), np.shape(b))) if m != n)
        return jax.lax.slice_in_dim(jax.numpy.asarray(a), 0, _size(np.shape(a)[axis], np.shape(b)[axis]), axis=axis)

    def equation(self, a: Any, b: Any) -> Any:
        if a.primitive is not b.primitive or len(a.outvars) != len(b.outvars):
            raise _not_alike(place(a))
        params = {name: self.parameter(value, b.params[name], functools.partial(place, a)) for name, value in a.params.items()}
        invars = [self.atom(v, w) for v, w in zip(a.invars, b.invars)]
        return a.replace(invars=invars, outvars=self.variables(a.outvars, b.outvars), params=params)

    def parameter(self, a: Any, b: Any, where: Any) -> Any:
        """A parameter on one example: sizes continued, all else as it is."""
        if isinstance(a, ClosedJaxpr):
            return ClosedJaxpr(self.inner(a.jaxpr, b.jaxpr, where), [self.constant(m, n) for m, n in zip(a.consts, b.consts)])
        if isinstance(a, Jaxpr):
            return self.inner(a, b, where)
        if isinstance(a, int | np.integer) and not isinstance(a, bool) and isinstance(b, int | np.integer):
            return _size(int(a), int(b)) if a != b else a
        if type(a) is tuple and type(b) is tuple and len(a) == len(b):
            return tuple(self.parameter(m, n, where) for m, n in zip(a, b))
        if callable(a) or a is b or a == b:
            return a
        raise _not_alike(where())

    def inner(self, a: Jaxpr, b: Jaxpr, where: Any) -> Jaxpr:
        if len(a.eqns) != len(b.eqns):
            raise _not_alike(where())
        body = _Continued()
        constvars = body.variables(a.constvars, b.constvars)
        invars = body.variables(a.invars, b.invars)
        eqns = [body.equation(m, n) for m, n in zip(a.eqns, b.eqns)]
        return a.replace(constvars=constvars, invars=invars, eqns=eqns, outvars=[body.atom(m, n) for m, n in zip(a.outvars, b.outvars)])


def _size(two: int, three: int) -> int:
    return 2 * two - three
