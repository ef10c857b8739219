"""What a pass is called, takes and does, for the table of passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from shardy_py.passes.pipeline_text import MODULE


class Option(NamedTuple):
    """One option of a pass.

    Attributes:
        name: As it is written in a pipeline.
        default: Its value where it is not given; its type is the type of the option.
        doc: One line.
        choices: All values, where it is one of a few words.
    """

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

    def read(self, value: str) -> Any:
        """The value that a text stands for.

        Raises:
            ValueError: If it stands for none.
        """
        if isinstance(self.default, bool):
            if value.lower() in ("", "1", "true"):
                return True
            if value.lower() in ("0", "false"):
                return False
            raise ValueError("true or false")
        if isinstance(self.default, int):
            return int(value)
        if isinstance(self.default, tuple):
            return tuple(value.split(",")) if value else ()
        if self.choices and value not in self.choices:
            raise ValueError(" or ".join(self.choices))
        return value


class Pass(NamedTuple):
    """A pass or a pipeline of passes.

    Attributes:
        run: Changes a program in place; takes the options as keywords.
        doc: One line.
        options: In order.
        anchor: What it runs on: `func.func` for a pass that looks at one function at a time.
    """

    run: Callable[..., None]
    doc: str
    options: tuple[Option, ...] = ()
    anchor: str = MODULE
