"""Reads the collectives of a partitioned jaxpr, with their trip counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, JaxprEqn, Literal

from shardy_py.backends.local.jaxpr_rewriting import BODIES
from shardy_py.frontends.jaxprs import bodies, open_jaxpr
from shardy_py.frontends.locations import locate
from shardy_py.frontends.loops import scan_counts
from shardy_py.plan.collectives import Collective
from shardy_py.plan.modules import is_backward, module_path

KINDS: Mapping[str, str] = {
    "all_gather": "all_gather",
    "all_gather_invariant": "all_gather",
    "all_to_all": "all_to_all",
    "pmax": "all_reduce",
    "pmin": "all_reduce",
    "pmul": "all_reduce",
    "ppermute": "collective_permute",
    "psum": "all_reduce",
    "psum_invariant": "all_reduce",
    "reduce_scatter": "reduce_scatter",
}
"""Primitive -> kind of collective."""

_SUMS = frozenset(("all_reduce", "reduce_scatter"))

Spelling = Mapping[str, str]
"""Axis of the region's mesh -> its notation in the user's mesh."""


_MOVING = frozenset(
    ("all_gather", "all_gather_invariant", "all_to_all", "bitcast_convert_type", "optimization_barrier", "ppermute", "reshape", "squeeze")
)
"""Primitives that only move elements: a collective behind them is of the value before."""


class _Place(NamedTuple):
    """The module of an equation, and whether it is of a backward pass."""

    module: str
    backward: bool


def read_collectives(
    jaxpr: Jaxpr, sizes: Mapping[str, int], spelling: Spelling | None = None, names: Sequence[str] = ()
) -> tuple[Collective, ...]:
    """The collectives of a jaxpr, in the order in which they stand; those of loops once, with their trips.

    Args:
        jaxpr: A jaxpr with regions, or that of a region.
        sizes: The axes of the regions' mesh.
        spelling: Texts of axes that are parts of the user's; by default their names.
        names: Paths of the arguments of the jaxpr; by default they have none.
    """
    paths = dict(zip(jaxpr.invars, names)) if names else {}
    return tuple(_read(jaxpr, 1, sizes, spelling or {}, _Place("", False), paths))


def _read(
    jaxpr: Jaxpr, trips: int | None, sizes: Mapping[str, int], spelling: Spelling, around: _Place, paths: Mapping[Any, str]
) -> Iterator[Collective]:
    producers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        kind = KINDS.get(name)
        if kind is not None:
            yield from _entries(eqn, kind, trips, sizes, spelling, producers, around, paths)
            continue
        within = trips
        if name == "scan":
            within = None if trips is None else trips * eqn.params["length"]
        elif name == "while":
            within = None
        if name in BODIES or name == "shard_map":
            for _, _, body in bodies(eqn):
                inner = open_jaxpr(body)
                yield from _read(inner, within, sizes, spelling, _place(eqn, around), _paths_inside(eqn, inner, producers, paths))


def _entries(
    eqn: JaxprEqn,
    kind: str,
    trips: int | None,
    sizes: Mapping[str, int],
    spelling: Spelling,
    producers: Mapping[Any, JaxprEqn],
    around: _Place,
    paths: Mapping[Any, str],
) -> Iterator[Collective]:
    axes = _axes(eqn)
    groups = eqn.params.get("axis_index_groups")
    size = math.prod(sizes.get(axis, 1) for axis in axes) if groups is None else len(groups[0])
    if size == 1:
        return
    place = locate(eqn.source_info)
    where = f"{place.file}:{place.line}" if place is not None else ""
    for v in eqn.invars:
        aval: Any = v.aval
        source = _source(v, producers)
        producer = producers.get(source)
        # A sum is taken where it is first read; it is of the module that makes its parts.
        inside = _place(producer if producer is not None and kind in _SUMS else eqn, around)
        yield Collective(
            kind,
            spelled(axes, spelling),
            size,
            math.prod(aval.shape) * aval.dtype.itemsize,
            trips,
            str(aval.dtype),
            tuple(aval.shape),
            paths.get(source, "") if producer is None else producer.primitive.name,
            eqn.primitive.name,
            where,
            *inside,
        )


def _source(v: Any, producers: Mapping[Any, JaxprEqn]) -> Any:
    """The variable whose elements an operand has, seen through ops that only move them; None for a literal."""
    while not isinstance(v, Literal):
        producer = producers.get(v)
        if producer is None or producer.primitive.name not in _MOVING:
            return v
        v = producer.invars[list[Any](producer.outvars).index(v)]
    return None


def _paths_inside(eqn: JaxprEqn, body: Jaxpr, producers: Mapping[Any, JaxprEqn], paths: Mapping[Any, str]) -> dict[Any, str]:
    """The paths of a body's arguments: of all where the equation hands over its operands one by one, of a scan's but for carries."""
    operands = eqn.invars[-len(body.invars) :] if eqn.primitive.name == "cond" else eqn.invars
    if not paths or eqn.primitive.name == "while" or len(operands) != len(body.invars):
        return {}
    carried = range(0)
    if eqn.primitive.name == "scan":
        first, count = scan_counts(eqn)
        carried = range(first, first + count)
    sources = [(inner, _source(v, producers)) for i, (v, inner) in enumerate(zip(operands, body.invars)) if i not in carried]
    return {inner: paths[source] for inner, source in sources if source in paths}


def _place(eqn: JaxprEqn, around: _Place) -> _Place:
    """The place of an equation, given that of the one whose body it stands in."""
    scope = str(eqn.source_info.name_stack)
    return _Place(module_path(scope, around.module), around.backward or is_backward(scope))


def _axes(eqn: JaxprEqn) -> tuple[str, ...]:
    named = eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]
    return tuple(axis for axis in (named if isinstance(named, tuple | list) else (named,)) if isinstance(axis, str))


def spelled(axes: Sequence[str], spelling: Spelling) -> tuple[str, ...]:
    """The user's names of axes; parts that make up a whole axis become that axis.

    Args:
        axes: Axes of the region's mesh.
        spelling: Texts of parts, `x:(1)2`.
    """
    out: list[str] = []
    whole: dict[str, list[str]] = {}
    for part, written in spelling.items():
        whole.setdefault(written.partition(":")[0], []).append(part)
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
