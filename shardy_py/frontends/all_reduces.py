"""All-reduces that `jax.lax` has no function for."""

from __future__ import annotations

from typing import Any

from jax import lax

from shardy_py.frontends._jax import all_reduce_primitive

_PMUL = all_reduce_primitive("pmul", lax.mul_p)


def product(x: Any, axes: tuple[str, ...]) -> Any | None:
    """The products over mesh axes, by one all-reduce; None where this version of JAX offers no way to write one."""
    return None if _PMUL is None else _PMUL.bind(x, axes=axes, axis_index_groups=None)
