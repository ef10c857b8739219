"""Writes random functions whose ops have shardings that do not fit together, as text."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

Shape = tuple[int, ...]

MESHES = (
    '<["x"=2, "y"=2, "z"=4]>',
    '<["x"=4, "y"=2, "z"=8]>',
    '<["x"=3, "y"=2, "z"=4]>',
)
_SIZES = {0: (2, 2, 4), 1: (4, 2, 8), 2: (3, 2, 4)}
_PERMUTED = "[" + ", ".join(map(str, reversed(range(16)))) + "]"
_DIMENSIONS = (1, 3, 4, 6, 8, 12, 16, 24)


def function(seed: int, *, size: int = 4) -> str:
    """A module with one function; one in four has two meshes that differ in the order of devices."""
    return _Writer(random.Random(seed)).module(size)


class _Writer:
    def __init__(self, source: random.Random) -> None:
        self.source = source
        kind = source.choice((0, 0, 1, 2))
        self.sizes = dict(zip("xyz", _SIZES[kind], strict=True))
        self.meshes = {"mesh": MESHES[kind]}
        if kind == 0 and source.random() < 0.4:
            self.meshes["other"] = MESHES[0].replace(">", f", device_ids={_PERMUTED}>")
        self.split = source.choice((0.0, 0.5))
        self.missing = source.choice((0.0, 0.3))
        self.lines: list[str] = []
        self.values: list[tuple[str, Shape]] = []

    def module(self, size: int) -> str:
        shapes = [self.shape() for _ in range(self.source.randint(1, 3))]
        self.values = [(f"%arg{i}", shape) for i, shape in enumerate(shapes)]
        arguments = ", ".join(f"%arg{i}: {_type(shape)}{self.attribute(shape)}" for i, shape in enumerate(shapes))
        for _ in range(size):
            self.source.choice(_KINDS)(self, *self.source.choice(self.values[-3:]))
        value, shape = self.values[-1]
        lines = [f"sdy.mesh @{name} = {mesh}" for name, mesh in self.meshes.items()]
        lines.append(f"func.func @main({arguments}) -> ({_type(shape)}{self.attribute(shape)}) {{")
        return "\n".join((*lines, *self.lines, f"  return {value} : {_type(shape)}", "}"))

    def shape(self) -> Shape:
        return tuple(self.source.choice(_DIMENSIONS) for _ in range(self.source.choice((1, 2, 2, 3))))

    def sharding(self, rank: int) -> str:
        """A closed sharding, here and there with sub-axes, that need not divide the shape."""
        pieces = []
        for axis, size in self.sizes.items():
            if size >= 4 and self.source.random() < self.split:
                pieces += [f'"{axis}":(1)2', f'"{axis}":(2){size // 2}']
            else:
                pieces.append(f'"{axis}"')
        self.source.shuffle(pieces)
        dims: list[list[str]] = [[] for _ in range(rank)]
        for piece in pieces:
            dim = self.source.choice(dims) if dims else None
            if dim is None or self.source.random() < 0.4:
                continue
            if not (dim and ":(1)" in dim[-1] and dim[-1][:3] == piece[:3]):
                dim.append(piece)
        return f"<@{self.source.choice(list(self.meshes))}, [{', '.join('{' + ', '.join(dim) + '}' for dim in dims)}]>"

    def attribute(self, shape: Shape) -> str:
        return "" if self.source.random() < self.missing else f" {{sdy.sharding = #sdy.sharding{self.sharding(len(shape))}}}"

    def stated(self, *shapes: Shape) -> str:
        if self.source.random() < self.missing:
            return ""
        return f"sdy.sharding = #sdy.sharding_per_value<[{', '.join(self.sharding(len(shape)) for shape in shapes)}]>"

    def add(self, name: str, operands: Sequence[tuple[str, Shape]], result: Sequence[int], attributes: str = "", body: str = "") -> None:
        """Adds an op with one result, in generic form."""
        shape = tuple(result)
        inside = ", ".join(part for part in (attributes, self.stated(shape)) if part)
        value = f"%{len(self.lines)}"
        names, types = ", ".join(o for o, _ in operands), ", ".join(_type(s) for _, s in operands)
        self.lines.append(f'  {value} = "{name}"({names}) {body} {{{inside}}} : ({types}) -> {_type(shape)}')
        self.values.append((value, shape))

    def another(self, shape: Shape) -> tuple[str, Shape]:
        """A value of a shape: one at hand, or the result of an op without a rule."""
        found = [value for value in self.values if value[1] == shape]
        if not found or self.source.random() < 0.3:
            self.add("stablehlo.custom_call", (), shape, f'call_target_name = "source{len(self.lines)}"')
            return self.values[-1]
        return self.source.choice(found)

    def scalar(self) -> tuple[str, Shape]:
        value = f"%{len(self.lines)}"
        self.lines.append(f"  {value} = stablehlo.constant dense<0.0> : tensor<f32>")
        return value, ()


def _type(shape: Sequence[int]) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}f32>"


def _array(values: Sequence[int]) -> str:
    return f"array<i64{': ' if values else ''}{', '.join(map(str, values))}>"


_SUM = "({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %s = stablehlo.add %a, %b : tensor<f32> stablehlo.return %s : tensor<f32> })"


def _negate(w: _Writer, value: str, shape: Shape) -> None:
    w.add("stablehlo.negate", [(value, shape)], shape)


def _add(w: _Writer, value: str, shape: Shape) -> None:
    w.add("stablehlo.add", [(value, shape), w.another(shape)], shape)


def _clamp(w: _Writer, value: str, shape: Shape) -> None:
    w.add("stablehlo.clamp", [w.another(shape), (value, shape), w.another(shape)], shape)


def _transpose(w: _Writer, value: str, shape: Shape) -> None:
    order = w.source.sample(range(len(shape)), len(shape))
    w.add("stablehlo.transpose", [(value, shape)], [shape[i] for i in order], f"permutation = {_array(order)}")


def _reshape(w: _Writer, value: str, shape: Shape) -> None:
    rest, result = math.prod(shape), []
    while rest > 1 and len(result) < 3:
        result.append(w.source.choice([n for n in range(1, rest + 1) if rest % n == 0]))
        rest //= result[-1]
    w.add("stablehlo.reshape", [(value, shape)], (*result, rest))


def _dot(w: _Writer, value: str, shape: Shape) -> None:
    if not shape:
        return
    order = w.source.sample(range(len(shape)), len(shape))
    batch, contracted = sorted(order[:1]) if len(shape) > 1 else [], sorted(order[-1:])
    other = (*(shape[i] for i in batch), 8, *(shape[i] for i in contracted))
    result = [*(shape[i] for i in batch), *(n for i, n in enumerate(shape) if i not in batch + contracted), 8]
    numbers = (
        f"dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {batch}, rhs_batching_dimensions = {list(range(len(batch)))}, "
        f"lhs_contracting_dimensions = {contracted}, rhs_contracting_dimensions = [{len(batch) + 1}]>"
    )
    w.add("stablehlo.dot_general", [(value, shape), w.another(other)], result, numbers)


def _reduce(w: _Writer, value: str, shape: Shape) -> None:
    gone = sorted(w.source.sample(range(len(shape)), w.source.randint(0, len(shape))))
    kept = [n for i, n in enumerate(shape) if i not in gone]
    w.add("stablehlo.reduce", [(value, shape), w.scalar()], kept, f"dimensions = {_array(gone)}", _SUM)


def _concatenate(w: _Writer, value: str, shape: Shape) -> None:
    if shape:
        dim = w.source.randrange(len(shape))
        result = [2 * n if i == dim else n for i, n in enumerate(shape)]
        w.add("stablehlo.concatenate", [(value, shape), w.another(shape)], result, f"dimension = {dim} : i64")


def _slice(w: _Writer, value: str, shape: Shape) -> None:
    ends = [w.source.choice((n, (n + 1) // 2)) for n in shape]
    attributes = f"start_indices = {_array([0] * len(shape))}, limit_indices = {_array(ends)}, strides = {_array([1] * len(shape))}"
    w.add("stablehlo.slice", [(value, shape)], ends, attributes)


def _reverse(w: _Writer, value: str, shape: Shape) -> None:
    dims = w.source.sample(range(len(shape)), w.source.randint(0, len(shape)))
    w.add("stablehlo.reverse", [(value, shape)], shape, f"dimensions = {_array(dims)}")


def _barrier(w: _Writer, value: str, shape: Shape) -> None:
    w.lines.append(f"  %{len(w.lines)} = sdy.propagation_barrier {value} allowed_direction=NONE : {_type(shape)}")
    w.values.append((f"%{len(w.lines) - 1}", shape))


def _reshard(w: _Writer, value: str, shape: Shape) -> None:
    w.lines.append(f"  %{len(w.lines)} = sdy.reshard {value} {w.sharding(len(shape))} : {_type(shape)}")
    w.values.append((f"%{len(w.lines) - 1}", shape))


def _optimization_barrier(w: _Writer, value: str, shape: Shape) -> None:
    w.add("stablehlo.optimization_barrier", [(value, shape)], shape)


def _cholesky(w: _Writer, value: str, shape: Shape) -> None:
    w.add("stablehlo.cholesky", [w.another((*shape[:-1], 4, 4))], (*shape[:-1], 4, 4), "lower = true")


_KINDS: tuple[Callable[[_Writer, str, Shape], None], ...] = (
    _negate,
    _add,
    _clamp,
    _transpose,
    _reshape,
    _reshape,
    _dot,
    _dot,
    _reduce,
    _concatenate,
    _slice,
    _reverse,
    _barrier,
    _reshard,
    _optimization_barrier,
    _cholesky,
)
