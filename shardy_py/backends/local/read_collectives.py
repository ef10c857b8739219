"""Reads the collectives of a partitioned jaxpr, with their trip counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from shardy_py.backends.local.jaxpr_rewriting import BODIES, axes_of
from shardy_py.backends.local.moved_values import MovedValues, RegionMovement
from shardy_py.dialect.grouping import grouped
from shardy_py.frontends.jaxprs import bodies, live_equations, open_jaxpr
from shardy_py.frontends.locations import locate
from shardy_py.ir import Value
from shardy_py.ir.jax_collectives import COLLECTIVE_KINDS
from shardy_py.plan.collectives import Collective
from shardy_py.plan.paths import is_backward, module_path
from shardy_py.plan.reshards import primitive_of

_SUMS = frozenset(("all_reduce", "reduce_scatter"))

Spelling = Mapping[str, str]
"""Axis of the region's mesh -> its notation in the user's mesh."""


_MOVING = frozenset(
    ("all_gather", "all_gather_invariant", "all_to_all", "bitcast_convert_type", "optimization_barrier", "ppermute", "reshape", "squeeze")
)
"""Primitives that only move elements: a collective behind them is of the value before."""


class _Place(NamedTuple):
    """The source line of an equation, or else of the one around it, its module, and whether it is of a backward pass."""

    where: str
    module: str
    backward: bool


def read_collectives(
    jaxpr: Jaxpr,
    sizes: Mapping[str, int],
    spelling: Spelling | None = None,
    moved: MovedValues | None = None,
    name: Callable[[Value], str] = str,
) -> tuple[Collective, ...]:
    """The collectives of a jaxpr, in the order in which they stand; those of loops once, with their trips."""
    return tuple(_CollectiveReader(sizes, spelling or {}, moved or {}, name).read(jaxpr, 1, _Place("", "", False)))


@dataclass(frozen=True)
class _CollectiveReader:
    """Reads a jaxpr; the attributes are the arguments of `read_collectives`."""

    sizes: Mapping[str, int]
    spelling: Spelling
    moved: MovedValues
    name: Callable[[Value], str]

    def read(self, jaxpr: Jaxpr, trips: int | None, around: _Place) -> Iterator[Collective]:
        """The collectives of a body."""
        producers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if name in COLLECTIVE_KINDS:
                yield from self.entries(eqn, trips, producers, around)
                continue
            if name in BODIES or name == "shard_map":
                for body, within in _runs(eqn, trips, jaxpr):
                    yield from self.read(body, within, _place(eqn, around))

    def entries(self, eqn: JaxprEqn, trips: int | None, producers: Mapping[Any, JaxprEqn], around: _Place) -> Iterator[Collective]:
        """The collectives that an equation is, one per operand."""
        kind, groups = COLLECTIVE_KINDS[eqn.primitive.name], eqn.params.get("axis_index_groups")
        axes = tuple(axis for axis in axes_of(eqn) if isinstance(axis, str))
        size = math.prod(self.sizes.get(axis, 1) for axis in axes) if groups is None else len(groups[0])
        if size == 1:
            return
        movement = self.moved.get(eqn.outvars[0], RegionMovement((), eqn.primitive.name))
        names = list(dict.fromkeys(map(self.name, movement.values)))
        for i, v in enumerate(eqn.invars):
            aval: Any = v.aval
            producer = producers.get(_source(v, producers))
            maker = "" if producer is None else producer.primitive.name
            # A sum is taken where it is first read; it is of the module that makes its parts.
            inside = _place(producer if producer is not None and kind in _SUMS else eqn, around)
            yield Collective(
                kind,
                spelled(axes, self.spelling),
                size,
                math.prod(aval.shape) * aval.dtype.itemsize,
                trips,
                str(aval.dtype),
                tuple(aval.shape),
                (names[i] if len(names) == len(eqn.invars) else ", ".join(names)) or maker,
                _primitive(movement, kind),
                _place(eqn, around).where,
                inside.module,
                inside.backward,
                movement.overlapped,
            )


def _runs(eqn: JaxprEqn, around: int | None, jaxpr: Jaxpr) -> list[tuple[Jaxpr, int | None]]:
    """The bodies that an equation of a jaxpr runs, each with its trips.

    JAX's lowering copies the body of an unrolled scan: what the unrolled trips leave over runs behind the loop, and no loop is left where
    one trip does all (see `_scan_impl` in JAX). Of the last copy XLA drops what nothing reads.
    """
    inner = [open_jaxpr(body) for _, _, body in bodies(eqn)]
    if eqn.primitive.name != "scan" or around is None:
        return [(body, None if eqn.primitive.name == "while" else around) for body in inner]
    (body,), length, unroll = inner, eqn.params["length"], eqn.params["unroll"]
    trips, rest = (0, length) if 1 < unroll >= length else divmod(length, unroll)
    runs: list[tuple[Jaxpr, int | None]] = [(body, around * trips)] * (unroll if trips else 0) + [(body, around)] * rest
    if rest:
        read = {v for other in jaxpr.eqns for v in other.invars if isinstance(v, Var)}.union(v for v in jaxpr.outvars if isinstance(v, Var))
        live = live_equations(body.eqns, [v for v, out in zip(body.outvars, eqn.outvars) if out in read])
        runs[-1] = body.replace(eqns=live), around
    return runs


def _primitive(movement: RegionMovement, kind: str) -> str:
    """The primitive that a movement is for: of a sum, unless the user takes it, the one that makes its parts, wherever it is first read."""
    maker = movement.values[0].defining_op if movement.values else None
    if kind not in _SUMS or movement.primitive in COLLECTIVE_KINDS or maker is None:
        return movement.primitive
    return primitive_of(maker)


def _source(v: Any, producers: Mapping[Any, JaxprEqn]) -> Any:
    """The variable whose elements an operand has, seen through ops that only move them; None for a literal."""
    while not isinstance(v, Literal):
        producer = producers.get(v)
        if producer is None or producer.primitive.name not in _MOVING:
            return v
        v = producer.invars[list[Any](producer.outvars).index(v)]
    return None


def _place(eqn: JaxprEqn, around: _Place) -> _Place:
    """The place of an equation, given the place of the equation whose body it stands in."""
    place, scope = locate(eqn.source_info), str(eqn.source_info.name_stack)
    return _Place(around.where if place is None else place.place, module_path(scope, around.module), around.backward or is_backward(scope))


def spelled(axes: Sequence[str], spelling: Spelling) -> tuple[str, ...]:
    """The user's names of axes; parts that make up a whole axis become that axis."""
    out: list[str] = []
    whole = grouped(spelling, lambda part: spelling[part].partition(":")[0])
    i = 0
    while i < len(axes):
        written = spelling.get(axes[i])
        if written is None:
            out.append(axes[i])
            i += 1
            continue
        axis = written.partition(":")[0]
        parts = whole[axis]
        if list(axes[i : i + len(parts)]) == parts:
            out.append(axis)
            i += len(parts)
        else:
            out.append(written)
            i += 1
    return tuple(out)
