"""Made-up modules for `sdy-convert-global-to-local`: random ones by seed, each of one op over a sharded value."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence

import numpy as np

from shardy_py.opt import run_passes

MESHES: dict[str, dict[str, tuple[int, int]]] = {
    '<["x"=2, "y"=4, "z"=2]>': {'"x"': (1, 2), '"y"': (1, 4), '"z"': (1, 2), '"y":(1)2': (1, 2), '"y":(2)2': (2, 4)},
    '<["a"=8, "b"=3]>': {'"a"': (1, 8), '"b"': (1, 3), '"a":(1)2': (1, 2), '"a":(2)2': (2, 4), '"a":(4)2': (4, 8), '"a":(1)4': (1, 4)},
    '<["x"=2, "y"=4], device_ids=[3,1,2,0,7,5,6,4]>': {'"x"': (1, 2), '"y"': (1, 4), '"y":(1)2': (1, 2), '"y":(2)2': (2, 4)},
    '<["p"=6, "q"=4]>': {'"p"': (1, 6), '"q"': (1, 4), '"p":(1)2': (1, 2), '"p":(2)3': (2, 6), '"q":(1)2': (1, 2), '"q":(2)2': (2, 4)},
}
"""Mesh -> axes and parts of axes, with where each begins and ends."""

Dims = list[list[str]]


class Maker:
    """Draws shardings of one mesh and writes modules over it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.mesh = self.random.choice(list(MESHES))
        self.axes = MESHES[self.mesh]

    def dims(self, rank: int) -> Dims:
        """Axes for each dimension of a tensor, none twice."""
        pool = self.random.sample(list(self.axes), len(self.axes))
        found: Dims = [[] for _ in range(rank)]
        used: list[tuple[str, int, int]] = []
        for axis in pool[: self.random.randint(1, 4)]:
            name = axis.partition(":")[0]
            begin, end = self.axes[axis]
            dim = self.random.choice(found)
            # Neighbouring parts of an axis must be written as one.
            merges = bool(dim) and dim[-1].startswith(name) and self.axes[dim[-1]][1] == begin
            if not merges and all(name != other or end <= b or e <= begin for other, b, e in used):
                used.append((name, begin, end))
                dim.append(axis)
        return found

    def parts(self, axes: Sequence[str]) -> int:
        """Into how many parts axes cut a dimension."""
        return math.prod(self.axes[axis][1] // self.axes[axis][0] for axis in axes)

    def module(self, body: str, arguments: str = "", results: str = "", returned: str = "return") -> str:
        """A function with one line."""
        return f"sdy.mesh @m = {self.mesh}\nfunc.func @main({arguments}){results} {{\n  {body}\n  {returned}\n}}\n"


def text(dims: Dims) -> str:
    """Dimensions as they stand in a sharding."""
    return f"[{', '.join('{' + ', '.join(axes) + '}' for axes in dims)}]"


def tensor(shape: Sequence[int], element: str = "f32") -> str:
    """A tensor type."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def argument(name: str, shape: Sequence[int], dims: Dims) -> str:
    """A sharded argument."""
    return f"%{name}: {tensor(shape)} {{sdy.sharding = #sdy.sharding<@m, {text(dims)}>}}"


def per_value(dims: Dims) -> str:
    """The sharding of an op's result."""
    return f"{{sdy.sharding = #sdy.sharding_per_value<[<@m, {text(dims)}>]>}}"


def reshard(make: Maker) -> str:
    """The collectives from one sharding to another."""
    rank = make.random.choice([1, 2, 2, 3])
    before, after = make.dims(rank), make.dims(rank)
    type_ = tensor([288] * rank)
    line = f"%0 = sdy.reshard %a <@m, {text(after)}> : {type_}"
    result = f" -> ({type_} {{sdy.sharding = #sdy.sharding<@m, {text(after)}>}})"
    module = make.module(line, argument("a", [288] * rank, before), result, f"return %0 : {type_}")
    return run_passes(module, "func.func(sdy-reshard-to-collectives)")


def slicing(name: str) -> Callable[[Maker], str]:
    """An `all_slice` or a `reduce_scatter`."""

    def module(make: Maker) -> str:
        # jaxlib refuses a combined reduce-scatter of some dimensions of several.
        after = make.dims(make.random.randint(1, 2 if name == "reduce_scatter" else 3))
        kept = [make.random.randint(0, len(axes)) for axes in after]
        before = [axes[:n] for axes, n in zip(after, kept, strict=True)]
        cut = [axes[n:] for axes, n in zip(after, kept, strict=True)]
        shape = [288] * len(after)
        line = f"%0 = sdy.{name} {text(cut)} %a out_sharding=<@m, {text(after)}> : {tensor(shape)}"
        return make.module(line, argument("a", shape, before))

    return module


def pad(make: Maker) -> str:
    """A pad, with interior and negative amounts."""
    dims = make.dims(make.random.randint(1, 3))
    shape, wanted, low, high, interior = [], [], [], [], []
    for axes in dims:
        parts = make.parts(axes)
        size, step, start = parts * make.random.choice([1, 2, 3, 5]), make.random.choice([0, 0, 1, 2]), make.random.randint(-2, 4)
        end, whole = make.random.randint(-2, 3), (size - 1) * (step + 1) + 1 + start
        while (whole + end) % parts or whole + end <= 0:
            end += 1
        for listed, each in zip((shape, wanted, low, high, interior), (size, whole + end, start, end, step), strict=True):
            listed.append(each)
    line = f"%0 = stablehlo.pad %a, %p, low={low}, high={high}, interior={interior} {per_value(dims)}"
    line += f" : ({tensor(shape)}, tensor<f32>) -> {tensor(wanted)}"
    return make.module(line, f"{argument('a', shape, dims)}, %p: tensor<f32>")


def slice_(make: Maker) -> str:
    """A slice of dimensions that are whole, or in steps that divide the parts."""
    dims = make.dims(make.random.randint(1, 3))
    shape, bounds, wanted = [], [], []
    for axes in dims:
        part = make.random.choice((2, 3, 4, 6))
        size = make.parts(axes) * part
        start = 0 if axes else make.random.randint(0, size - 1)
        step = make.random.choice([n for n in range(1, part + 1) if part % n == 0]) if axes else make.random.randint(1, 2)
        limit = size if axes else make.random.randint(start + 1, size)
        shape.append(size)
        bounds.append(f"{start}:{limit}:{step}")
        wanted.append(-(-(limit - start) // step))
    line = f"%0 = stablehlo.slice %a [{', '.join(bounds)}] {per_value(dims)} : ({tensor(shape)}) -> {tensor(wanted)}"
    return make.module(line, argument("a", shape, dims))


def iota(make: Maker) -> str:
    """An iota."""
    dims = make.dims(make.random.randint(1, 3))
    type_ = tensor([make.parts(axes) * make.random.randint(1, 3) for axes in dims], make.random.choice(["i32", "f32", "i64", "bf16"]))
    return make.module(f"%0 = stablehlo.iota dim = {make.random.randrange(len(dims))} {per_value(dims)} : {type_}")


def constant(make: Maker) -> str:
    """A constant, with one value or many."""
    dims = make.dims(make.random.randint(1, 3))
    shape = [make.parts(axes) * make.random.randint(1, 3) for axes in dims]
    value = np.arange(math.prod(shape)).reshape(shape).tolist() if make.random.random() < 0.6 else 7
    return make.module(f"%0 = sdy.constant {per_value(dims)} dense<{value}> : {tensor(shape, 'i32')}")


KINDS: dict[str, Callable[[Maker], str]] = {
    "reshard": reshard,
    "all_slice": slicing("all_slice"),
    "reduce_scatter": slicing("reduce_scatter"),
    "pad": pad,
    "slice": slice_,
    "iota": iota,
    "constant": constant,
}

OPTIONS = ("", "{per-dim-all-gather=true}", "{enable-rgv3=true}", "{combine-multi-dimension-reduce-scatter=true}")


def random_module(kind: str, seed: int) -> tuple[str, str]:
    """A module and options of the pass."""
    make = Maker(seed)
    made = KINDS[kind](make)
    return made, make.random.choice(OPTIONS)


def has_reshard(module: str) -> bool:
    """Whether a reshard was left as it is."""
    return re.search(r"sdy\.reshard ", module) is not None
