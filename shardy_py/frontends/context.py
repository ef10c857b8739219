"""The context in which code runs: trace, mesh and settings of JAX."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import jax

from shardy_py.frontends import _jax
from shardy_py.frontends._jax import api_boundary as api_boundary
from shardy_py.frontends._jax import context_devices as context_devices
from shardy_py.frontends._jax import coordination_client as coordination_client
from shardy_py.frontends._jax import coordination_number as coordination_number
from shardy_py.frontends._jax import current_settings as current_settings
from shardy_py.frontends._jax import devices_started as devices_started
from shardy_py.frontends._jax import gamma_draw as gamma_draw
from shardy_py.frontends._jax import hide_frames as hide_frames
from shardy_py.frontends._jax import is_committed as is_committed
from shardy_py.frontends._jax import is_extended_dtype as is_extended_dtype
from shardy_py.frontends._jax import is_lowered_ahead as is_lowered_ahead
from shardy_py.frontends._jax import is_staged as is_staged
from shardy_py.frontends._jax import is_tracing as is_tracing
from shardy_py.frontends._jax import known_value as known_value
from shardy_py.frontends._jax import local_type as local_type
from shardy_py.frontends._jax import no_context_devices as no_context_devices
from shardy_py.frontends._jax import pmul_p as pmul_p
from shardy_py.frontends._jax import settings as settings
from shardy_py.frontends._jax import trace_context as trace_context
from shardy_py.frontends._jax import transfers_enabled as transfers_enabled
from shardy_py.frontends._jax import under_settings as under_settings


def types_enabled(dtypes: Iterable[str]) -> contextlib.AbstractContextManager[Any]:
    """Enables 64-bit types if some occur while they are off, as in a function that enables them for a part of its body."""
    on = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    if on or _OF_64_BITS.isdisjoint(dtypes):
        return contextlib.nullcontext()
    return jax.enable_x64(True)


_OF_64_BITS = frozenset(("complex128", "float64", "int64", "uint64"))


def traced_dtype(struct: jax.ShapeDtypeStruct) -> Any:
    """The element type with which JAX traces a struct or an array: 32 bits in place of 64 unless `jax_enable_x64` is set."""
    return struct.dtype if is_extended_dtype(struct.dtype) else jax.dtypes.canonicalize_dtype(struct.dtype)


def explicit_sharding(tracer: Any) -> Any:
    """The sharding in a tracer's type, over Explicit axes, or None."""
    aval = jax.typeof(tracer)
    return _jax.sharding_of(aval) if _jax.has_explicit_axes(aval) else None


def device_platform(device: Any) -> str:
    """The platform that programs for a device are lowered for: `cpu`, `cuda`, `rocm`, `tpu`."""
    client = getattr(device, "client", device)
    return getattr(client, "_raw_platform", client.platform)
