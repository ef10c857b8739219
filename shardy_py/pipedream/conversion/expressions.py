"""Code of a step."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.pipedream.conversion import lines
from shardy_py.pipedream.conversion.kinds import Call

# What stands before a name of a module in generated code, and the line that imports it; a package's own layers have a line together.
IMPORTS = {
    "flax.linen": ("nn", "import flax.linen as nn"),
    "jax.nn": ("jax.nn", "import jax"),
    "jax.numpy": ("jnp", "import jax.numpy as jnp"),
    "layers": ("layers", ""),
    "recurrent": ("recurrent", ""),
}


def prefix_of(module: str) -> str:
    """The prefix of a layer of this module in code."""
    return IMPORTS[module][0] if module in IMPORTS else module


def import_line(module: str) -> str:
    """The line that makes a module known."""
    return IMPORTS[module][1] if module in IMPORTS else f"import {module}"


def literal(value: object) -> str:
    """A checked value as code."""
    if isinstance(value, str) and repr(value)[0] == "'" and '"' not in value:
        return f'"{repr(value)[1:-1]}"'
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def modules_of(call: Call) -> tuple[str, ...]:
    """Modules that the code of a call names."""
    if call.kind.module:
        return (call.kind.module,)
    return ("jax.numpy",) if call.kind.name in ("Concat", "Transpose") else ()


def written(call: Call, name: str, operands: Sequence[str], gives: Sequence[str]) -> str:
    """The code of the value of a call."""
    kind = call.kind
    if kind.module:
        target = f"{prefix_of(kind.module)}.{kind.attribute}"
        training = [f"{word}={word}" for word in kind.training]
        arguments = [*map(literal, call.positional), *(f"{key}={literal(value)}" for key, value in call.named.items())]
        if kind.layer:
            return lines.call(lines.call(target, [*arguments, f"name={literal(name)}"]), [*operands, *training])
        return lines.call(target, [*operands, *arguments, *training])
    values = (*call.positional, *call.named.values())
    match kind.name:
        case "Add" | "Mul":
            return (" + " if kind.name == "Add" else " * ").join(operands)
        case "Concat":
            return f"jnp.concatenate([{', '.join(operands)}], axis={values[0] if values else 0})"
        case "Size":
            return f"{operands[0]}.shape{f'[{values[0]}]' if values else ''}"
        case "Transpose":
            return lines.call("jnp.swapaxes", [operands[0], *map(literal, values)])
        case "View":
            array = next(operand for operand, what in zip(operands, gives) if what not in ("size", "shape"))
            sizes = [operand if what == "size" else f"*{operand}" for operand, what in zip(operands, gives) if what in ("size", "shape")]
            return lines.call(f"{array}.reshape", _new_shape(sizes, f"{array}.shape[0]", call.positional))
        case "__getitem__":
            return f"{operands[0]}[{_key(values[0])}]"
        case other:
            raise AssertionError(other)


def _new_shape(sizes: Sequence[str], first: str, rest: Sequence[int]) -> list[str]:
    """The shape that a View gives.

    PipeDream's description leaves out the first size, which is an operand if it was computed. Where it was a constant, it is
    the first size of the array if that of another dimension is open, and open itself otherwise. A computed size further behind
    is in the description, with the value that it had when it was profiled.
    """
    if not rest:
        return [*sizes] if sizes else ["-1"]
    return [sizes[0] if sizes else first if -1 in rest else "-1", *map(str, rest)]


def _key(key: object) -> str:
    if isinstance(key, tuple):
        return ", ".join(map(_key, key)) if key else "()"
    if isinstance(key, slice):
        parts = ["" if part is None else str(part) for part in (key.start, key.stop, key.step)]
        return ":".join(parts[: 2 if not parts[2] else 3])
    return "..." if key is Ellipsis else repr(key)
