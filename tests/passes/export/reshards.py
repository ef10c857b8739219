"""Random reshards, and the collectives that jaxlib makes of many of them at once."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from shardy_py.dialect import AllToAllParamList, AxisRef, ListOfAxisRefLists, Mesh, TensorSharding
from shardy_py.passes.export.collective_steps import CollectiveStep, collectives_for
from tests.reference import run_pipeline

_OP = re.compile(r"= sdy\.(\w+) (.*) : tensor")


@dataclass(frozen=True)
class Reshard:
    """A reshard from `source` over the mesh `m` to `target` over `m` or over `n`, which has the same axes."""

    meshes: dict[str, Mesh]
    source: TensorSharding
    target: TensorSharding
    shape: tuple[int, ...]

    def steps(self, *, complete: bool = False) -> tuple[CollectiveStep, ...]:
        """The module after this package's pass."""
        return collectives_for(self.source, self.target, self.shape, self.meshes, complete=complete)

    def function_of(self, steps: Sequence[CollectiveStep]) -> str:
        """A function that runs the steps."""
        type_ = f"tensor<{''.join(f'{n}x' for n in self.shape)}f32>"
        lines = [f"sdy.mesh @{name} = {mesh.text(short=True)}" for name, mesh in self.meshes.items()]
        lines.append(f"func.func @f(%v0: {type_} {{sdy.sharding = {self.source}}}) -> {type_} {{")
        for i, text in enumerate(texts(steps)):
            op, _, sharding = text.partition("out_sharding=")
            lines.append(f"%v{i + 1} = sdy.{op}%v{i} out_sharding={sharding} : {type_}")
        return "\n".join([*lines, f"return %v{len(steps)} : {type_}", "}"])

    def function(self, i: int) -> str:
        """A function with only this reshard; its meshes get the number, too."""
        source, target = (str(s).replace("@", f"@_{i}_") for s in (self.source, self.target))
        type_ = f"tensor<{''.join(f'{n}x' for n in self.shape)}f32>"
        meshes = "".join(f"sdy.mesh @_{i}_{name} = {mesh.text(short=True)}\n" for name, mesh in self.meshes.items())
        reshard = f"%0 = sdy.reshard %a {target.removeprefix('#sdy.sharding')} : {type_}"
        return f"{meshes}func.func @f{i}(%a: {type_} {{sdy.sharding = {source}}}) -> {type_} {{\n{reshard}\nreturn %0 : {type_}\n}}\n"


def random_reshard(rng: random.Random, sizes: Sequence[int]) -> Reshard:
    """A reshard over a mesh of one to four axes with some of these sizes; some axes are split into sub-axes."""
    names = "xyzw"[: rng.randint(1, 4)]
    axes = {name: rng.choice(sizes) for name in names}
    splits = {name: _split(size, rng) for name, size in axes.items()}
    rank = rng.randint(1, 4)
    meshes = {"m": Mesh(axes)}
    over = "m"
    if rng.random() < 0.1 and meshes["m"].size > 1:
        meshes["n"] = Mesh(axes, reversed(range(meshes["m"].size)))
        over = "n"
    source, target = (TensorSharding(mesh, _dims(splits, axes, rank, rng)) for mesh in ("m", over))
    pairs = zip(source.shards(meshes["m"]), target.shards(meshes[over]), strict=True)
    if rng.random() < 0.7:
        shape = tuple(math.lcm(a, b) * rng.choice((1, 1, 2)) for a, b in pairs)
    else:
        shape = tuple(rng.choice((1, 2, 4, 6, 8, 12, 48)) for _ in range(rank))
    return Reshard(meshes, source, target, shape)


def _split(size: int, rng: random.Random) -> list[int]:
    factors = [p for p in (2, 3, 5, 7) for k in range(1, 6) if size % p**k == 0]
    rng.shuffle(factors)
    if rng.random() < 0.6 or len(factors) < 2:
        return [size]
    at = rng.randint(1, len(factors) - 1)
    return [math.prod(factors[:at]), math.prod(factors[at:])]


def _dims(splits: dict[str, list[int]], axes: dict[str, int], rank: int, rng: random.Random) -> list[tuple[AxisRef, ...]]:
    parts: list[AxisRef] = []
    for name, sizes in splits.items():
        if len(sizes) == 1 or rng.random() < 0.3:
            parts.append(AxisRef(name))
            continue
        parts += [AxisRef(name, 1, sizes[0]), AxisRef(name, *sizes)]
    rng.shuffle(parts)
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    for part in parts:
        dim = rng.choice(dims)
        if rng.random() < 0.7:
            follows = dim and dim[-1].name == part.name and dim[-1].next_pre_size == part.pre_size
            dim[len(dim) - 1 if follows else len(dim) :] = [AxisRef(part.name)] if follows else [part]
    return [tuple(dim) for dim in dims]


def jaxlib_steps(reshards: Sequence[Reshard]) -> list[list[str] | None]:
    """The collectives that jaxlib makes of each reshard, as `texts` gives them; None where it reports an error."""
    try:
        module = run_pipeline(
            "".join(r.function(i) for i, r in enumerate(reshards)), "builtin.module(func.func(sdy-reshard-to-collectives))"
        )
    except ir.MLIRError:
        if len(reshards) == 1:
            return [None]
        half = len(reshards) // 2
        return [*jaxlib_steps(reshards[:half]), *jaxlib_steps(reshards[half:])]
    found: list[list[str] | None] = []
    for line in str(module).splitlines():
        op = _OP.search(line)
        if "func.func" in line:
            found.append([])
        elif op is not None:
            last = found[-1]
            assert last is not None
            last.append(f"{op[1]} {re.sub(r'%[a-z0-9]+ ', '', op[2])}".replace(f"@_{len(found) - 1}_", "@"))
    return found


def texts(steps: Sequence[CollectiveStep]) -> list[str]:
    """The steps as ops without values and types."""
    found: list[str] = []
    for step in steps:
        axes = f"{AllToAllParamList(step.moves)} " if step.moves else f"{ListOfAxisRefLists(step.axes)} " if step.axes else ""
        found.append(f"{step.kind} {axes}out_sharding={step.result.text(short=True)}")
    return found
