"""Assertions on the sharding of one value."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import keystr

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import format_axis, format_type
from shardy_py.errors import ShardyError
from shardy_py.facade import Plan
from shardy_py.ir import TensorType
from shardy_py.plan.values import PlannedValue, typed

_ANY = object()
_NEAR = 5

Dims = list[Any]
"""Per dimension the names of its axes, or `_ANY`."""


def assert_sharding(subject: Any, path: str, spec: Any) -> None:
    """Asserts how one value of a plan, or one array, is sharded.

    Args:
        subject: A plan, an array, or a pytree of arrays or of anything else that has a `sharding`.
        path: Of a value of the plan, `params['w']`, `result[0]`, or `%12`; or of an array in the pytree, `['w']`, the empty text for the
            array itself.
        spec: A `PartitionSpec` (`P()` is replicated, `P.UNCONSTRAINED` stands for anything), a `NamedSharding`, a
            `shardy_py.TensorSharding`, None for replicated, or the text that plans print, `float32[8@data,16]`.

    Raises:
        AssertionError: It is sharded otherwise; for a value of a plan the message says why.
        ShardyError: There is no such value, or the spec is not for its rank.
        TypeError: The subject has no sharding, or the spec is no such thing.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> x = jax.ShapeDtypeStruct((8, 16), jnp.float32)
        >>> plan = sp.auto_shard(jnp.sin, mesh={"data": 4, "model": 2}, in_shardings=jax.P("data")).plan(x)
        >>> assert_sharding(plan, "result", jax.P("data"))
    """
    __tracebackhide__ = True
    if isinstance(subject, Plan):
        value = _value(subject, path)
        sharding, shape, dtype, name = value.sharding, value.shape, value.dtype, path
    else:
        array = _array(subject, path)
        sharding, shape, dtype, name = array.sharding, tuple(array.shape), str(array.dtype), path or "the array"
    actual_dims = _dims_of(sharding, len(shape), path)
    actual = typed(TensorType(shape, dtype), sharding) if isinstance(subject, Plan) else _text(dtype, shape, actual_dims)
    if isinstance(spec, str):
        expected, fits = spec, spec.replace(" ", "") == actual
    else:
        expected_dims = _dims_of(spec, len(shape), path)
        expected, fits = _text(dtype, shape, expected_dims), _fit(actual_dims, expected_dims)
    if not fits:
        is_plan = isinstance(subject, Plan)
        notes = [f"  in the plan of {subject.name}", *_why(subject, path)] if is_plan else [f"  its sharding is {sharding}"]
        raise AssertionError("\n".join((f"{name} is {actual}, expected {expected}", *notes)))


def _value(plan: Plan, path: str) -> PlannedValue:
    for value in plan.values:
        if value.path == path:
            return value
    paths = [value.path for value in plan.values if value.kind != "intermediate"]
    near = get_close_matches(path, paths, _NEAR, 0.5) or paths[:_NEAR]
    more = ", ..." if len(paths) > len(near) else ""
    raise ShardyError(f"the plan of {plan.name} has no value {path}", fix=f"one of {', '.join(near)}{more}")


def _array(tree: Any, path: str) -> Any:
    leaves = {keystr(key): leaf for key, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}
    if path not in leaves:
        raise ShardyError(f"the tree has no leaf {path!r}", fix=f"one of {', '.join(map(repr, list(leaves)[:_NEAR]))}")
    leaf = leaves[path]
    if getattr(leaf, "sharding", None) is None:
        raise TypeError(f"{path or 'the subject'} is a {type(leaf).__name__}, which has no sharding; pass a plan or arrays")
    return leaf


def _dims_of(spec: Any, rank: int, path: str = "") -> Dims:
    """The axes of each dimension."""
    if spec is None:
        return [()] * rank
    if isinstance(spec, TensorSharding):
        return [tuple(map(format_axis, dim.axes)) for dim in spec.dims[:rank]]
    if isinstance(spec, NamedSharding):
        spec = spec.spec
    if isinstance(spec, jax.sharding.Sharding):
        if spec.is_fully_replicated:
            return [()] * rank
        raise TypeError(f"{path or 'the array'} has a {type(spec).__name__}, whose axes have no names")
    if not isinstance(spec, PartitionSpec):
        raise TypeError(f"expected a PartitionSpec, a sharding, None, or text like 'float32[8@data,16]', got {spec!r}")
    if len(spec) > rank:
        raise ShardyError(f"{spec} is for {len(spec)} dimensions, {path or 'the array'} has {rank}")
    entries: Sequence[Any] = (*spec, *(None,) * (rank - len(spec)))
    return [
        _ANY if entry is PartitionSpec.UNCONSTRAINED else () if entry is None else tuple(entry) if isinstance(entry, tuple) else (entry,)
        for entry in entries
    ]


def _fit(actual_dims: Dims, expected_dims: Dims) -> bool:
    return len(actual_dims) == len(expected_dims) and all(b is _ANY or a == b for a, b in zip(actual_dims, expected_dims))


def _text(dtype: str, shape: Sequence[int], dims: Dims) -> str:
    if not any(dim is _ANY or dim for dim in dims):
        return format_type(dtype, shape, None)
    shown = [f"{n}" + ("@?" if d is _ANY else f"@{d[0]}" if len(d) == 1 else f"@({','.join(d)})" if d else "") for n, d in zip(shape, dims)]
    return f"{dtype}[{','.join(shown)}]"


def _why(plan: Plan, path: str) -> list[str]:
    """The explanation of the plan; nothing where it has kept no reasons."""
    if not plan.propagation.recorded:
        return []
    return [f"  {line}" for line in str(plan.explain(_value(plan, path))).splitlines()]
