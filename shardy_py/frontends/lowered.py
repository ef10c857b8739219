"""Lowers single JAX equations through JAX's own lowering rules, for primitives without a native template."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive

from shardy_py.frontends._jax import abstract_argument, lower_jaxpr, trace_context
from shardy_py.frontends.legalize_chlo import legalize_chlo
from shardy_py.frontends.mlir import from_mlir
from shardy_py.ir import Program

_CACHE: OrderedDict[Hashable, Program] = OrderedDict()
_CACHE_SIZE = 1024


def lower_fragment(primitive: Primitive, params: Mapping[str, Any], avals: Sequence[Any], platform: str = "cpu") -> Program:
    """The ops that JAX lowers one equation to, CHLO ops legalised as XLA does before it partitions.

    Arrays of PRNG keys have their physical type in the result. No device or backend is asked for.

    Args:
        primitive: The primitive of the equation.
        params: Its parameters; they need not be hashable.
        avals: Abstract values of the operands.
        platform: The platform to lower for.

    Returns:
        A program whose `main` takes the operands and returns the results; other functions are those JAX calls out to.
        It is memoised and must not be changed.

    Raises:
        NotImplementedError: If JAX has no lowering rule for the platform.

    Example:
        >>> from jax.extend.core.primitives import erfc_p
        >>> [op.name for op in lower_fragment(erfc_p, {}, [jax.core.ShapedArray((8,), np.dtype("float32"))]).walk()]
        ['chlo.erfc', 'func.return']
    """
    key = _key(primitive, params, avals, platform)
    found = _CACHE.get(key) if key is not None else None
    if found is not None:
        return found

    def bind(*args: Any) -> Any:
        return primitive.bind(*args, **params)

    jaxpr = jax.make_jaxpr(bind)(*map(abstract_argument, avals))
    program = from_mlir(lower_jaxpr(jaxpr, platform))
    legalize_chlo(program)
    if key is not None:
        _CACHE[key] = program
        if len(_CACHE) > _CACHE_SIZE:
            _CACHE.popitem(last=False)
    return program


def _key(primitive: Primitive, params: Mapping[str, Any], avals: Sequence[Any], platform: str) -> Hashable | None:
    types = tuple((aval.shape, aval.dtype, getattr(aval, "weak_type", False)) for aval in avals)
    key = (primitive, platform, trace_context(), types, _frozen(params))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ("mapping", *((name, _frozen(value[name])) for name in sorted(value, key=str)))
    if isinstance(value, list):
        return ("list", *map(_frozen, value))
    if isinstance(value, tuple):
        return (type(value), *map(_frozen, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(_frozen, value))
    if isinstance(value, np.ndarray):
        return (np.ndarray, value.shape, value.dtype.str, value.tobytes())
    return (type(value), value) if isinstance(value, bool | int | float) else value
