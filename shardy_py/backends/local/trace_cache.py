"""Memoization of traced scalars, such as a device's index along an axis, per traced body."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

from shardy_py.frontends.context import current_settings, current_trace

Function = TypeVar("Function", bound=Callable[..., Any])

_VALUES = (int, str, tuple, np.dtype)

_results: ContextVar[dict[Any, tuple[Any, Any]] | None] = ContextVar("_made", default=None)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """A context in which functions that are traced `once` keep their results, until its end: tracers do not outlive a trace.

    Every function that JAX traces by itself is decorated with it: the region's, and the bodies of loops and branches.
    """
    token = _results.set({})
    try:
        yield
    finally:
        _results.reset(token)


def once(function: Function) -> Function:
    """Memoizes a function per trace; arrays are told apart by identity, numbers, names, types and tuples of such by value."""

    @functools.wraps(function)
    def remembered(*args: Any) -> Any:
        results = _results.get()
        if results is None:
            return function(*args)
        trace = current_trace()
        key = (function, id(trace), current_settings(), *(a if isinstance(a, _VALUES) else ("is", id(a)) for a in args))
        entry = results.get(key)
        if entry is None:
            entry = results[key] = function(*args), (trace, args)  # which keeps alive all that the key names by id
        return entry[0]

    return remembered  # pyright: ignore[reportReturnType]
