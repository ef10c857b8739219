"""Clears the caches of functions and programs."""

from __future__ import annotations

import sys
import weakref
from typing import Protocol


class _Cached(Protocol):
    def clear_cache(self) -> None: ...


FUNCTIONS: weakref.WeakSet[_Cached] = weakref.WeakSet()
"""All decorated functions."""


def clear_caches() -> None:
    """Forgets plans and compiled programs of all decorated functions, and all that is remembered of ops, layouts and programs.

    Answers stay the same. `jax.clear_caches()` does the same for JAX, which remembers what was traced and compiled.

    Example:
        >>> import jax, shardy_py as sp
        >>> sp.clear_caches()
        >>> jax.clear_caches()
    """
    for function in list(FUNCTIONS):
        function.clear_cache()
    for name, module in list(sys.modules.items()):
        if name.startswith("shardy_py."):
            for value in list(vars(module).values()):  # caches are functions of modules
                if getattr(value, "__module__", None) == name and hasattr(value, "cache_clear"):
                    value.cache_clear()
