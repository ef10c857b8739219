"""Exceptions of callbacks: they reach the caller, while the devices that wait for the callback's results go on.

Under `jax.jit` a `pure_callback` or `io_callback` that raises stops the device that calls back; where other devices wait for
it in a collective, XLA ends the process. Here the callback's result is zeros then, and the call raises the exception in
place of a result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from shardy_py.frontends.jaxprs import with_bodies

WITH_RESULTS = frozenset({"io_callback", "pure_callback"})
"""Primitives that call back and wait for results."""


class CallbackErrors:
    """The exceptions of one program's callbacks, assigned to the calls that they were raised in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[list[Exception]] = []

    def record(self, error: Exception) -> bool:
        """Keeps an exception for every call that is running, as a callback does not know its own; returns whether one is running."""
        with self._lock:
            for errors in self._calls:
                errors.append(error)
            return bool(self._calls)

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Runs a call to its end; raises the first exception that a callback raised."""
        errors: list[Exception] = []
        with self._lock:
            self._calls.append(errors)
        try:
            result = jax.block_until_ready(call(*args))
            jax.effects_barrier()
        finally:
            with self._lock:
                self._calls = [other for other in self._calls if other is not errors]
        if errors:
            raise errors[0]
        return result


@dataclass(frozen=True)
class _Watched:
    """A callback whose exceptions are recorded while a call waits for them; outside of such a call it raises them."""

    callback: Callable[..., Any]
    types: tuple[tuple[tuple[int, ...], Any], ...]
    errors: CallbackErrors

    def __call__(self, *args: Any) -> Any:
        try:
            return self.callback(*args)
        except Exception as error:
            if not self.errors.record(error):
                raise
            return [np.zeros(shape, dtype) for shape, dtype in self.types]


def watched(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, CallbackErrors | None]:
    """The function with callbacks whose exceptions are recorded, and where; the function itself and None if no callback has results."""
    errors = CallbackErrors()
    jaxpr = _watched(closed.jaxpr, errors, {})
    return (closed, None) if jaxpr is closed.jaxpr else (ClosedJaxpr(jaxpr, closed.consts), errors)


def _watched(jaxpr: Jaxpr, errors: CallbackErrors, copies: dict[int, Jaxpr]) -> Jaxpr:
    """A jaxpr with watched callbacks, the jaxpr itself without any; one copy of each, since JAX lowers a shared body once."""
    if id(jaxpr) not in copies:
        eqns: list[JaxprEqn] = []
        for eqn in jaxpr.eqns:
            params = with_bodies(eqn, lambda _, body: _watched(body, errors, copies))
            if eqn.primitive.name in WITH_RESULTS:
                types = tuple((aval.shape, np.dtype(aval.dtype)) for aval in eqn.params["result_avals"])
                params = {**params, "callback": _Watched(eqn.params["callback"], types, errors)}
            eqns.append(eqn if params is eqn.params else eqn.replace(params=params))
        changed = any(new is not old for new, old in zip(eqns, jaxpr.eqns, strict=True))
        copies[id(jaxpr)] = jaxpr.replace(eqns=eqns) if changed else jaxpr
    return copies[id(jaxpr)]
