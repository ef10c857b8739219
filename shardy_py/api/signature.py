"""Which arguments of a call are static, donated or dynamic, and what distinguishes one call from another.

A call is laid out in slots: positional arguments in order, then keyword arguments by name. Executables take slots, all
positional, so that `jax.jit` accepts shardings for keyword arguments too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardy_py.api.errors import ArgumentTypeError, StaticArgumentError
from shardy_py.api.trees import location_of, parameter_names
from shardy_py.errors import SpecError
from shardy_py.frontends.context import traced_dtype


@dataclass(frozen=True)
class ArgumentSlots:
    """The slots of a call; `parameters` are those that are not static, empty where unknown or with `*args`."""

    positional: int
    keywords: tuple[str, ...]
    labels: tuple[str, ...]
    static: tuple[int, ...]
    donated: tuple[int, ...]
    parameters: tuple[str, ...] = ()

    @functools.cached_property
    def dynamic(self) -> tuple[int, ...]:
        """Slots of all other arguments."""
        return tuple(i for i in range(len(self.labels)) if i not in self.static)

    def call(self, fun: Callable[..., Any], slots: Sequence[Any]) -> Any:
        """Calls a function with its arguments taken from slots."""
        return fun(*slots[: self.positional], **dict(zip(self.keywords, slots[self.positional :])))

    def dynamic_arguments(self, slots: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments that are not static."""
        static = set(self.static)
        args = tuple(slots[i] for i in range(self.positional) if i not in static)
        return args, {name: slots[self.positional + k] for k, name in enumerate(self.keywords) if self.positional + k not in static}


