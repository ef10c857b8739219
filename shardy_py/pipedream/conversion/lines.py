"""Generated modules: names that are free in them, and their lines, of at most 100 characters."""

from __future__ import annotations

import builtins
import io
import keyword
import tokenize
from collections.abc import Sequence
from itertools import pairwise

WIDTH = 100

# What generated code names itself.
USED = frozenset(
    {"self", "train", "key", "layer", "nn", "jax", "jnp", "lax", "np", "layers", "recurrent", "outs", "CONSTANTS", *dir(builtins)}
)


def module(name: str, lines: Sequence[str]) -> str:
    """The text of a module, long lines broken; it is compiled, so that a mistake is found where it is made."""
    text = "\n".join(line for long in lines for line in broken(long))
    compile(text, name, "exec", dont_inherit=True)
    return text


def broken(line: str) -> list[str]:
    """A statement on as many lines as it needs, broken inside its longest brackets as formatters do; a comment is cut off.

    Example:
        >>> broken(f"y = f({'x' * 60}, {'y' * 34})")
        ['y = f(', '    xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx, yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy', ')']
    """
    if line.lstrip().startswith("#"):
        return [line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."]
    if len(line) <= WIDTH:
        return [line]
    pad = len(line) - len(line.lstrip())
    pairs: list[list[int]] = []  # of outermost brackets: the start, the commas inside, the end
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(line[pad:]).readline):
        depth -= token.string in (")", "]", "}")
        if not depth and token.string in ("(", "[", "{"):
            pairs.append([pad + token.start[1]])
        elif (depth == 1 and token.string == ",") or (not depth and token.string in (")", "]", "}")):
            pairs[-1].append(pad + token.start[1])
        depth += token.string in ("(", "[", "{")
    if not pairs:
        return [line]
    places = max(pairs, key=lambda pair: pair[-1] - pair[0])
    parts = [line[start + 1 : end].strip() for start, end in pairwise(places)]
    inner, comma = " " * (pad + 4), "," * (len(parts) > 1)
    whole = (inner + ", ".join(parts)).rstrip()
    body = [whole] if len(whole) <= WIDTH else [each for part in parts if part for each in broken(f"{inner}{part}{comma}")]
    return [line[: places[0] + 1], *body, " " * pad + line[places[-1] :]]


def call(function: str, arguments: Sequence[str]) -> str:
    """The code of a call."""
    return f"{function}({', '.join(arguments)})"


def several(parts: Sequence[str]) -> str:
    """The code of a tuple."""
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"


def returned(results: Sequence[str]) -> str:
    """The statement that returns some values."""
    flat = ", ".join(results)
    return f"return {flat}" if results and len(flat) < WIDTH - 16 else f"return {results[0] if len(results) == 1 else several(results)}"


def assigned(names: Sequence[str], value: str) -> list[str]:
    """Statements that give the results of a call their names."""
    target = ", ".join(names)
    return [f"{target} = {value}" if target else value] if len(target) <= 60 else [f"outs = {value}", f"({target}) = outs"]


def comment(text: str) -> str:
    """A comment; text of a file loses everything that is not printable ASCII."""
    return "# " + "".join(char if " " <= char <= "~" else "?" for char in " ".join(text.split()))


def is_free(name: str) -> bool:
    """Whether a variable may have this name in generated code."""
    return name.isidentifier() and name not in USED and not keyword.iskeyword(name)
