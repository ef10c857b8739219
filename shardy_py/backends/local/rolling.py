"""Slices of a value that are put together again, as `jnp.roll` does: what blocks lack is fetched from the value itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from jax import numpy as jnp
from jax.extend.core import JaxprEqn

from shardy_py.backends.local import halo, ops
from shardy_py.backends.local.form import Equation, Form, Local, is_key, make_rule
from shardy_py.backends.local.held import Held
from shardy_py.backends.local.walk import Handler, Walker, runs_dry
from shardy_py.frontends.importer import Scope

Array = Any
Runs = tuple[tuple[int, int], ...]
"""Where each run begins in the value, and how long it is."""


@runs_dry
def sliced(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """The slice; what it is one of is noted, where it takes neighbouring elements of one dimension."""
    made = walker.formed(walker.reading.equation(eqn), operands, scope)
    (held,), (whole,) = made, operands
    cuts = [d for d, (n, m) in enumerate(zip(whole.shape, held.shape, strict=True)) if n != m]
    strides = eqn.params["strides"]
    if len(cuts) == 1 and (strides is None or strides[cuts[0]] == 1) and not is_key(held.dtype) and 0 not in held.shape:
        held.cut_from = (whole, cuts[0], eqn.params["start_indices"][cuts[0]])
    return made


@runs_dry
def concatenated(walker: Walker, eqn: JaxprEqn, index: int, operands: list[Held], scope: Scope | None) -> list[Held]:
    """The operands behind each other; straight from what they are slices of, where that is one value, cut along the same dimension."""
    equation = Equation(eqn)  # one of its own, for it gets other operands
    dim = eqn.params["dimension"]
    sources = [held.cut_from for held in operands]
    first = sources[0]
    if first is None or len(operands) < 2 or any(s is None or s[0] is not first[0] or s[1] != dim for s in sources):
        return walker.formed(equation, operands, scope)
    whole = first[0]
    runs = tuple((s[2], held.shape[dim]) for s, held in zip(sources, operands, strict=True) if s is not None)
    equation.shapes, equation.dtypes = [whole.shape], [whole.dtype]
    return walker.formed(equation, [whole], scope, _form(whole.shape, jnp.dtype(whole.dtype), dim, runs))


@functools.lru_cache(maxsize=4096)
def _form(shape: tuple[int, ...], dtype: Any, dim: int, runs: Runs) -> Form:
    rank = range(len(shape))

    def moved(ways: Sequence[int]) -> int:
        if ways[dim] == 1:
            return 0
        others = math.prod(-(-n // k) for d, (n, k) in enumerate(zip(shape, ways, strict=True)) if d != dim)
        return picked(shape[dim], runs, ways[dim]).cost(others * dtype.itemsize)

    def run(local: Local, arrays: list[Array]) -> list[Array]:
        (x,) = arrays
        names = local.names(dim)
        if names:
            return [halo.run(x, dim, names, local, picked(shape[dim], runs, local.ways(dim)))]
        return [ops.concatenate([ops.slice_in_dim(x, start, start + length, axis=dim) for start, length in runs], dim)]

    return Form(make_rule(shape, [rank], [rank], permutation=[dim]), run, uneven=frozenset(rank), linear=((0,),), moved=moved)


@functools.lru_cache(maxsize=4096)
def picked(size: int, runs: Runs, ways: int) -> halo.Exchange:
    """The way from blocks of a dimension to blocks of several runs of it behind each other.

    Args:
        size: The dimension's size.
        runs: The runs.
        ways: Into how many blocks both are cut.

    Example:
        >>> picked(16, ((15, 1), (0, 15)), 4).received
        1
    """
    have = []
    at = 0
    for run, (start, length) in enumerate(runs):
        shift = at - start
        for h in halo.blocks(size, ways):
            low, high = max(h.start, start), min(h.stop, start + length)
            if low < high:
                have.append(halo.Have(h.base + shift, low + shift, high + shift, h.device, run))
        at += length
    block = -(-at // ways)
    return halo.exchange(tuple(have), tuple(t * block for t in range(ways)), block, -(-size // ways))


HANDLERS: dict[str, Handler] = {"concatenate": concatenated, "slice": sliced}
"""Primitive -> what runs it."""
