"""The programs that the devices of a mesh run each by itself, where they exchange nothing.

A program on several devices is started on all of them at once, which a thread has to wait for; programs of one device are just handed out.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.backends.rewriting import Copier, Pins, Replacement
from shardy_py.backends.shard_map import Partitioned
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.jaxprs import bodies, open_jaxpr
from shardy_py.ir.jax_collectives import COLLECTIVE_KINDS

ASKING = frozenset({*COLLECTIVE_KINDS, "axis_index"})
"""Primitives that speak of the axes of the mesh."""


def per_device(partitioned: Partitioned) -> tuple[ClosedJaxpr, ...] | None:
    """The programs of the devices, of shards; None where devices exchange data, or the outside sees what they do besides computing results.

    Args:
        partitioned: A region, outside of any other.

    Returns:
        One program per device, in the order of the mesh; one object for all where they do the same.
    """
    region_eqn = _region(partitioned.jaxpr)
    if region_eqn is None:
        return None
    body: Jaxpr = region_eqn.params["jaxpr"]
    if any(eqn.primitive.name in COLLECTIVE_KINDS for eqn in _all(body)):
        return None
    count = len(partitioned.jaxpr.consts)
    local = body.replace(constvars=body.invars[:count], invars=body.invars[count:])
    consts = partitioned.jaxpr.consts
    if any(eqn.primitive.name == "axis_index" for eqn in _all(body)):
        places = (dict(zip(partitioned.mesh.axis_names, map(int, place))) for place in np.ndindex(*partitioned.mesh.axis_sizes))
        jaxprs = tuple(ClosedJaxpr(_at(local, place), consts) for place in places)
    else:
        jaxprs = (ClosedJaxpr(local, consts),) * partitioned.mesh.size
    if any(eqn.primitive.name in ASKING for eqn in _all(jaxprs[0].jaxpr)):
        return None
    return jaxprs


def _region(closed: ClosedJaxpr) -> JaxprEqn | None:
    """The equation of the region, if it is the only one and has no other effects; else None."""
    jaxpr = closed.jaxpr
    operands = [*jaxpr.constvars, *jaxpr.invars]
    while len(jaxpr.eqns) == 1 and not jaxpr.effects:
        (eqn,) = jaxpr.eqns
        if list(eqn.invars) != operands or list(eqn.outvars) != list(jaxpr.outvars):
            return None
        if eqn.primitive.name == "shard_map":
            return eqn
        if eqn.primitive.name != "jit" or eqn.params["jaxpr"].consts:
            return None
        jaxpr = eqn.params["jaxpr"].jaxpr
        operands = list(jaxpr.invars)
    return None


def _all(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    for eqn in jaxpr.eqns:
        yield eqn
        for _, _, body in bodies(eqn):
            yield from _all(open_jaxpr(body))


def _at(jaxpr: Jaxpr, place: dict[str, int]) -> Jaxpr:
    """The jaxpr on the device at a place of the mesh."""

    def replace(eqn: JaxprEqn, scope: Scope | None) -> Replacement | None:
        name = eqn.params["axis_name"] if eqn.primitive.name == "axis_index" else None
        return None if name not in place else lambda: [lax.full((), place[name], np.int32)]

    mesh = jax.sharding.AbstractMesh(tuple(1 for _ in place), tuple(place))
    return Copier(NamedShardings(mesh), replace).copy(jaxpr, Pins(), None).jaxpr