class Arguments:
    """The treatment of a function's arguments, as `jax.jit` takes it.

    Raises SpecError if a position or a name that the function does not have.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        static_argnums: int | Sequence[int] | None,
        static_argnames: str | Iterable[str] | None,
        donate_argnums: int | Sequence[int] | None,
        donate_argnames: str | Iterable[str] | None,
    ) -> None:
        self.fun = fun
        try:
            self.signature = inspect.signature(fun)
        except (ValueError, TypeError):
            self.signature = None
        self.parameters = [] if self.signature is None else list(self.signature.parameters.values())
        self.static = self._resolved("static", _numbers(static_argnums), _names(static_argnames))
        self.donated = self._resolved("donate", _numbers(donate_argnums), _names(donate_argnames))
        self.dynamic_parameters = self._dynamic_parameters()
        self._layouts: dict[tuple[int, tuple[str, ...]], ArgumentSlots] = {}

    def _resolved(self, what: str, numbers: tuple[int, ...] | None, names: tuple[str, ...] | None) -> tuple[frozenset[int], frozenset[str]]:
        positional = [p for p in self.parameters if p.kind in _POSITIONAL]
        variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in self.parameters) or not self.parameters
        own = [p.name for p in self.parameters]
        if names is not None and self.parameters and not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self.parameters):
            for name in names:
                if name not in own:
                    raise SpecError(f"{what}_argnames names {name!r}, which is not a parameter", where=location_of(self.fun),
                                    why=f"the parameters are {', '.join(map(repr, own)) or 'none'}", fix="name one of them")  # fmt: skip
        count = len(positional)
        if numbers is not None and not variadic:
            for number in numbers:
                if not -count <= number < count:
                    raise SpecError(f"{what}_argnums names position {number}", where=location_of(self.fun),
                                    why=f"the function has {count} positional parameters", fix=f"use 0 to {count - 1}")  # fmt: skip
        if numbers is not None and names is None:
            named = [positional[n] for n in numbers if -count <= n < count]
            names = tuple(p.name for p in named if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
        elif names is not None and numbers is None:
            numbers = tuple(i for i, p in enumerate(positional) if p.name in names)
        return frozenset(numbers or ()), frozenset(names or ())

    def layout(self, positional: int, keywords: Iterable[str]) -> ArgumentSlots:
        """The layout of a call with these arguments.

        Raises ArgumentTypeError if the function takes others, StaticArgumentError if one is both static and donated.
        """
        key = (positional, tuple(sorted(keywords)))
        layout = self._layouts.get(key)
        if layout is None:
            try:
                if self.signature is not None:
                    self.signature.bind(*(None,) * positional, **dict.fromkeys(key[1]))
            except TypeError as error:
                name = getattr(self.fun, "__name__", type(self.fun).__name__)
                passed = f"{positional} positional" + (f", and {', '.join(f'{k}=' for k in key[1])}" if key[1] else "")
                raise ArgumentTypeError(
                    str(error),
                    where=f"call of {location_of(self.fun)}",
                    why=f"the function is {name}{self.signature}; the arguments are {passed}",
                    fix="pass the arguments that the function takes",
                ) from None
            labels = (*parameter_names(self.fun, positional), *key[1])
            static, donated = self._slots(self.static, *key), self._slots(self.donated, *key)
            if both := [labels[i] for i in donated if i in static]:
                raise StaticArgumentError(
                    f"{', '.join(both)} {'is' if len(both) == 1 else 'are'} both static and donated",
                    where=f"static_argnums, static_argnames, donate_argnums, donate_argnames of {location_of(self.fun)}",
                    why="a static argument is part of the cache key and has no buffer to give away",
                    fix="name it in one of them only",
                )
            layout = self._layouts[key] = ArgumentSlots(positional, key[1], labels, static, donated, self.dynamic_parameters)
        return layout

    def _dynamic_parameters(self) -> tuple[str, ...]:
        if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in self.parameters):
            return ()
        numbers, names = self.static
        named = [p for p in self.parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
        count = sum(p.kind is not inspect.Parameter.KEYWORD_ONLY for p in named)
        return tuple(
            p.name for i, p in enumerate(named) if p.name not in names and i not in numbers and not (i < count and i - count in numbers)
        )

    def _slots(self, chosen: tuple[frozenset[int], frozenset[str]], positional: int, keywords: tuple[str, ...]) -> tuple[int, ...]:
        numbers, names = chosen
        at = [i for i in range(positional) if i in numbers or i - positional in numbers]
        return (*at, *(positional + k for k, name in enumerate(keywords) if name in names))


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _numbers(argnums: int | Sequence[int] | None) -> tuple[int, ...] | None:
    return None if argnums is None else (argnums,) if isinstance(argnums, int) else tuple(argnums)


def _names(argnames: str | Iterable[str] | None) -> tuple[str, ...] | None:
    return None if argnames is None else (argnames,) if isinstance(argnames, str) else tuple(argnames)


def static_key(layout: ArgumentSlots, slots: Sequence[Any], fun: Callable[..., Any]) -> tuple[Any, ...]:
    """The static arguments, as a key; raises StaticArgumentError if one cannot be hashed."""
    values = tuple(slots[i] for i in layout.static)
    for i, value in zip(layout.static, values):
        try:
            hash(value)
        except TypeError:
            raise StaticArgumentError(
                f"static argument {layout.labels[i]!r} cannot be hashed",
                where=f"argument {layout.labels[i]!r} of {location_of(fun)}",
                why=f"a static argument is part of the cache key; {type(value).__name__} has no hash",
                fix="pass a tuple instead of a list, a frozen dataclass instead of a dict, or make the argument dynamic",
            ) from None
    return tuple((type(value), value) for value in values)


def abstract(leaf: Any, path: str, fun: Callable[..., Any], label: str) -> tuple[tuple[int, ...], Any, bool]:
    """Shape, element type and weak type of a leaf of the argument called `label`; raises ArgumentTypeError if it is not an array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return tuple(leaf.shape), traced_dtype(leaf), bool(leaf.weak_type)
    try:
        aval = jax.typeof(leaf)
    except TypeError:
        alone = "name the argument in static_argnames, or pass an array"
        fix = alone if path == label else f"convert it, np.asarray(...), or leave {path.removeprefix(label)} out of {label}"
        raise _no_array(leaf, path, fun, fix) from None
    if isinstance(leaf, jax.Ref):
        raise _no_array(leaf, path, fun, f"pass {path}[...], return its new value, and assign that to {path}[...] outside")
    return tuple(aval.shape), aval.dtype, bool(getattr(aval, "weak_type", False))


def _no_array(leaf: Any, path: str, fun: Callable[..., Any], fix: str) -> ArgumentTypeError:
    where = f"{path}, argument of {location_of(fun)}"
    if isinstance(leaf, np.ndarray):
        return ArgumentTypeError(
            f"{path} is a numpy array of {leaf.dtype}, for which JAX has no type",
            where=where,
            why="arguments that are not static are traced, which takes arrays of numbers, truth values and PRNG keys",
            fix="convert it, array.astype(...), or leave it out",
        )
    why = "arguments that are not static are traced, which takes arrays, numbers and pytrees of them"
    return ArgumentTypeError(f"{path} is a {type(leaf).__name__}, not an array", where=where, why=why, fix=fix)


def configuration() -> tuple[Any, ...]:
    """The settings of JAX that change what a function is traced to."""
    config = jax.config
    return tuple(getattr(config, name, None) for name in _SETTINGS)


def settings_by_name() -> dict[str, Any]:
    """`configuration`, with the name of each setting."""
    return dict(zip(_SETTINGS, configuration()))


_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_debug_nans",
    "jax_disable_jit",
)
