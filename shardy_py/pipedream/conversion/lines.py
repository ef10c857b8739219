"""Lines of code of at most 100 characters, broken the way formatters break them."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 100

# What generated code names itself.
USED = frozenset(
    {"self", "train", "key", "layer", "nn", "jax", "jnp", "lax", "np", "layers", "recurrent", "outs", "CONSTANTS", *dir(builtins)}
)


@dataclass(frozen=True)
class BreakableCode:
    """An expression that may be broken inside its brackets."""

    head: str
    parts: tuple[str | BreakableCode, ...] = ()
    tail: str = ""

    @property
    def flat(self) -> str:
        """On one line."""
        return self.head + ", ".join(part if isinstance(part, str) else part.flat for part in self.parts) + self.tail


def statement(prefix: str, code: BreakableCode | str, indent: int, end: str = "") -> list[str]:
    """A statement on as many lines as it needs.

    Example:
        >>> statement("x = ", BreakableCode("f(", ("1", "2"), ")"), 4)
        ['    x = f(1, 2)']
    """
    pad = " " * indent
    code = code if isinstance(code, BreakableCode) else BreakableCode(code)
    whole = f"{pad}{prefix}{code.flat}{end}"
    if len(whole) <= WIDTH or not code.parts:
        return [whole]
    inner = " " * (indent + 4)
    one = inner + ", ".join(part if isinstance(part, str) else part.flat for part in code.parts)
    body = [one] if len(one) <= WIDTH else [line for part in code.parts for line in statement("", part, indent + 4, ",")]
    return [f"{pad}{prefix}{code.head}", *body, f"{pad}{code.tail}{end}"]


def call(head: str, parts: Sequence[str | BreakableCode]) -> BreakableCode:
    """A call, or anything else that ends in a parenthesis."""
    return BreakableCode(f"{head}(", tuple(parts), ")")


def comment(text: str, indent: int) -> list[str]:
    """A comment; text of a file loses everything that is not printable ASCII."""
    clean = "".join(char if " " <= char <= "~" else "?" for char in " ".join(text.split()))
    room = WIDTH - indent - 2
    return [f"{' ' * indent}# {clean if len(clean) <= room else clean[: room - 3] + '...'}"]


def is_free(name: str) -> bool:
    """Whether a variable may have this name in generated code."""
    return name.isidentifier() and name not in USED and not keyword.iskeyword(name)


def checked(text: str, name: str) -> str:
    """The text of a module after a look at whether it is Python: a mistake is found where it is made."""
    compile(text, name, "exec", dont_inherit=True)
    return text
