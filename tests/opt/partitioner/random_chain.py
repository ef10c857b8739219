"""Random programs over the whole of each array, every op with a sharding of its own."""

from __future__ import annotations

import random

MESH = 'sdy.mesh @m = <["x"=4, "y"=2]>\n'
AXES = ("", "", '"x"', '"y"', '"x", "y"', '"y", "x"', '"x":(1)2', '"x":(2)2', '"y", "x":(1)2', '"x":(2)2, "x":(1)2')

Shape = tuple[int, ...]


class RandomProgram:
    """Draws ops one after the other; every value is (name, shape).

    Args:
        seed: Two programs of one seed are the same.
        count: Number of lines at least.
    """

    def __init__(self, seed: int, count: int = 6) -> None:
        self.choose = random.Random(seed)
        self.lines: list[str] = []
        self.values: list[tuple[str, Shape]] = []
        for i in range(2):
            self.values.append((f"%a{i}", tuple(self.choose.choice((3, 5, 6, 7, 8)) for _ in range(2))))
        arguments = ", ".join(f"{name}: {type_(shape)} {self.stated(shape)}" for name, shape in self.values)
        kinds = ("unary", "binary", "transpose", "reshard", "dot", "slice", "reduce", "pad", "join", "reverse")
        while len(self.lines) < count:
            getattr(self, self.choose.choice(kinds))()
        name, shape = self.values[-1]
        body = "\n  ".join(self.lines)
        result = f"({type_(shape)} {self.stated(shape)})"
        self.text = f"{MESH}func.func @main({arguments}) -> {result} {{\n  {body}\n  return {name} : {type_(shape)}\n}}\n"

    def dims(self, rank: int) -> list[str]:
        """Axes for each dimension, no part of one twice."""
        while True:
            dims = [self.choose.choice(AXES) for _ in range(rank)]
            both = ", ".join(dims)
            halves = both.count('"x":(1)2'), both.count('"x":(2)2')
            if both.count('"y"') <= 1 and max(halves) <= 1 and both.count('"x"') - sum(halves) <= (not any(halves)):
                return dims

    def stated(self, shape: Shape) -> str:
        """A sharding of an argument or result that divides it."""
        dims = [each if size % parts(each) == 0 else "" for size, each in zip(shape, self.dims(len(shape)), strict=True)]
        return f"{{sdy.sharding = #sdy.sharding<@m, {listed(dims)}>}}"

    def add(self, body: str, shape: Shape, types: str = "") -> None:
        """Adds an op with a sharding."""
        name = f"%{len(self.lines)}"
        sharding = f"{{sdy.sharding = #sdy.sharding_per_value<[<@m, {listed(self.dims(len(shape)))}>]>}}"
        self.lines.append(f"{name} = {body} {sharding} : {types or type_(shape)}")
        self.values.append((name, shape))

    def scalar(self, number: float) -> str:
        """Adds a constant."""
        name = f"%{len(self.lines)}"
        self.lines.append(f"{name} = stablehlo.constant dense<{number}> : tensor<f32>")
        return name

    def matrix(self) -> tuple[str, Shape]:
        """A value of two dimensions."""
        return self.choose.choice([value for value in self.values if len(value[1]) == 2])

    def unary(self) -> None:
        """An op on one array that does not keep zeros, or does."""
        name, shape = self.choose.choice(self.values)
        self.add(f"stablehlo.{self.choose.choice(('cosine', 'negate'))} {name}", shape)

    def binary(self) -> None:
        """An op on two arrays that are alike."""
        name, shape = self.choose.choice(self.values)
        self.add(f"stablehlo.add {name}, {self.choose.choice([other for other, s in self.values if s == shape])}", shape)

    def transpose(self) -> None:
        """A transpose."""
        name, shape = self.matrix()
        self.add(f"stablehlo.transpose {name}, dims = [1, 0]", shape[::-1], f"({type_(shape)}) -> {type_(shape[::-1])}")

    def reshard(self) -> None:
        """A reshard."""
        name, shape = self.choose.choice(self.values)
        made = f"%{len(self.lines)}"
        self.lines.append(f"{made} = sdy.reshard {name} <@m, {listed(self.dims(len(shape)))}> : {type_(shape)}")
        self.values.append((made, shape))

    def dot(self) -> None:
        """A product."""
        left, right = self.matrix(), self.matrix()
        pairs = [(i, j) for i in range(2) for j in range(2) if left[1][i] == right[1][j]]
        if not pairs:
            return
        i, j = self.choose.choice(pairs)
        shape = (left[1][1 - i], right[1][1 - j])
        types = f"({type_(left[1])}, {type_(right[1])}) -> {type_(shape)}"
        self.add(f"stablehlo.dot_general {left[0]}, {right[0]}, contracting_dims = [{i}] x [{j}]", shape, types)

    def slice(self) -> None:
        """A slice."""
        name, shape = self.choose.choice(self.values)
        starts = [self.choose.choice((0, 0, 1)) for _ in shape]
        limits = [self.choose.choice((n, n, n - 1)) for n in shape]
        steps = [self.choose.choice((1, 1, 2)) for _ in shape]
        new = tuple(-(-(b - a) // s) for a, b, s in zip(starts, limits, steps, strict=True))
        if min(new) > 0:
            bounds = ", ".join(f"{a}:{b}:{s}" for a, b, s in zip(starts, limits, steps, strict=True))
            self.add(f"stablehlo.slice {name} [{bounds}]", new, f"({type_(shape)}) -> {type_(new)}")

    def reduce(self) -> None:
        """A sum over a dimension."""
        name, shape = self.matrix()
        d = self.choose.choice((0, 1))
        zero = self.scalar(0.0)
        head = f"stablehlo.reduce({name} init: {zero}) applies stablehlo.add across dimensions = [{d}]"
        self.add(head, (shape[1 - d],), f"({type_(shape)}, tensor<f32>) -> {type_((shape[1 - d],))}")

    def pad(self) -> None:
        """A pad."""
        name, shape = self.choose.choice(self.values)
        one = self.scalar(1.0)
        low, high, between = ([self.choose.choice(some) for _ in shape] for some in ((0, 0, 1, -1), (0, 0, 1), (0, 0, 1)))
        # What comes in at one end where as much goes at the other would be padding; jaxlib's pass has that too.
        high = [0 if a < 0 else b for a, b in zip(low, high, strict=True)]
        new = tuple(n + a + b + (n - 1) * i for n, a, b, i in zip(shape, low, high, between, strict=True))
        if min(new) > 0:
            body = f"stablehlo.pad {name}, {one}, low = {low}, high = {high}, interior = {between}"
            self.add(body, new, f"({type_(shape)}, tensor<f32>) -> {type_(new)}")

    def join(self) -> None:
        """A concatenate."""
        name, shape = self.choose.choice(self.values)
        d = self.choose.randrange(len(shape))
        new = (*shape[:d], 2 * shape[d], *shape[d + 1 :])
        self.add(f"stablehlo.concatenate {name}, {name}, dim = {d}", new, f"({type_(shape)}, {type_(shape)}) -> {type_(new)}")

    def reverse(self) -> None:
        """A reversal."""
        name, shape = self.choose.choice(self.values)
        dims = self.choose.sample(range(len(shape)), self.choose.randint(1, len(shape)))
        self.add(f"stablehlo.reverse {name}, dims = {dims}", shape)


def parts(axes: str) -> int:
    """Into how many parts axes cut a dimension."""
    found = 1
    for axis in filter(None, axes.split(", ")):
        found *= 4 if axis == '"x"' else 2
    return found


def type_(shape: Shape) -> str:
    """The type of an array."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}f32>"


def listed(dims: list[str]) -> str:
    """Dimensions as they stand in a sharding."""
    return f"[{', '.join(f'{{{each}}}' for each in dims)}]"
