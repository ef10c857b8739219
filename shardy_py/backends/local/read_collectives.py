"""Reads the collectives of a partitioned jaxpr, with their trip counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal

from shardy_py.backends.local.jaxpr_rewriting import BODIES
from shardy_py.backends.rewriting import bodies, open_jaxpr
from shardy_py.frontends.locations import locate
from shardy_py.plan.collectives import Collective
from shardy_py.plan.modules import module_path

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

Spelling = Mapping[str, str]
"""Axis of the region's mesh -> its notation in the user's mesh."""


def read_collectives(jaxpr: Jaxpr, sizes: Mapping[str, int], spelling: Spelling | None = None) -> tuple[Collective, ...]:
    """The collectives of a jaxpr, in the order in which they stand; those of loops once, with their trips.

    Args:
        jaxpr: A jaxpr with regions, or that of a region.
        sizes: The axes of the regions' mesh.
        spelling: Texts of axes that are parts of the user's; by default their names.
    """
    return tuple(_read(jaxpr, 1, sizes, spelling or {}, ""))


def _read(jaxpr: Jaxpr, trips: int | None, sizes: Mapping[str, int], spelling: Spelling, around: str) -> Iterator[Collective]:
    producers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        kind = KINDS.get(name)
        if kind is not None:
            yield from _entries(eqn, kind, trips, sizes, spelling, producers, around)
            continue
        within = trips
        if name == "scan":
            within = None if trips is None else trips * eqn.params["length"]
        elif name == "while":
            within = None
        if name in BODIES or name == "shard_map":
            for _, _, body in bodies(eqn):
                yield from _read(open_jaxpr(body), within, sizes, spelling, _module(eqn, around))


def _entries(
    eqn: JaxprEqn,
    kind: str,
    trips: int | None,
    sizes: Mapping[str, int],
    spelling: Spelling,
    producers: Mapping[Any, JaxprEqn],
    around: str,
) -> Iterator[Collective]:
    axes = _axes(eqn)
    groups = eqn.params.get("axis_index_groups")
    size = math.prod(sizes.get(axis, 1) for axis in axes) if groups is None else len(groups[0])
    if size == 1:
        return
    place = locate(eqn.source_info)
    where = f"{place.file}:{place.line}" if place is not None else ""
    module = _module(eqn, around)
    for v in eqn.invars:
        aval: Any = v.aval
        producer = _producer(v, producers)
        yield Collective(
            kind,
            spelled(axes, spelling),
            size,
            math.prod(aval.shape) * aval.dtype.itemsize,
            trips,
            str(aval.dtype),
            tuple(aval.shape),
            "" if producer is None else producer.primitive.name,
            eqn.primitive.name,
            where,
            module,
        )


def _producer(v: Any, producers: Mapping[Any, JaxprEqn]) -> JaxprEqn | None:
    """The equation that computes an operand, seen through bitcasts and barriers; None for arguments."""
    producer = None if isinstance(v, Literal) else producers.get(v)
    if producer is not None and producer.primitive.name in ("bitcast_convert_type", "optimization_barrier"):
        return _producer(producer.invars[list[Any](producer.outvars).index(v)], producers)
    return producer


def _module(eqn: JaxprEqn, around: str) -> str:
    """The module of an equation, given that of the one whose body it stands in."""
    return module_path(str(eqn.source_info.name_stack), around)


def _axes(eqn: JaxprEqn) -> tuple[str, ...]:
    named = eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]
    return tuple(axis for axis in (named if isinstance(named, tuple | list) else (named,)) if isinstance(axis, str))


def spelled(axes: Sequence[str], spelling: Spelling) -> tuple[str, ...]:
    """Axes as the user names them: parts that make up a whole axis are that axis.

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
