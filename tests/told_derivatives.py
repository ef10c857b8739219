"""Functions whose derivatives are told to be others than they are, so that it shows whether the rules are kept."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_vjp
def seven(x: Any) -> Any:
    """Its derivative is told to be seven times too large."""
    return jnp.sin(x)


seven.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cosine, ct: (7 * cosine * ct,))


@jax.custom_jvp
def eleven(x: Any) -> Any:
    return jnp.sin(x)


eleven.defjvp(lambda primals, tangents: (eleven(primals[0]), 11 * jnp.cos(primals[0]) * tangents[0]))
