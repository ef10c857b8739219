"""A region of many arguments as a sequence of regions.

XLA takes time by the square of a region's arguments and results: wherever an equation reads an argument, Shardy's passes ask for its
sharding, and get that by making a list of the shardings of all of them. A training step of 1,000 parameters has some 6,000. So a large
region is divided where few values cross. A value that crosses leaves a region as a global array that has the parts of all devices one
behind the other, and enters the next as the same, so that nothing moves. XLA inlines the regions before it optimizes.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import PartitionSpec

from shardy_py.frontends.context import local_type
from shardy_py.frontends.mesh_context import no_mesh
from shardy_py.frontends.transforms import axes_bound, shard_map_equation, traced_locally

MOST = 128
"""Arguments and results of a region. With 64 and with 256 a step of 1,000 parameters compiles as quickly; where there are fewer, what is
asked for anew for each is no more than what a further region costs."""


def in_parts(closed: ClosedJaxpr, most: int = MOST) -> ClosedJaxpr:
    """A jaxpr whose regions have few arguments and results."""
    eqns: list[JaxprEqn] = []
    for eqn in closed.jaxpr.eqns:
        large = eqn.primitive.name == "shard_map" and len(eqn.invars) + len(eqn.outvars) > most
        eqns += _regions(eqn, most) if large else [eqn]
    return closed if len(eqns) == len(closed.jaxpr.eqns) else ClosedJaxpr(closed.jaxpr.replace(eqns=eqns), closed.consts)


@dataclass(frozen=True)
class _Global:
    """The global array that holds a local value between two regions; `stacked` along a dimension in front, one part per device."""

    var: Any
    spec: PartitionSpec
    stacked: bool = False


def _regions(region: JaxprEqn, most: int) -> list[JaxprEqn]:
    """The regions that together compute the results of one."""
    body: Jaxpr = region.params["jaxpr"]
    parts = list(_cut(body, _by_demand(body, ordered=bool(region.effects)), most))
    mesh = region.params["mesh"]
    axes = tuple(name for name in mesh.axis_names if name in region.params["newly_manual_axes"])
    sizes = {name: mesh.shape[name] for name in axes}
    count, stacked = math.prod(sizes.values()), PartitionSpec(axes)

    part_of = {v: i for i, part in enumerate(parts) for eqn in part for v in eqn.outvars}
    last_read = {v: i for i, part in enumerate(parts) for eqn in part for v in _reads(eqn)}
    outside = {v: _Global(x, spec) for v, x, spec in zip(body.invars, region.invars, region.params["in_specs"], strict=True)}
    # A result that is an argument or a constant of the program is one of the first region.
    results: dict[int, list[tuple[Any, Var, PartitionSpec]]] = {}
    for v, var, spec in zip(body.outvars, region.outvars, region.params["out_specs"], strict=True):
        results.setdefault(0 if isinstance(v, Literal) else part_of.get(v, 0), []).append((v, var, spec))

    def equation(index: int, part: Sequence[JaxprEqn]) -> JaxprEqn:
        own_results = results.get(index, [])
        own = dict.fromkeys(v for eqn in part for v in eqn.outvars)
        reads = dict.fromkeys(v for eqn in part for v in _reads(eqn))
        reads.update(dict.fromkeys(v for v, _, _ in own_results if not isinstance(v, Literal)))
        inputs = [v for v in reads if v not in own]
        before, invars = [], []
        for v in inputs:
            if outside[v].stacked:
                invars.append(Var(_parts_of(v, 1)))
                before.append(_reshape(invars[-1], v))
            else:
                invars.append(v)
        after, outvars = [], [v for v, _, _ in own_results]
        globals_out = [_Global(var, spec) for _, var, spec in own_results]
        outside.update((v, at) for v, at in zip(outvars, globals_out) if not isinstance(v, Literal) and v in own)
        for v in own:
            if last_read.get(v, index) > index and v not in outside:
                outvars.append(Var(_parts_of(v, 1)))
                after.append(_reshape(v, outvars[-1]))
                globals_out.append(_Global(Var(_parts_of(v, count)), stacked, True))
                outside[v] = globals_out[-1]
        effects = frozenset().union(*(eqn.effects for eqn in part))
        names = body.debug_info.with_unknown_names()
        inner = body.replace(invars=invars, outvars=outvars, eqns=[*before, *part, *after], effects=effects, debug_info=names)
        ins = [outside[v] for v in inputs]
        with axes_bound(sizes):
            return shard_map_equation(
                inner, mesh, axes, [x.var for x in ins], [y.var for y in globals_out], [x.spec for x in ins], [y.spec for y in globals_out]
            )

    return [equation(index, part) for index, part in enumerate(parts)]


def _by_demand(body: Jaxpr, ordered: bool) -> list[JaxprEqn]:
    """The equations of a jaxpr in the order of demand: each right before its first reader.

    A training step updates all first moments, then all second ones, then all parameters; cut there, everything would cross.
    """
    maker = {v: i for i, eqn in enumerate(body.eqns) for v in eqn.outvars}
    needs = [[maker[v] for v in _reads(eqn) if v in maker] for eqn in body.eqns]
    effectful = [i for i, eqn in enumerate(body.eqns) if eqn.effects]
    if ordered:
        for first, second in itertools.pairwise(effectful):
            needs[second].append(first)
    wanted = [maker[v] for v in body.outvars if not isinstance(v, Literal) and v in maker]
    out: list[JaxprEqn] = []
    placed = [False] * len(body.eqns)
    for root in (*wanted, *effectful):
        waiting = [root]
        while waiting:
            index = waiting[-1]
            missing = [] if placed[index] else [need for need in needs[index] if not placed[need]]
            if missing:
                waiting += reversed(missing)
                continue
            waiting.pop()
            if not placed[index]:
                placed[index] = True
                out.append(body.eqns[index])
    return out


def _cut(body: Jaxpr, eqns: Sequence[JaxprEqn], most: int) -> Iterator[list[JaxprEqn]]:
    """The equations in rows that read, and leave to others, no more than so many values; at least one row."""
    results = {v for v in body.outvars if not isinstance(v, Literal)}
    readers = Counter(v for eqn in eqns for v in _reads(eqn))
    row: list[JaxprEqn] = []
    own: set[Var] = set()
    inputs: set[Var] = set()
    outputs: set[Var] = set()
    for eqn in eqns:
        reads = _reads(eqn)
        readers.subtract(reads)
        inputs.update(v for v in reads if v not in own)
        outputs -= {v for v in reads if not readers[v] and v not in results}
        own.update(eqn.outvars)
        outputs.update(v for v in eqn.outvars if readers[v] or v in results)
        row.append(eqn)
        if len(inputs) + len(outputs) >= most:
            yield row
            row, own, inputs, outputs = [], set(), set(), set()
    if row or not eqns:
        yield row


def _reads(eqn: JaxprEqn) -> list[Var]:
    """The variables that an equation reads, each once."""
    return list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))


def _parts_of(v: Any, count: int) -> Any:
    """The type of the parts of so many devices."""
    return local_type(v.aval, (count, *v.aval.shape))


def _reshape(operand: Any, result: Any) -> JaxprEqn:
    return _like_reshape(operand.aval, tuple(result.aval.shape)).replace(invars=[operand], outvars=[result])


@functools.lru_cache(maxsize=1024)
def _like_reshape(aval: Any, shape: tuple[int, ...]) -> JaxprEqn:
    with no_mesh():
        (eqn,) = traced_locally(lambda x: [lax.reshape(x, shape)], [aval]).jaxpr.eqns
    return eqn
