"""Packs small reductions over the same devices into one, as their cost is the rendezvous, not the bytes.

Eight reductions of 4 KiB over eight CPU devices take 1.6 ms one by one and 0.7 ms as one; from 1 MiB each on, packing costs more than it
saves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from shardy_py.backends.local.jaxpr_rewriting import Atom, Rewritten, retraced, rewrite_bodies
from shardy_py.backends.local.local_rule import bind
from shardy_py.backends.local.moved_values import moving_together

SMALL = 64 << 10
"""Bytes of an operand up to which its reduction is packed with others."""

TOGETHER = 1 << 20
"""Most bytes of a packed reduction."""

_REDUCTIONS = ("pmax", "pmin", "pmul", "psum")


def pack_reductions(jaxpr: Jaxpr, sizes: Mapping[str, int], small: int = SMALL) -> Jaxpr:
    """Packs small independent reductions of the same kind, type and axes into one.

    It stands where the last of them stood; what uses the others moves behind it, and so may wait longer than before. For small operands
    the rendezvous that is saved counts for more.

    Args:
        jaxpr: The jaxpr of a region.
        sizes: The axes of the region.
        small: Bytes of an operand up to which it is packed.
    """
    return rewrite_bodies(jaxpr, lambda body: _combined(body, sizes, small))


def _combined(jaxpr: Jaxpr, sizes: Mapping[str, int], small: int) -> Jaxpr:
    if any("Ordered" in type(effect).__name__ for eqn in jaxpr.eqns for effect in eqn.effects):
        return jaxpr
    groups = [group for group in _groups(jaxpr, small) if len(group) > 1]
    return _packed(jaxpr, groups, sizes) if groups else jaxpr


def _groups(jaxpr: Jaxpr, small: int) -> list[list[JaxprEqn]]:
    """Groups of reductions to pack; no member depends on another member, directly or through other groups."""
    groups: list[list[JaxprEqn]] = []
    needs: list[int] = []  # per group a bit for each group that it needs
    alike: dict[Any, list[int]] = {}
    behind: dict[Var, int] = {}  # per variable a bit for each group that it needs

    def reached(bits: int) -> int:
        while True:
            more = bits
            for g, others in enumerate(needs):
                if bits >> g & 1:
                    more |= others
            if more == bits:
                return bits
            bits = more

    for eqn in jaxpr.eqns:
        bits = 0
        for v in eqn.invars:
            if not isinstance(v, Literal):
                bits |= behind.get(v, 0)
        key = _key(eqn, small)
        if key is not None:
            before = reached(bits)
            for g in reversed(alike.setdefault(key, [])):
                if not before >> g & 1 and sum(map(_bytes, groups[g])) + _bytes(eqn) <= TOGETHER:
                    break
            else:
                g = len(groups)
                groups.append([])
                needs.append(0)
                alike[key].append(g)
            groups[g].append(eqn)
            needs[g] |= bits
            bits = 1 << g
        if bits:
            behind.update((v, bits) for v in eqn.outvars)
    return groups


def _packed(jaxpr: Jaxpr, groups: list[list[JaxprEqn]], sizes: Mapping[str, int]) -> Jaxpr:
    group_of = {id(eqn): group for group in groups for eqn in group}
    now: dict[Var, Atom] = {}
    packed: list[JaxprEqn] = []
    late: list[JaxprEqn] = []
    missing: set[Any] = set()

    def use(v: Atom) -> Atom:
        return v if isinstance(v, Literal) else now.get(v, v)

    def ready(eqn: JaxprEqn) -> bool:
        return not any(not isinstance(v, Literal) and v in missing for v in eqn.invars)

    def run(eqn: JaxprEqn) -> bool:
        """Appends an equation, or the group that it completes; returns whether a group was completed."""
        group = group_of.get(id(eqn))
        if group is None:
            packed.append(eqn.replace(invars=[use(v) for v in eqn.invars]))
            missing.difference_update(eqn.outvars)
            return False
        arrived = seen.get(id(group), 0) + 1
        seen[id(group)] = arrived
        if arrived < len(group):
            missing.update(eqn.outvars)
            return False
        eqns, results = _as_one(group, [use(v) for e in group for v in e.invars], sizes)
        outs = [v for e in group for v in e.outvars]
        packed.extend(eqns)
        now.update(zip(outs, results, strict=True))
        missing.difference_update(outs)
        return True

    seen: dict[int, int] = {}
    for eqn in jaxpr.eqns:
        if not ready(eqn):
            late.append(eqn)
            missing.update(eqn.outvars)
            continue
        completes = run(eqn)
        while completes:
            completes, waiting, late = False, late, []
            for other in waiting:
                if ready(other):
                    completes = run(other) or completes
                else:
                    late.append(other)
    if late:
        raise AssertionError("reductions that are packed wait for each other")
    return jaxpr.replace(eqns=packed, outvars=[use(v) for v in jaxpr.outvars])


def _as_one(group: list[JaxprEqn], operands: list[Atom], sizes: Mapping[str, int]) -> Rewritten:
    first = group[0]

    def run(*xs: Any) -> list[Any]:
        flat = lax.concatenate([lax.reshape(x, (x.size,)) for x in xs], 0)
        with moving_together(group):
            (whole,) = bind(first, [flat], first.params)
        out, start = [], 0
        for x in xs:
            out.append(lax.reshape(lax.slice_in_dim(whole, start, start + x.size), x.shape))
            start += x.size
        return out

    return retraced(run, first, sizes, operands)


def _key(eqn: JaxprEqn, small: int) -> Any:
    """A key of reductions that can be packed together; None for other equations."""
    if eqn.primitive.name not in _REDUCTIONS or len(eqn.invars) != 1 or isinstance(eqn.invars[0], Literal):
        return None
    aval: Any = eqn.invars[0].aval
    axes, groups = eqn.params.get("axes"), eqn.params.get("axis_index_groups")
    if groups is not None or axes is None or not all(isinstance(axis, str) for axis in axes) or _bytes(eqn) > small:
        return None
    return eqn.primitive.name, axes, str(aval.dtype)


def _bytes(eqn: JaxprEqn) -> int:
    aval: Any = eqn.invars[0].aval
    return math.prod(aval.shape) * aval.dtype.itemsize
