"""One equation of a program that is left to XLA, partitioned here.

A `partitioned_call` stands in its place, whose derivatives and batched forms are partitioned here as well. The parts of a region
have one size, which XLA's partitioner does not ask for: what does not divide is padded in front of the call, and the end is cut off inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from shardy_py.backends.local.local_rule import is_key
from shardy_py.backends.named_shardings import NamedShardings, num_shards
from shardy_py.backends.partitioned_call import Partitioner, partitioned_call
from shardy_py.backends.rewriting import Replacement, constraint_params
from shardy_py.dialect import TensorSharding
from shardy_py.frontends.context import types_enabled
from shardy_py.frontends.mesh_context import no_mesh

Shape = tuple[int, ...]


def in_region(
    eqn: JaxprEqn, sharding_of: Callable[[Any], TensorSharding | None], named: NamedShardings, partition: Partitioner
) -> Replacement | None:
    """The equation as a call that is partitioned here, from and to the planned shardings; None where keys would have to be padded."""
    operands = [v for v in eqn.invars if _is_passed(v)]
    avals: list[Any] = [v.aval for v in (*operands, *eqn.outvars)]
    shardings = [_closed(sharding_of(v), aval.ndim) for v, aval in zip((*operands, *eqn.outvars), avals, strict=True)]
    padded = [_divisible(aval.shape, s, named) for aval, s in zip(avals, shardings, strict=True)]
    if any(is_key(aval.dtype) and shape != aval.shape for aval, shape in zip(avals, padded, strict=True)):
        return None
    count = len(operands)
    jaxpr = _call_jaxpr(eqn, padded[:count], padded[count:])
    seeds = tuple(shardings[:count]), tuple(shardings[count:])

    def constrained(x: Any, sharding: TensorSharding) -> Any:
        return lax.sharding_constraint_p.bind(x, **constraint_params(named(sharding, x.ndim)))

    def call(*xs: Any) -> list[Any]:
        arrays = [x for x, v in zip(xs, eqn.invars, strict=True) if _is_passed(v)]
        inputs = [_resized(constrained(x, s), shape) for x, s, shape in zip(arrays, shardings, padded)]
        results = partitioned_call(jaxpr, inputs, partition, *seeds, eqn.primitive.name)
        return [constrained(_resized(y, a.shape), s) for y, a, s in zip(results, avals[count:], shardings[count:], strict=True)]

    return call


def _is_passed(v: Any) -> bool:
    """Whether the call gets an operand; those without elements are made inside, for XLA ends the process where it pads their parts."""
    return not isinstance(v, Literal) and (v.aval.size > 0 or is_key(v.aval.dtype))


def _constant(v: Any) -> Any:
    return v.val if isinstance(v, Literal) else lax.full(v.aval.shape, 0, v.aval.dtype)


def _closed(sharding: TensorSharding | None, rank: int) -> TensorSharding:
    return TensorSharding.closed("mesh", rank) if sharding is None else sharding.with_dims([dim.closed() for dim in sharding.dims[:rank]])


def _divisible(shape: Shape, sharding: TensorSharding, named: NamedShardings) -> Shape:
    placed = named(sharding, len(shape))
    return tuple(-(-n // num_shards(placed, d)) * num_shards(placed, d) for d, n in enumerate(shape))


def _call_jaxpr(eqn: JaxprEqn, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> ClosedJaxpr:
    """The jaxpr of the equation alone, from inputs to outputs of other sizes."""

    def run(*arrays: Any) -> list[Any]:
        rest = iter(arrays)
        operands = [_resized(next(rest), v.aval.shape) if _is_passed(v) else _constant(v) for v in invars]
        results = eqn.primitive.bind(*operands, **eqn.params)
        return [_resized(y, shape) for y, shape in zip(results if eqn.primitive.multiple_results else [results], outputs, strict=True)]

    invars: list[Any] = eqn.invars
    avals = [v.aval for v in invars if _is_passed(v)]
    arguments = [jax.ShapeDtypeStruct(shape, aval.dtype, weak_type=aval.weak_type) for aval, shape in zip(avals, inputs, strict=True)]
    dtypes = (str(aval.dtype) for aval in avals)
    with eqn.ctx.manager, types_enabled(dtypes), no_mesh():
        return jax.make_jaxpr(run)(*arguments)


def _resized(x: Any, shape: Shape) -> Any:
    """The array with the ends of dimensions cut off, or zeros behind them."""
    if x.shape == shape:
        return x
    if all(n >= m for n, m in zip(x.shape, shape)):
        return lax.slice(x, (0,) * x.ndim, shape)
    return lax.pad(x, np.zeros((), x.dtype), [(0, m - n, 0) for n, m in zip(x.shape, shape)])
