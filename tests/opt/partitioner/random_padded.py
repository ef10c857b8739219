"""Random modules of ops on arrays whose dimensions are not multiples of their shards."""

from __future__ import annotations

import random

MESH = 'sdy.mesh @m = <["x"=4, "y"=2]>\n'

Dims = tuple[str, ...]
"""The axis of each dimension, "" for none."""


class RandomModule:
    """Draws ops one after the other; every value is (name, shape, axes).

    Args:
        seed: Two modules of one seed are the same.
        count: Number of ops.
    """

    def __init__(self, seed: int, count: int = 6) -> None:
        self.choose = random.Random(seed)
        self.lines: list[str] = []
        self.values: list[tuple[str, tuple[int, ...], Dims]] = []
        self.arguments: list[str] = []
        self.results: list[str] = []
        for i in range(2):
            shape = tuple(self.choose.choice((3, 5, 6, 7, 8)) for _ in range(2))
            self.arguments.append(f"%a{i}: {type_(shape)}")
            self.emit_slice(f"%a{i}", shape, ("", ""), self.choose.choice((("x", ""), ("x", "y"), ("y", ""), ("", "x"), ("y", "x"))))
        while len(self.lines) < count:
            getattr(
                self, self.choose.choice(("unary", "binary", "transpose", "gather", "slice_again", "dot", "slice", "reduce", "pad", "join"))
            )()
        self.finish()

    @property
    def text(self) -> str:
        """The module."""
        body = "\n  ".join(self.lines)
        named = [value for value in self.values if value[0] in self.results]
        types = ", ".join(type_(shape) for _, shape, _ in named)
        returned = f"return {', '.join(name for name, _, _ in named)} : {types}" if named else "return"
        return f"{MESH}func.func @main({', '.join(self.arguments)}) -> ({types}) {{\n  {body}\n  {returned}\n}}\n"

    def add(self, body: str, shape: tuple[int, ...], dims: Dims) -> None:
        """Adds an op."""
        name = f"%{len(self.lines)}"
        self.lines.append(f"{name} = {body}")
        self.values.append((name, shape, dims))

    def emit_slice(self, name: str, shape: tuple[int, ...], old: Dims, new: Dims) -> None:
        """Shards dimensions that are whole."""
        cut = tuple(b if not a else "" for a, b in zip(old, new, strict=True))
        self.add(f"sdy.all_slice {axes(cut)} {name} out_sharding=<@m, {axes(new)}> : {type_(shape)}", shape, new)

    def finish(self) -> None:
        """Gathers the last value and returns it."""
        name, shape, dims = self.values[-1]
        if any(dims):
            whole = ("",) * len(shape)
            self.add(f"sdy.all_gather {axes(dims)} {name} out_sharding=<@m, {axes(whole)}> : {type_(shape)}", shape, whole)
        self.results.append(self.values[-1][0])

    def unary(self) -> None:
        """An op on one array that does not keep zeros, or does."""
        name, shape, dims = self.choose.choice(self.values)
        self.add(f"stablehlo.{self.choose.choice(('cosine', 'negate'))} {name} {at(dims)} : {type_(shape)}", shape, dims)

    def binary(self) -> None:
        """An op on two arrays that are alike."""
        name, shape, dims = self.choose.choice(self.values)
        others = [other for other, s, d in self.values if (s, d) == (shape, dims)]
        self.add(f"stablehlo.add {name}, {self.choose.choice(others)} {at(dims)} : {type_(shape)}", shape, dims)

    def transpose(self) -> None:
        """A transpose."""
        name, shape, dims = self.choose.choice([v for v in self.values if len(v[1]) == 2])
        new = shape[::-1]
        self.add(f"stablehlo.transpose {name}, dims = [1, 0] {at(dims[::-1])} : ({type_(shape)}) -> {type_(new)}", new, dims[::-1])

    def gather(self) -> None:
        """An all-gather of some dimensions."""
        name, shape, dims = self.choose.choice(self.values)
        kept = tuple(axis if self.choose.random() < 0.5 else "" for axis in dims)
        gone = tuple(a if a != b else "" for a, b in zip(dims, kept, strict=True))
        if any(gone):
            self.add(f"sdy.all_gather {axes(gone)} {name} out_sharding=<@m, {axes(kept)}> : {type_(shape)}", shape, kept)

    def slice_again(self) -> None:
        """An all-slice of a dimension that is whole."""
        name, shape, dims = self.choose.choice(self.values)
        free = [axis for axis in "xy" if axis not in dims]
        whole = [d for d, axis in enumerate(dims) if not axis]
        if free and whole:
            d = self.choose.choice(whole)
            self.emit_slice(name, shape, dims, (*dims[:d], self.choose.choice(free), *dims[d + 1 :]))

    def dot(self) -> None:
        """A product over dimensions that are alike."""
        left, right = self.choose.choice(self.values), self.choose.choice(self.values)
        pairs = [
            (i, j)
            for i in range(len(left[1]))
            for j in range(len(right[1]))
            if (left[1][i], left[2][i]) == (right[1][j], right[2][j]) and len(left[1]) == len(right[1]) == 2
        ]
        if not pairs:
            return
        i, j = self.choose.choice(pairs)
        dims = (left[2][1 - i], right[2][1 - j])
        if dims[0] and dims[0] == dims[1]:
            return
        shape = (left[1][1 - i], right[1][1 - j])
        types = f"({type_(left[1])}, {type_(right[1])}) -> {type_(shape)}"
        self.add(f"stablehlo.dot_general {left[0]}, {right[0]}, contracting_dims = [{i}] x [{j}] {at(dims)} : {types}", shape, dims)

    def slice(self) -> None:
        """A slice."""
        name, shape, dims = self.choose.choice(self.values)
        starts = [0 if axis else self.choose.choice((0, 1)) for axis in dims]
        limits = [self.choose.choice((n, n, n - 1)) for n in shape]
        new = tuple(b - a for a, b in zip(starts, limits, strict=True))
        if min(new) > 0:
            bounds = ", ".join(f"{a}:{b}" for a, b in zip(starts, limits, strict=True))
            self.add(f"stablehlo.slice {name} [{bounds}] {at(dims)} : ({type_(shape)}) -> {type_(new)}", new, dims)

    def reduce(self) -> None:
        """A sum over a whole dimension, kept as a dimension of size 1."""
        name, shape, dims = self.choose.choice([v for v in self.values if len(v[1]) == 2])
        whole = [d for d, axis in enumerate(dims) if not axis]
        if not whole:
            return
        d = self.choose.choice(whole)
        zero = f"%{len(self.lines)}"
        self.lines.append(f"{zero} = stablehlo.constant dense<0.0> : tensor<f32>")
        new, kept = (shape[1 - d],), (dims[1 - d],)
        head = f"stablehlo.reduce({name} init: {zero}) applies stablehlo.add across dimensions = [{d}]"
        self.add(f"{head} {at(kept)} : ({type_(shape)}, tensor<f32>) -> {type_(new)}", new, kept)

    def pad(self) -> None:
        """A pad of whole dimensions."""
        name, shape, dims = self.choose.choice(self.values)
        one = f"%{len(self.lines)}"
        self.lines.append(f"{one} = stablehlo.constant dense<1.0> : tensor<f32>")
        low, high = ([0 if axis else self.choose.choice((0, 1)) for axis in dims] for _ in range(2))
        new = tuple(n + a + b for n, a, b in zip(shape, low, high, strict=True))
        between = [0] * len(shape)
        body = f"stablehlo.pad {name}, {one}, low = {low}, high = {high}, interior = {between} {at(dims)}"
        self.add(f"{body} : ({type_(shape)}, tensor<f32>) -> {type_(new)}", new, dims)

    def join(self) -> None:
        """A concatenate along a whole dimension."""
        name, shape, dims = self.choose.choice(self.values)
        if "" in dims:
            d = dims.index("")
            new = (*shape[:d], 2 * shape[d], *shape[d + 1 :])
            body = f"stablehlo.concatenate {name}, {name}, dim = {d} {at(dims)}"
            self.add(f"{body} : ({type_(shape)}, {type_(shape)}) -> {type_(new)}", new, dims)


def type_(shape: tuple[int, ...]) -> str:
    """The type of an array."""
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def axes(dims: Dims) -> str:
    """The axes of dimensions as SDY writes them."""
    listed = ['{"' + axis + '"}' if axis else "{}" for axis in dims]
    return f"[{', '.join(listed)}]"


def at(dims: Dims) -> str:
    """The sharding of a result."""
    return f"{{sdy.sharding = #sdy.sharding_per_value<[<@m, {axes(dims)}>]>}}"
