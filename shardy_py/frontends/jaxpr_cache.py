"""Results cached per jaxpr, for as long as the jaxpr lives."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, ParamSpec

from jax.extend.core import ClosedJaxpr

P = ParamSpec("P")
JaxprResult = tuple[ClosedJaxpr, Any]


def with_jaxpr(function: Callable[Concatenate[ClosedJaxpr, P], JaxprResult]) -> Callable[Concatenate[ClosedJaxpr, P], JaxprResult]:
    """Caches a function of a jaxpr and values that can be hashed, whose first result is a jaxpr, the argument itself or another one.

    An `lru_cache` would keep the jaxprs of functions that are long dropped.
    """
    results: weakref.WeakKeyDictionary[ClosedJaxpr, dict[Hashable, tuple[ClosedJaxpr | None, Any]]] = weakref.WeakKeyDictionary()

    @functools.wraps(function)
    def cached(jaxpr: ClosedJaxpr, *args: P.args, **kwargs: P.kwargs) -> JaxprResult:
        of_jaxpr = results.setdefault(jaxpr, {})
        entry = of_jaxpr.get(args)
        if entry is None:
            result, rest = function(jaxpr, *args, **kwargs)
            entry = of_jaxpr[args] = (None if result is jaxpr else result), rest  # an entry must not keep its own key
        return (jaxpr if entry[0] is None else entry[0]), entry[1]

    setattr(cached, "cache_clear", results.clear)  # noqa: B010 - as of an lru_cache
    return cached
