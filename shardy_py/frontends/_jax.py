"""The private or version-dependent parts of JAX and jaxlib that MLIR modules need; `_tracing.py` has those of jaxprs."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping
from typing import Any

import jax
from jax._src import config as _config
from jax.extend.core import ClosedJaxpr
from jax.interpreters import mlir as _mlir
from jaxlib.mlir import ir as ir
from jaxlib.mlir.dialects import stablehlo as stablehlo

_LOWER_PARAMETERS = frozenset(inspect.signature(_mlir.lower_jaxpr_to_module).parameters)


def make_context(*, allow_unregistered: bool = False) -> ir.Context:
    """An MLIR context that knows the dialects JAX emits: func, stablehlo, chlo, mhlo and sdy.

    Args:
        allow_unregistered: Whether text may hold ops of dialects that jaxlib does not ship.
    """
    context = _mlir.make_ir_context()
    context.allow_unregistered_dialects = allow_unregistered
    return context


def lower_jaxpr(jaxpr: ClosedJaxpr, platform: str, *, devices: int = 2) -> ir.Module:
    """Lowers a jaxpr for a platform as `jax.jit` does, without asking for a device or a backend.

    `jax.jit(f).lower(lowering_platforms=...)` looks up the default device even where only a module is wanted.

    Args:
        jaxpr: Without effects that need tokens.
        platform: `cpu`, `cuda`, `rocm` or `tpu`.
        devices: The number of devices that lowering rules are told of; some take a shortcut where it is one.
    """
    arguments: dict[str, Any] = {
        "num_const_args": 0,
        "in_avals": jaxpr.in_avals,
        "out_avals": jaxpr.out_avals,
        "ordered_effects": [],
        "platforms": (platform,),
        "backend": None,
        "axis_context": _mlir.ShardingContext(devices),
        "donated_args": [False] * len(jaxpr.in_avals),
        "num_partitions": devices,
        "lowering_parameters": _mlir.LoweringParameters(),
    }
    known = {name: value for name, value in arguments.items() if name in _LOWER_PARAMETERS}
    return _mlir.lower_jaxpr_to_module("fragment", jaxpr, **known).module


def lowering_rules() -> Mapping[str, tuple[str, ...]]:
    """Name of every primitive that JAX can lower now -> the platforms with a rule of their own, "" for the common rule."""
    found: dict[str, set[str]] = {}
    for primitive in _mlir._lowerings:
        found.setdefault(primitive.name, set()).add("")
    for platform, rules in _mlir._platform_specific_lowerings.items():
        for primitive in rules:
            found.setdefault(primitive.name, set()).add(platform)
    return {name: tuple(sorted(found[name])) for name in sorted(found)}


def trace_context() -> Hashable:
    """Everything in JAX's configuration on which a lowering can depend, for use in the key of a cache."""
    return _config.trace_context()


def abstract_argument(aval: Any) -> jax.ShapeDtypeStruct:
    """An argument for `jax.make_jaxpr` that is traced to this abstract value, sharding left out."""
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
