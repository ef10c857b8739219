"""Writes random JAX programs with shardings as source text: what plans are compared on with the Shardy inside jaxlib.

A program is a function over a few arrays, the types of its arguments, a mesh, and shardings for some arguments and results.
`write_program` draws it from a source of choices: hypothesis (`programs`), which makes a failing program small, or a seeded
generator (`program_of_seed`), which is quick. `load` runs the text. Nothing here is ever computed; only shapes matter.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import hypothesis.strategies as st

from tests import random_statements
from tests.random_parts import Skip

T = TypeVar("T")
Shape = tuple[int, ...]
MESHES = ({"x": 2, "y": 4}, {"x": 2, "y": 2, "z": 2}, {"x": 4, "y": 2}, {"x": 8}, {"x": 2, "one": 1, "y": 4})
SIZES = (8, 4, 2, 16, 6, 12, 3, 1)
MOST_ELEMENTS = 1 << 14
MOST_DIMENSIONS = 4
PRELUDE = """\
import functools
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

U = P.UNCONSTRAINED


def constrain(x, spec):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
"""


class Source(Protocol):
    """Where the choices come from."""

    def integer(self, low: int, high: int) -> int:
        """A number from low to high, both included; low is the simplest."""
        ...


class Value(NamedTuple):
    """A variable of the program."""

    name: str
    shape: Shape
    dtype: str = "float32"

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclasses.dataclass
class Choices:
    """Choices that statements make."""

    source: Source

    def integer(self, low: int, high: int) -> int:
        return self.source.integer(low, high)

    def one_of(self, options: Sequence[T]) -> T:
        if not options:
            raise Skip
        return options[self.source.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """True in so many of 100 cases; False is the simpler one."""
        return self.source.integer(0, 99) >= 100 - percent

    def some_of(self, options: Sequence[T]) -> list[T]:
        return [option for option in options if self.chance(50)]

    def shuffled(self, options: Iterable[T]) -> list[T]:
        left, out = list(options), []
        while left:
            out.append(left.pop(self.source.integer(0, len(left) - 1)))
        return out


class Writer:
    """Writes the body of one function.

    Attributes:
        choose: Where choices come from.
        values: What the body can use, oldest first.
        lines: The text so far, shared with the functions around.
        mesh: Axis name -> size.
        depth: How many functions this one stands in.
        smooth: Whether the function is to be differentiated, so that no open-ended loops may stand in it.
        sizes: The dimension sizes that the program prefers.
    """

    def __init__(
        self, choose: Choices, values: Sequence[Value], lines: list[str], mesh: dict[str, int], sizes: Sequence[int], names: list[int],
        *, depth: int = 0, smooth: bool = False, constraints: bool = True,
    ) -> None:  # fmt: skip
        self.choose = choose
        self.values = list(values)
        self.lines = lines
        self.mesh = mesh
        self.sizes = sizes
        self.depth = depth
        self.smooth = smooth
        self.constraints = constraints
        self.functions: list[tuple[str, tuple[Value, ...], tuple[Shape, ...]]] = []
        self._names = names
        self._unused = {v.name for v in values}

    def fresh(self, prefix: str) -> str:
        """A name not used yet."""
        self._names[0] += 1
        return f"{prefix}{self._names[0]}"

    def line(self, text: str) -> None:
        """Appends a line at this function's indentation."""
        self.lines.append("    " * (self.depth + 1) + text)

    def let(self, expression: str, shape: Iterable[int], dtype: str = "float32") -> Value:
        """Gives an expression a name that later statements can use."""
        value = Value(self.fresh("v"), checked(shape), dtype)
        self.line(f"{value.name} = {expression}")
        self.add(value)
        return value

    def add(self, *values: Value) -> None:
        """Makes values that the text names usable by later statements."""
        self.values.extend(values)
        self._unused.update(v.name for v in values)

    def any(self, accept: Callable[[Value], bool] = lambda _: True, dtype: str = "float32") -> Value:
        """An earlier value: more often than not one that is not used yet, or a late one."""
        found = [v for v in reversed(self.values) if v.dtype == dtype and accept(v)]
        unused = [v for v in found if v.name in self._unused]
        if unused and self.choose.chance(60):
            found = unused
        elif len(found) > 3 and self.choose.chance(60):
            found = found[:3]
        value = self.choose.one_of(found)
        self._unused.discard(value.name)
        return value

    def array(self, least: int = 1, most: int = MOST_DIMENSIONS) -> Value:
        """An earlier value of some rank."""
        return self.any(lambda v: least <= v.rank <= most)

    def size(self) -> int:
        """A dimension size."""
        return self.choose.one_of(self.sizes)

    def function(
        self,
        parameters: Sequence[tuple[Shape, str]],
        wanted: Sequence[Shape] | None,
        *,
        statements: int = 4,
        closure: bool = True,
        smooth: bool | None = None,
        constraints: bool = True,
        sequence: bool = False,
    ) -> tuple[str, tuple[Shape, ...]]:
        """Writes an inner function and returns its name and the shapes of its results.

        Args:
            parameters: Shapes and dtypes.
            wanted: The shapes that the results must have; None for one or two of any shape.
            statements: At most so many.
            closure: Whether it may use values from around it.
            smooth: Whether it is to be differentiated.
            constraints: Whether it may have sharding constraints.
            sequence: Whether it returns a tuple even of one value.
        """
        name = self.fresh("f")
        own = [Value(self.fresh("p"), shape, dtype) for shape, dtype in parameters]
        around = self.values if closure and self.choose.chance(40) else []
        self.line(f"def {name}({', '.join(p.name for p in own)}):")
        inner = Writer(self.choose, [*around, *own], self.lines, self.mesh, self.sizes, self._names, depth=self.depth + 1,
                       smooth=self.smooth if smooth is None else smooth, constraints=self.constraints and constraints)  # fmt: skip
        inner.statements(self.choose.integer(1, statements))
        results = inner.results(wanted)
        inner.line(f"return {', '.join(r.name for r in results)}{',' if sequence and len(results) == 1 else ''}")
        return name, tuple(r.shape for r in results)

    def results(self, wanted: Sequence[Shape] | None) -> list[Value]:
        """Values to return, of the wanted shapes."""
        if wanted is None:
            return self.some(2 if self.choose.chance(30) else 1)
        return [self.of_shape(shape) for shape in wanted]

    def some(self, count: int) -> list[Value]:
        """So many values to return, unused ones first."""
        unused = [v for v in reversed(self.values) if v.dtype == "float32" and v.name in self._unused][:count]
        return [*unused, *(self.any() for _ in range(count - len(unused)))]

    def of_shape(self, shape: Shape) -> Value:
        """A value of a shape, made from one of another where there is none."""
        found = [v for v in reversed(self.values) if v.shape == shape and v.dtype == "float32"]
        if found and not self.choose.chance(15):
            return self.choose.one_of(found[:2])
        other = self.any()
        if math.prod(other.shape) == math.prod(shape):
            return self.let(f"jnp.reshape({other.name}, {shape})", shape)
        return self.let(f"jnp.broadcast_to(jnp.mean({other.name}), {shape})", shape)

    def statements(self, count: int) -> None:
        """Writes so many statements, fewer where too many find nothing to work on."""
        left = count
        for _ in range(3 * count):
            table = random_statements.NESTED if self.depth < 3 and self.choose.chance(28 // (self.depth + 1)) else random_statements.LEAVES
            before = len(self.lines), len(self.values), len(self.functions)
            try:
                self.choose.one_of(table)(self)
            except Skip:
                del self.lines[before[0] :], self.values[before[1] :], self.functions[before[2] :]
                continue
            left -= 1
            if not left:
                return

    def spec(self, shape: Shape, *, uneven: bool = False, unconstrained: bool = False) -> str:
        """The text of a random `PartitionSpec` for a shape."""
        return spec_text(self.choose, shape, self.mesh, uneven=uneven, unconstrained=unconstrained)


def checked(shape: Iterable[int]) -> Shape:
    """A shape as a tuple; Skip where it is too large or empty."""
    shape = tuple(shape)
    if len(shape) > MOST_DIMENSIONS or not 0 < math.prod(shape) <= MOST_ELEMENTS:
        raise Skip
    return shape


def spec_text(choose: Choices, shape: Shape, mesh: dict[str, int], *, uneven: bool = False, unconstrained: bool = False) -> str:
    """The text of a random `PartitionSpec`; `uneven` allows dimensions that the axes do not divide."""
    dims: list[list[str]] = [[] for _ in shape]
    ways = [1] * len(shape)
    for axis in choose.shuffled(mesh):
        fits = [d for d, n in enumerate(shape) if n % (ways[d] * mesh[axis]) == 0 or (uneven and n > 1)]
        if fits and choose.chance(60):
            d = choose.one_of(fits)
            dims[d].append(axis)
            ways[d] *= mesh[axis]
    entries = []
    for axes in dims:
        if not axes:
            entries.append("U" if unconstrained and choose.chance(50) else "None")
        else:
            entries.append(repr(axes[0]) if len(axes) == 1 else repr(tuple(axes)))
    while entries and entries[-1] == "None" and choose.chance(80):
        entries.pop()
    return f"P({', '.join(entries)})"


def write_program(source: Source) -> str:
    """The text of a random program."""
    choose = Choices(source)
    mesh = choose.one_of(MESHES[:2]) if not choose.chance(15) else choose.one_of(MESHES[2:])
    sizes = [choose.one_of(SIZES) for _ in range(3)]
    arguments = []
    for i in range(choose.integer(1, 4)):
        if i and choose.chance(10):
            arguments.append(Value(f"a{i}", tuple(choose.one_of(sizes) for _ in range(choose.integer(0, 1))), "int32"))
        else:
            rank = (2, 3, 1, 2, 4, 2, 3, 0)[choose.integer(0, 7)] if i else (2, 3, 1, 4)[choose.integer(0, 3)]
            arguments.append(Value(f"a{i}", tuple(choose.one_of(sizes) for _ in range(rank))))
    lines: list[str] = []
    gradient = choose.chance(25)
    writer = Writer(choose, arguments, lines, mesh, sizes, [0], smooth=gradient)
    writer.statements(choose.integer(1, 12))
    if choose.chance(10):
        arguments.append(Value("unused", tuple(choose.one_of(sizes) for _ in range(choose.integer(0, 2)))))
    parameters = ", ".join(v.name for v in arguments)
    outside = "None"
    if gradient:
        parts = writer.some(choose.integer(1, 3))
        loss = " + ".join(f"jnp.{choose.one_of(('sum', 'mean', 'max'))}({v.name})" for v in parts)
        numbers = tuple(i for i, v in enumerate(arguments) if v.dtype == "float32")
        body = [f"def loss({parameters}):", *lines, f"    return {loss}"]
        if choose.chance(40):
            shapes, outside = [()], str(numbers)
            body += ["", "", f"def program({parameters}):", f"    return loss({parameters}),"]
        else:
            shapes = [(), *(arguments[i].shape for i in numbers)]
            body += [
                *("", "", f"def program({parameters}):"),
                f"    value, gradients = jax.value_and_grad(loss, argnums={numbers})({parameters})",
                "    return value, *gradients",
            ]
    else:
        results = writer.some(choose.integer(1, 4))
        texts, shapes = [v.name for v in results], [v.shape for v in results]
        if choose.chance(10):  # a number, or an argument as it came
            text, shape = choose.one_of((("3.0", ()), (arguments[0].name, arguments[0].shape)))
            at = choose.integer(0, len(texts))
            texts.insert(at, text)
            shapes.insert(at, shape)
        body = [f"def program({parameters}):", *lines, f"    return {', '.join(texts)},"]
    ins = [spec_text(choose, v.shape, mesh) if choose.chance(55) else "None" for v in arguments]
    outs = [spec_text(choose, s, mesh) if choose.chance(20) else "None" for s in shapes]
    return "\n".join(
        [
            PRELUDE,
            f"mesh = jax.make_mesh({tuple(mesh.values())}, {tuple(mesh)}, axis_types=(AxisType.Auto,) * {len(mesh)})",
            "",
            "",
            *body,
            "",
            "",
            f"arguments = ({' '.join(f'jax.ShapeDtypeStruct({v.shape}, {v.dtype!r}),' for v in arguments)})",
            f"in_shardings = ({' '.join(text + ',' for text in ins)})",
            f"out_shardings = ({' '.join(text + ',' for text in outs)})",
            f"outside = {outside}",
            "",
        ]
    )


class Loaded(NamedTuple):
    """A program that has been run as Python.

    Attributes:
        program: The function.
        mesh: Where it runs.
        arguments: Types.
        in_shardings: Of the arguments.
        out_shardings: Of the results.
        outside: Arguments by which its first result is to be differentiated from outside; None where it is called as it is.
    """

    program: Callable[..., Any]
    mesh: Any
    arguments: tuple[Any, ...]
    in_shardings: tuple[Any, ...]
    out_shardings: tuple[Any, ...]
    outside: tuple[int, ...] | None


def load(text: str) -> Loaded:
    """Runs the text of a program; its specs become `NamedSharding`s."""
    from jax.sharding import NamedSharding

    names: dict[str, Any] = {}
    exec(compile(text, "<random program>", "exec"), names)
    mesh = names["mesh"]
    ins, outs = (
        tuple(None if spec is None else NamedSharding(mesh, spec) for spec in names[which]) for which in ("in_shardings", "out_shardings")
    )
    return Loaded(names["program"], mesh, names["arguments"], ins, outs, names["outside"])


@dataclasses.dataclass
class _Seeded:
    generator: random.Random

    def integer(self, low: int, high: int) -> int:
        return self.generator.randint(low, high)


def program_of_seed(seed: int) -> str:
    """The text of the program with a number; the same in every process."""
    return write_program(_Seeded(random.Random(seed)))


@dataclasses.dataclass
class _Drawn:
    draw: Any

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))


@st.composite
def programs(draw: Any) -> str:
    """A strategy for texts of programs."""
    return write_program(_Drawn(draw))
