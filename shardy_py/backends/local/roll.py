"""Concatenations of slices of one value, as in `jnp.roll`: blocks fetch the elements they lack from the value itself."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from jax import lax
from jax import numpy as jnp
from jax.extend.core import JaxprEqn

from shardy_py.backends.local import halo
from shardy_py.backends.local.interpreter import Handler, Interpreter, runs_dry
from shardy_py.backends.local.local_rule import Equation, LocalContext, LocalRule, is_key, make_rule
from shardy_py.backends.local.sharded_value import Values
from shardy_py.frontends.importer import Scope

Array = Any
Runs = tuple[tuple[int, int], ...]
"""Start in the value and length of each run."""


@runs_dry
def sliced(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """The slice, with a note of its source if it takes contiguous elements of one dimension."""
    results = interpreter.run_rule(interpreter.analysis.equation(eqn), operands, scope)
    (value,), (whole,) = results, operands
    cuts = [d for d, (n, m) in enumerate(zip(whole.shape, value.shape, strict=True)) if n != m]
    strides = eqn.params["strides"]
    if len(cuts) == 1 and (strides is None or strides[cuts[0]] == 1) and not is_key(value.dtype) and 0 not in value.shape:
        value.slice_of = (whole, cuts[0], eqn.params["start_indices"][cuts[0]])
    return results


@runs_dry
def concatenated(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
    """The concatenation, straight from the source if all operands are slices of one value along the same dimension."""
    equation = Equation(eqn)  # one of its own, for it gets other operands
    dim = eqn.params["dimension"]
    sources = [value.slice_of for value in operands]
    first = sources[0]
    if first is None or len(operands) < 2 or any(s is None or s[0] is not first[0] or s[1] != dim for s in sources):
        return interpreter.run_rule(equation, operands, scope)
    whole = first[0]
    runs = tuple((s[2], value.shape[dim]) for s, value in zip(sources, operands, strict=True) if s is not None)
    equation.shapes, equation.dtypes = [whole.shape], [whole.dtype]
    return interpreter.run_rule(equation, [whole], scope, _local_rule(whole.shape, jnp.dtype(whole.dtype), dim, runs))


@functools.lru_cache(maxsize=4096)
def _local_rule(shape: tuple[int, ...], dtype: Any, dim: int, runs: Runs) -> LocalRule:
    rank = range(len(shape))

    def bytes_inside(num_shards: Sequence[int]) -> int:
        if num_shards[dim] == 1:
            return 0
        others = math.prod(-(-n // k) for d, (n, k) in enumerate(zip(shape, num_shards, strict=True)) if d != dim)
        return exchange_of_runs(shape[dim], runs, num_shards[dim]).cost(others * dtype.itemsize)

    def run(local: LocalContext, arrays: list[Array]) -> list[Array]:
        (x,) = arrays
        names = local.names(dim)
        if names:
            return [halo.run(x, dim, names, local, exchange_of_runs(shape[dim], runs, local.num_shards(dim)))]
        return [lax.concatenate([lax.slice_in_dim(x, start, start + length, axis=dim) for start, length in runs], dim)]

    return LocalRule(
        make_rule(shape, [rank], [rank], permutation=[dim]), run, uneven=frozenset(rank), linear=((0,),), bytes_inside=bytes_inside
    )


@functools.lru_cache(maxsize=4096)
def exchange_of_runs(size: int, runs: Runs, num_shards: int) -> halo.Exchange:
    """The exchange from blocks of a dimension to blocks of a concatenation of its runs.

    Args:
        size: The dimension's size.
        runs: The runs.
        num_shards: Number of blocks of both.

    Example:
        >>> exchange_of_runs(16, ((15, 1), (0, 15)), 4).received
        1
    """
    have = []
    at = 0
    for run, (start, length) in enumerate(runs):
        shift = at - start
        for h in halo.blocks(size, num_shards):
            low, high = max(h.start, start), min(h.stop, start + length)
            if low < high:
                have.append(halo.Have(h.base + shift, low + shift, high + shift, h.device, run))
        at += length
    block = -(-at // num_shards)
    return halo.exchange(tuple(have), tuple(t * block for t in range(num_shards)), block, -(-size // num_shards))


HANDLERS: dict[str, Handler] = {"concatenate": concatenated, "slice": sliced}
"""Primitive -> handler."""
