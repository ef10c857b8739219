"""Passes as frozen values: the fields of a pass are its options; the pipeline parser and the help are derived from them."""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

from shardy_py.dialect import INSTALLED, Semantics
from shardy_py.ir import Program
from shardy_py.passes.propagation.log import Log

_Default = TypeVar("_Default", bound=bool | int | str | tuple[str, ...])

MODULE = "builtin.module"
FUNCTION = "func.func"

UNUSED = "accepted and not used"
CONSERVATIVE = "never propagate parts of axes, nor along dimensions that a factor does not tile"
DEDUP_FUNCTIONS_FULLY = "keep one copy of each function, whatever the shardings"
KEEP_SHARDING_RULES = "leave sharding rules attached to ops"
SHARDING_ORIGINS = "note for each axis where it comes from"
PROPAGATION_EDGES = "note each step of the propagation"


class Option(NamedTuple):
    """One option of a pass, as a pipeline text may set it; its type is the type of `default`."""

    name: str
    default: bool | int | str | tuple[str, ...]
    doc: str
    choices: tuple[str, ...] = ()

    @property
    def shown_default(self) -> str:
        """The default as it is written in a pipeline."""
        if isinstance(self.default, bool):
            return "true" if self.default else "false"
        return ",".join(self.default) if isinstance(self.default, tuple) else str(self.default)

    @property
    def expected(self) -> str:
        """A valid value in words, for an error."""
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, int):
            return "an integer"
        return " or ".join(self.choices)

    def read(self, value: str) -> bool | int | str | tuple[str, ...]:
        """Reads a value from its text. Raises ValueError if the text is no value of the option."""
        if isinstance(self.default, bool):
            if value.lower() not in _BOOLEANS:
                raise ValueError(f"{value!r} is not {self.expected}")
            return _BOOLEANS[value.lower()]
        if isinstance(self.default, int):
            return int(value)
        if isinstance(self.default, tuple):
            return tuple(value.split(",")) if value else ()
        if self.choices and value not in self.choices:
            raise ValueError(f"{value!r} is not {self.expected}")
        return value


_BOOLEANS = {"": True, "1": True, "true": True, "0": False, "false": False}


def option(default: _Default, doc: str, *, choices: tuple[str, ...] = ()) -> _Default:
    """A field that pipeline texts can set, under its name with dashes; other fields of a pass are for Python only."""
    return dataclasses.field(default=default, metadata={"doc": doc, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class Pass(ABC):
    """A pass, or a pipeline of passes, with its options; the first line of a subclass's docstring is its line in the help.

    Attributes:
        name: The name in pipelines, which is Shardy's.
        anchor: The op it runs on: `func.func` for a pass that looks at one function at a time.
    """

    name: ClassVar[str]
    anchor: ClassVar[str] = MODULE

    @abstractmethod
    def run(self, program: Program, log: Log | None = None) -> None:
        """Changes a program in place; the changes of shardings that a user may ask about go to `log`."""

    @classmethod
    def doc(cls) -> str:
        """The help text of the pass: the first line of its docstring."""
        return (cls.__doc__ or "").partition("\n")[0].removesuffix(".")

    @classmethod
    @functools.cache
    def options(cls) -> tuple[Option, ...]:
        """The options in the order of the fields."""
        fields = (field for field in dataclasses.fields(cls) if "doc" in field.metadata)
        return tuple(Option(field.name.replace("_", "-"), getattr(cls, field.name), **field.metadata) for field in fields)


class Pipeline(Pass):
    """Passes in sequence."""

    @abstractmethod
    def passes(self, semantics: Semantics = INSTALLED) -> Iterable[Pass]:
        """The passes in order, with their options, as a version of Shardy has them."""

    def run(self, program: Program, log: Log | None = None) -> None:
        """Runs the passes one after the other."""
        for each in self.passes(program.semantics):
            each.run(program, log)
