"""Kinds of layers that generated code can call, and the check of their arguments."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardy_py.pipedream.conversion.descriptions import ConversionError, Description, Word

Check = Callable[[object], bool]


@dataclass(frozen=True)
class Argument:
    """One argument of a layer; `as_name` is its name in the Flax layer, empty if that has no such argument."""

    name: str
    says: str
    check: Check
    needed: bool = False
    as_name: str | None = None

    @property
    def target(self) -> str:
        """The name under which the layer takes it."""
        return self.name if self.as_name is None else self.as_name


@dataclass(frozen=True)
class Call:
    """A layer with its arguments checked, to be written as code or run."""

    kind: LayerKind
    positional: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer: the code that is written for it, and the arguments that it takes.

    Args:
        attribute: Name of the layer in that module; empty for an op that is written in place.
        arguments: Its arguments, in the order in which they are passed by place. None takes any.
        gives: Its result: "array", "parts", "state", or a "size" or "shape", which is known while tracing and must stay so.
        bind: Makes the call from a description, in place of `arguments`.
    """

    name: str
    module: str = ""
    attribute: str = ""
    arguments: tuple[Argument, ...] | None = ()
    layer: bool = True
    fewest: int = 1
    most: int | None = 1
    training: tuple[str, ...] = ()
    gives: str = "array"
    bind: Callable[[LayerKind, Description], Call] | None = None


def is_name(text: str) -> bool:
    """Whether a text is an ASCII identifier and no keyword."""
    return bool(re.fullmatch(r"[A-Za-z_]\w*", text, re.ASCII)) and not keyword.iskeyword(text)


def bind_plain(kind: LayerKind, description: Description) -> Call:
    """The call of a kind whose description lists single arguments."""
    positional, named = _without_inplace(description)
    if kind.arguments is None:
        for value in (*positional, *named.values()):
            if isinstance(value, Word):
                raise ConversionError(f"{kind.name} is given {value}, which is no literal")
        wrong = next((name for name in named if not is_name(name)), None)
        if wrong is not None:
            raise ConversionError(f"{wrong!r} is not an identifier", where=f"arguments of {kind.name}")
        return Call(kind, positional, named)
    argument_of = {argument.name: argument for argument in kind.arguments}
    if len(positional) > len(argument_of):
        raise ConversionError(f"{kind.name} is given {len(positional)} arguments and has {len(argument_of)}")
    places = dict(zip(argument_of, positional))
    for name in named:
        if name not in argument_of or name in places:
            why = f"its arguments are {', '.join(argument_of)}" if argument_of else "it has none"
            raise ConversionError(f"{kind.name} {'is given twice' if name in argument_of else 'has no argument'} {name!r}", why=why)
    values = {name: _plain(value) for name, value in {**places, **named}.items()}
    for name, argument in argument_of.items():
        if name not in values and argument.needed:
            raise ConversionError(f"{kind.name} needs {name}")
        if name in values and not argument.check(values[name]):
            raise ConversionError(f"{name} of {kind.name} is {values[name]!r}", why=f"it is {argument.says}")
    first = tuple(values[name] for name in places if argument_of[name].target)
    return Call(kind, first, {argument_of[name].target: values[name] for name in named if argument_of[name].target})


def _without_inplace(description: Description) -> tuple[tuple[object, ...], dict[str, object]]:
    """PyTorch writes `inplace` as a word or a name; here nothing is overwritten."""
    positional = tuple(value for value in description.positional if value != Word("inplace"))
    return positional, {name: value for name, value in description.named.items() if name != "inplace"}


def _plain(value: object) -> object:
    return value.text if isinstance(value, Word) else value
