"""JAX's lowering of scans to while loops."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxprs_in_params

from shardy_py.frontends._jax import scan_counts as scan_counts
from shardy_py.frontends._jax import traced_scan
from shardy_py.frontends._jax import with_more_consts as with_more_consts


class Loop(NamedTuple):
    """The jaxpr that the lowering of a scan is made from, and the source infos of its equations outside of the scan's body."""

    jaxpr: ClosedJaxpr
    source_info_ids: frozenset[int]


def scan_as_loop(eqn: JaxprEqn) -> Loop:
    """The while loop that a scan is lowered to."""
    return _loop(tuple(eqn.params.items()), tuple(v.aval for v in eqn.invars), eqn.ctx)


@functools.lru_cache(maxsize=256)
def _loop(params: tuple[tuple[str, Any], ...], avals: tuple[Any, ...], context: Any) -> Loop:
    scan = dict(params)
    jaxpr = traced_scan(scan, avals, context)
    return Loop(jaxpr, frozenset(_source_infos(jaxpr.jaxpr, scan["jaxpr"].jaxpr)))


def _source_infos(jaxpr: Jaxpr, without: Jaxpr) -> Iterator[int]:
    for eqn in jaxpr.eqns:
        yield id(eqn.source_info)
        for inner in jaxprs_in_params(eqn.params):
            if inner is not without:
                yield from _source_infos(inner, without)
