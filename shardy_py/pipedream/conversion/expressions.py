"""Code of a step, and the functions of ops that are written in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardy_py.pipedream.conversion import lines
from shardy_py.pipedream.conversion.kinds import Call
from shardy_py.pipedream.conversion.lines import BreakableCode

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


def written(
    call: Call, name: str, operands: Sequence[str], gives: Sequence[str], states: int = 0
) -> tuple[BreakableCode | None, BreakableCode]:
    """The code that makes the layer, if the call is of one, and the code of the value, in which `{}` stands for the layer."""
    kind = call.kind
    if kind.module:
        target = f"{prefix_of(kind.module)}.{kind.attribute}"
        training = [f"{word}={word}" for word in kind.training]
        arguments = [*map(literal, call.positional), *(f"{key}={literal(value)}" for key, value in call.named.items())]
        if kind.layer:
            return lines.call(target, [*arguments, f"name={literal(name)}"]), lines.call("{}", [*operands, *training])
        arguments = [f"{key}={literal(value)}" for key, value in named_values(call).items()] if kind.arguments is not None else arguments
        return None, lines.call(target, [*operands, *arguments, *training])
    values: Sequence[Any] = (*call.positional, *call.named.values())
    match kind.name:
        case "Add" | "Mul":
            return None, BreakableCode((" + " if kind.name == "Add" else " * ").join(operands))
        case "Concat":
            return None, lines.call("jnp.concatenate", [BreakableCode("[", tuple(operands), "]"), f"axis={values[0] if values else 0}"])
        case "Size":
            return None, BreakableCode(f"{operands[0]}.shape{f'[{values[0]}]' if values else ''}")
        case "Transpose":
            return None, lines.call("jnp.swapaxes", [operands[0], *map(literal, values)])
        case "View":
            array, sizes = _split(operands, gives)
            sizes = [size if what == "size" else f"*{size}" for size, what in sizes]
            return None, lines.call(f"{array}.reshape", [str(size) for size in _new_shape(sizes, f"{array}.shape[0]", call.positional)])
        case "__getitem__":
            return None, BreakableCode(f"{operands[0]}[{_key(values[0])}]")
        case "hidden":
            return None, BreakableCode(f"({', '.join(['None'] * states)}{',' * (states == 1)})")
        case other:
            raise AssertionError(other)


def evaluate(call: Call, operands: Sequence[Any], gives: Sequence[str], states: int = 0) -> Any:
    """The value of an op that is written in place."""
    import jax.numpy as jnp

    values: Sequence[Any] = (*call.positional, *call.named.values())
    name = call.kind.name
    if name in ("Add", "Mul"):
        total = operands[0]
        for operand in operands[1:]:
            total = total + operand if name == "Add" else total * operand
        return total
    if name == "Concat":
        return jnp.concatenate(operands, values[0] if values else 0)
    if name == "Size":
        return operands[0].shape[values[0]] if values else operands[0].shape
    if name == "Transpose":
        return jnp.swapaxes(operands[0], *values)
    if name == "View":
        array, sizes = _split(operands, gives)
        dimensions = [size for each, what in sizes for size in ([each] if what == "size" else each)]
        return array.reshape(_new_shape(dimensions, array.shape[0], call.positional))
    if name == "__getitem__":
        return operands[0][values[0]]
    return (None,) * states


def named_values(call: Call) -> dict[str, object]:
    """Arguments of a function, all by name."""
    names = [argument.target for argument in call.kind.arguments or () if argument.target]
    return {**dict(zip(names, call.positional)), **call.named}


def _split(operands: Sequence[Any], gives: Sequence[str]) -> tuple[Any, list[tuple[Any, str]]]:
    """The array among the operands of a View, and the others with their sort."""
    sizes = [(operand, what) for operand, what in zip(operands, gives) if what in ("size", "shape")]
    return next(operand for operand, what in zip(operands, gives) if what not in ("size", "shape")), sizes


def _new_shape(sizes: Sequence[Any], first: Any, rest: Sequence[Any]) -> list[Any]:
    """The shape that a View gives.

    PipeDream's description leaves out the first size, which is an operand if it was computed. Where it was a constant, it is
    the first size of the array if that of another dimension is open, and open itself otherwise. A computed size further behind
    is in the description, with the value that it had when it was profiled.
    """
    if not rest:
        return [*sizes] if sizes else [-1]
    return [sizes[0] if sizes else first if -1 in rest else -1, *rest]


def _key(key: object) -> str:
    if isinstance(key, tuple):
        return ", ".join(map(_key, key)) if key else "()"
    if isinstance(key, slice):
        parts = ["" if part is None else str(part) for part in (key.start, key.stop, key.step)]
        return ":".join(parts[: 2 if not parts[2] else 3])
    return "..." if key is Ellipsis else repr(key)
