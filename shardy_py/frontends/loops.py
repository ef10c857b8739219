"""JAX's lowering of scans to while loops."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxprs_in_params

from shardy_py.frontends._jax import scan_counts as scan_counts
from shardy_py.frontends._jax import trace_context, traced_scan
from shardy_py.frontends._jax import with_more_consts as with_more_consts
from shardy_py.frontends.jaxprs import open_jaxpr
from shardy_py.frontends.mesh_context import no_mesh


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


class ScanStyle(NamedTuple):
    """The style in which this version of JAX lowers scans that are not unrolled."""

    calls_body: bool
    counter: str


def scan_style() -> ScanStyle | None:
    """Read off a small scan; None where it is not the loop that `readers.scans` writes down."""
    return _scan_style(trace_context())


_LOOP = ["empty2", "broadcast_in_dim", "while"]
_LOOP_BODY = [["jit", name, "jit", "add"] for name in ("closed_call", "eval_jaxpr")]


@functools.lru_cache(maxsize=256)
def _scan_style(context: Hashable) -> ScanStyle | None:
    x = jax.ShapeDtypeStruct((2, 3), "float32")
    with no_mesh():
        jaxpr = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, y: (c + x[0], y * c), x[0], x))(x)
        (eqn,) = (e for e in jaxpr.eqns if e.primitive.name == "scan")
        loop = scan_as_loop(eqn).jaxpr
    if [e.primitive.name for e in loop.eqns] != _LOOP:
        return None
    (*_, eqn) = loop.eqns
    body = eqn.params["body_jaxpr"]
    primitives = [e.primitive.name for e in open_jaxpr(body).eqns]
    if primitives not in _LOOP_BODY or eqn.params["body_nconsts"] != 2 or eqn.params["cond_nconsts"] != 0:
        return None
    counter: Any = eqn.outvars[0].aval
    return ScanStyle(primitives[1] == "closed_call", str(counter.dtype))


def _source_infos(jaxpr: Jaxpr, without: Jaxpr) -> Iterator[int]:
    for eqn in jaxpr.eqns:
        yield id(eqn.source_info)
        for inner in jaxprs_in_params(eqn.params):
            if inner is not without:
                yield from _source_infos(inner, without)
