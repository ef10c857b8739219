"""Types and shardings as the project writes them for people: `float32[1024@data,512@(x,y)]`.

A dimension is its size, then `@` and its axes from major to minor, in parentheses where there are several. A part of an
axis keeps its SDY form `x:(1)2`. Axes along which a sum is still to be taken come after the brackets as `{U:x}`, axes
that must not be used as `{R:x}`. Open dimensions look like closed ones. An axis name that is not an identifier is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence

from shardy_py.dialect._scan import quoted
from shardy_py.dialect.axis import AxisRef
from shardy_py.dialect.sharding import DimensionSharding, TensorSharding


def format_type(dtype: str, shape: Sequence[int], sharding: TensorSharding | None = None) -> str:
    """A type with its sharding, after JAX's `float32[1024@data,512@model]`.

    Example:
        >>> format_type("float32", (1024, 512), TensorSharding("mesh", [["data"], ["model"]]))
        'float32[1024@data,512@model]'
    """
    if sharding is None or sharding.rank != len(shape):
        return f"{dtype}[{','.join(map(str, shape))}]"
    dims = ",".join(format_dim(size, dim) for size, dim in zip(shape, sharding.dims, strict=True))
    marks = [f"{mark}:{','.join(map(format_axis, axes))}" for mark, axes in (("U", sharding.unreduced), ("R", sharding.replicated)) if axes]
    return f"{dtype}[{dims}]" + (f"{{{' '.join(marks)}}}" if marks else "")


def format_dim(size: int | str, dim: DimensionSharding) -> str:
    """One dimension: `1024`, `1024@x`, `1024@(x,y)`."""
    names = [*map(format_axis, dim.axes)]
    if not names:
        return str(size)
    return f"{size}@{names[0]}" if len(names) == 1 else f"{size}@({','.join(names)})"


def format_axis(axis: AxisRef) -> str:
    """`x`, `x:(1)2`, or `"odd name"`."""
    name = axis.name if axis.name.isidentifier() else quoted(axis.name)
    return f"{name}:{axis.sub_axis}" if axis.sub_axis else name


def sizes_text(sizes: Mapping[str, int]) -> str:
    """The axes of a mesh in a sentence.

    Example:
        >>> sizes_text({"data": 4, "model": 2})
        'data=4, model=2'
    """
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def short_location(location: str) -> str:
    """A `file:line` without directories.

    Example:
        >>> short_location("/home/me/train.py:12")
        'train.py:12'
    """
    return location.rpartition("/")[2]


def aligned(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Rows of cells as lines with aligned columns; columns without text are left out.

    Example:
        >>> aligned([("node", "ms"), ("a", "10.5")], right=[1])
        ['node    ms', 'a     10.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    padded = ([cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths)) if w] for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    r"""Escapes control characters other than tabs and line ends, so that a name in a plan cannot steer the terminal that shows it.

    Example:
        >>> printable("plan of \x1b[2Jstep")
        'plan of \\x1b[2Jstep'
    """
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
