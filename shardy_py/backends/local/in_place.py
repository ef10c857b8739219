"""Rewrites updates that read other elements of the array they write, which XLA on CPU wrongly runs in place.

XLA computes an update where it writes it, in one loop over the updated window, and lets the result share the memory of the operand. Where
the update is computed of other elements of the operand, it may not do both. On CPU it does, if the operand is reshaped before the update or
the result behind it (openxla/xla#49176), and so reads what it has overwritten. Dimensions of one element come and go when arrays are cut,
and with collectives. A choice between the operand and the update, element by element, is written to other memory.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from shardy_py.backends.local.elementwise import LOCAL_RULES as ELEMENTWISE
from shardy_py.backends.local.jaxpr_rewriting import COLLECTIVES, Atom, Rewritten, retraced, rewrite, rewrite_bodies
from shardy_py.backends.local.local_rule import is_key
from shardy_py.frontends.loops import scan_counts

Array = Any
Defining = Mapping[Any, JaxprEqn]
"""Variable -> the equation that defines it."""


def update_out_of_place(jaxpr: Jaxpr, sizes: Mapping[str, int]) -> Jaxpr:
    """Rewrites a region so that no update that XLA runs in place reads elements that it overwrites.

    Values around the region may be reshaped, and so are results that a scan stacks. Values that a loop carries are not, so that an update
    of one is left as it is, unless it is reshaped there: otherwise every trip would write all of the array.
    """
    return rewrite_bodies(jaxpr, lambda body: _out_of_place(body, sizes, None), lambda body: _out_of_place(body, sizes, ()))


def _out_of_place(jaxpr: Jaxpr, sizes: Mapping[str, int], carried: Sequence[Var] | None) -> Jaxpr:
    """Rewrites updates of other values than a loop carries; with None those around which there are reshapes."""
    if not any(eqn.primitive.name in ("dynamic_update_slice", "scan") for eqn in jaxpr.eqns):
        return jaxpr
    defining: dict[Any, JaxprEqn] = {}
    reshaped = {v for eqn in jaxpr.eqns if _reshapes(eqn) for v in eqn.invars if not isinstance(v, Literal)}

    def replace(eqn: JaxprEqn) -> Rewritten | None:
        defining.update((v, eqn) for v in eqn.outvars)
        if eqn.primitive.name == "scan":
            body, (first, count) = eqn.params["jaxpr"], scan_counts(eqn)
            inner = _out_of_place(body.jaxpr, sizes, body.jaxpr.invars[first : first + count])
            changed = eqn.replace(params={**eqn.params, "jaxpr": body.replace(jaxpr=inner)})
            return None if inner is body.jaxpr else ([changed], eqn.outvars)
        if eqn.primitive.name != "dynamic_update_slice":
            return None
        operand: Any = eqn.invars[0]
        source = None if isinstance(operand, Literal) else defining.get(operand)
        elsewhere = carried is not None and _buffer(operand, defining, _VIEWS | {"dynamic_update_slice"}) not in carried
        if not (elsewhere or (source is not None and _reshapes(source)) or eqn.outvars[0] in reshaped):
            return None
        if isinstance(operand, Literal) or is_key(operand.aval.dtype) or not _reads_elsewhere(eqn, defining):
            return None
        return retraced(_selected, eqn, sizes)

    return rewrite(jaxpr, replace)


def _selected(x: Array, update: Array, *starts: Array) -> list[Array]:
    """An update as a choice between the operand and the update, element by element."""

    def written(old: Any, new: Any) -> Any:
        return lax.dynamic_update_slice(lax.full(x.shape, old, new.dtype), new, starts, allow_negative_indices=False)

    return [lax.select(written(False, lax.full(update.shape, True)), written(0, update), x)]


def _reads_elsewhere(eqn: JaxprEqn, defining: Defining) -> bool:
    """Whether XLA fuses an update of a window with reads of other elements of the operand than it replaces."""
    operand, update, *_ = list[Any](eqn.invars)
    buffer = _buffer(operand, defining)
    seen: set[tuple[Any, bool]] = set()
    left: list[tuple[Any, bool]] = [(update, True)]  # with whether its elements are those of the window, one by one
    while left:
        v, aligned = left.pop()
        if isinstance(v, Literal) or (v, aligned) in seen:
            continue
        seen.add((v, aligned))
        if _buffer(v, defining) is buffer:
            if aligned and update.aval.shape == operand.aval.shape:
                continue
            return True
        source = defining.get(v)
        if source is None or source.primitive.name in _STORED:
            continue
        if source.primitive.name in ("slice", "dynamic_slice") and _buffer(source.invars[0], defining) is buffer:
            if aligned and _is_window(source, eqn):
                continue
            return True
        left += [(before, aligned and _is_aligned(source, before)) for before in source.invars]
    return False


def _is_aligned(eqn: JaxprEqn, operand: Atom) -> bool:
    """Whether elements of a result are computed of the elements of an operand in the same places, dimensions of one element aside."""
    if eqn.primitive.name not in ELEMENTWISE and eqn.primitive.name not in _VIEWS - {"transpose"}:
        return False
    out: Any = eqn.outvars[0].aval
    return [n for n in operand.aval.shape if n != 1] == [n for n in out.shape if n != 1]


def _is_window(read: JaxprEqn, write: JaxprEqn) -> bool:
    """Whether a slice reads no element of the operand of an update before it is written, if both go through theirs in the same order.

    This is so where both begin at the same place along every dimension in which they have several elements.
    """
    source, operand, update = [list[Any](e.invars)[i].aval.shape for e, i in ((read, 0), (write, 0), (write, 1))]
    out: Any = read.outvars[0].aval
    if source != operand or out.shape != update or any(n != 1 for n in read.params.get("strides") or ()):
        return False
    begins = list(read.params["start_indices"]) if read.primitive.name == "slice" else list(read.invars[1:])
    pairs = zip(begins, write.invars[2:], update, strict=True)
    return all(n == 1 or _number(begin) == _number(start) for begin, start, n in pairs)


def _number(start: Any) -> Any:
    """A start as a number if it is constant, else its variable."""
    return int(start.val) if isinstance(start, Literal) else start


def _buffer(v: Atom, defining: Defining, views: Container[str] | None = None) -> Atom:
    """The value that a value is a view of."""
    while not isinstance(v, Literal) and v in defining and _is_view(defining[v], views):
        v = defining[v].invars[0]
    return v


def _is_view(eqn: JaxprEqn, views: Container[str] | None = None) -> bool:
    if eqn.primitive.name not in (views or _VIEWS) or len(eqn.outvars) != 1:
        return False
    before, after = list[Any](eqn.invars)[0].aval, list[Any](eqn.outvars)[0].aval
    return before.size == after.size


def _reshapes(eqn: JaxprEqn) -> bool:
    """Whether an equation reshapes an array, or may when it is lowered."""
    return eqn.primitive.name in COLLECTIVES or _is_view(eqn)


_VIEWS = frozenset(
    {"broadcast_in_dim", "copy", "copy_p", "expand_dims", "optimization_barrier", "reshape", "reshard", "squeeze", "transpose"}
)
"""Primitives whose result may share the memory of their operand."""

_STORED = frozenset(
    {*COLLECTIVES, "cond", "conv_general_dilated", "dot_general", "fft", "ragged_dot_general", "scan", "sort", "top_k", "while"}
)
"""Primitives whose results stand in memory of their own."""
