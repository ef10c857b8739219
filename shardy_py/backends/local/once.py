"""What the equations of a body all compute from where a device stands, such as its place along an axis, is traced once for the body."""

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

_made: ContextVar[dict[Any, tuple[Any, Any]] | None] = ContextVar("_made", default=None)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Inside, functions that are traced `once` remember what they gave; all is forgotten at the end, as tracers do not outlive a trace.

    Every function that JAX traces by itself is decorated with it: the region's, and the bodies of loops and branches.
    """
    token = _made.set({})
    try:
        yield
    finally:
        _made.reset(token)


def once(function: Function) -> Function:
    """Makes a function give the same array again where it is called with the same arguments under the same trace.

    Args:
        function: Of positional arguments: arrays of the trace, told apart by identity, and numbers, names, types or tuples of such.
    """

    @functools.wraps(function)
    def remembered(*args: Any) -> Any:
        known = _made.get()
        if known is None:
            return function(*args)
        trace = current_trace()
        key = (function, id(trace), current_settings(), *(a if isinstance(a, _VALUES) else ("is", id(a)) for a in args))
        found = known.get(key)
        if found is None:
            found = known[key] = function(*args), (trace, args)  # with whatever is known by its id, so that it lives
        return found[0]

    return remembered  # pyright: ignore[reportReturnType]
