"""Tables of prices of many joint layouts against those of one each, for every kind of op of some programs under random layouts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shardy_py as sp
from shardy_py.cost.hardware_table import hardware
from shardy_py.cost.traffic import Access, Fusion
from shardy_py.dialect import AxisRef, Mesh
from shardy_py.partition.layouts import Layout, parts
from shardy_py.partition.op import OpSpec, spec_of
from shardy_py.partition.price import Machine
from shardy_py.partition.tables import price_table
from tests.partition.test_price import price

MACHINES = (
    Machine(Mesh([("x", 16), ("y", 16)]), hardware("v5e")),
    Machine(Mesh([("x", 2), ("y", 6), ("z", 4)]), hardware("h100"), {"x": "network"}),
)
ROWS = 30


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def attention(x: jax.Array, ws: jax.Array) -> jax.Array:
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        query, key, value = jnp.einsum("btd,cdhk->cbhtk", x, w)
        scores = jax.nn.softmax(jnp.einsum("bhtk,bhsk->bhts", query, key), axis=-1)
        return x + jnp.einsum("bhts,bhsk->bthk", scores, value).reshape(x.shape), None

    return jnp.sum(lax.scan(layer, x, ws)[0] ** 2)


def images(x: jax.Array, k: jax.Array, grouped: jax.Array) -> jax.Array:
    names = ("NHWC", "HWIO", "NHWC")
    y = jnp.tanh(lax.conv_general_dilated(x, k, (2, 1), "SAME", dimension_numbers=names))
    y = lax.conv_general_dilated(y, grouped, (1, 1), "VALID", dimension_numbers=names, feature_group_count=48)
    return jnp.sum(lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") ** 2)


def indexing(x: jax.Array, rows: jax.Array, at: jax.Array, update: jax.Array) -> Any:
    taken = x[rows] * 2
    written = lax.dynamic_update_slice(x, update, (at[0], 0))
    padded = lax.pad(x, 0.0, ((1, 2, 1), (-1, 0, 0)))
    joined = jnp.concatenate([x, written[::2], jnp.flip(x, 0)], axis=0)
    return taken, written.at[rows].add(taken), padded, joined[5::3, 1:4], jnp.cumsum(x, 0), lax.dynamic_slice(x, (at[0], 0), (1, 48))


def ordered(x: jax.Array) -> Any:
    return jnp.sort(x, axis=0), lax.top_k(x, 4), jnp.argmax(x, axis=1), jnp.fft.fft(x).real, jnp.linalg.inv(x[:48]), jnp.prod(x, axis=1)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "attention": (jax.grad(attention, (0, 1)), (f32(16, 32, 96), f32(3, 3, 96, 6, 16))),
    "images": (jax.grad(images, (0, 1, 2)), (f32(16, 24, 24, 16), f32(3, 3, 16, 48), f32(3, 3, 1, 48))),
    "indexing": (indexing, (f32(96, 48), i32(32), i32(1), f32(6, 48))),
    "ordered": (ordered, (f32(96, 48),)),
}


def kinds(name: str) -> list[tuple[OpSpec, tuple[Access, ...]]]:
    """The distinct ops of a program."""
    function, args = PROGRAMS[name]
    program = sp.auto_shard(function, mesh={"x": 2, "y": 2}, lowering="jit").plan(*args).program
    fusion = Fusion(program.main.body)
    ops = (op for op in program.walk() if not op.regions and op.results)
    return list(dict.fromkeys((spec_of(op), fusion.accesses(op)) for op in ops))


def draw(rank: int, mesh: Mesh, choose: random.Random) -> Layout:
    """A layout in which most axes, or the first part of some, cut some dimension."""
    dims: list[list[AxisRef]] = [[] for _ in range(rank)]
    for axis in mesh.axes:
        if rank and choose.random() < 0.7:
            cut = parts(AxisRef(axis.name), mesh)
            dims[choose.randrange(rank)] += cut[:1] if choose.random() < 0.2 else cut
    return tuple(map(tuple, dims))


def candidates(op: OpSpec, mesh: Mesh, choose: random.Random) -> tuple[Sequence[Sequence[Layout]], np.ndarray]:
    domains = tuple(tuple(dict.fromkeys(draw(type_.rank, mesh, choose) for _ in range(8))) for type_ in op.types)
    return domains, np.array([[choose.randrange(len(domain)) for _ in range(ROWS)] for domain in domains])


@pytest.mark.parametrize("machine", MACHINES, ids=["two axes", "three axes"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_entry_is_the_price_of_its_layouts(name: str, machine: Machine) -> None:
    choose = random.Random(f"{name} {machine.mesh}")
    for op, memory in kinds(name):
        domains, index = candidates(op, machine.mesh, choose)
        table = price_table(op, domains, index, machine, memory)
        for row, numbers in enumerate(index.T):
            layouts = [domain[i] for domain, i in zip(domains, numbers, strict=True)]
            one = price(op, layouts, machine, memory)
            assert table.seconds[row] == pytest.approx(one.seconds[0], rel=1e-12), (op, layouts)
            for own, every, alone in zip(numbers, table.reads, one.reads):
                assert (every is None) == (alone is None)
                if every is not None and alone is not None:
                    read = int(every.read[row])
                    assert every.targets[read] == alone.targets[0], (op, layouts)
                    assert [each for a, b, each in every.moves if (a, b) == (own, read)] == [each for *_, each in alone.moves], (
                        op,
                        layouts,
                    )


def test_layouts_of_another_number_of_values() -> None:
    op, memory = next((op, memory) for op, memory in kinds("ordered") if len(op.operands) == 1)
    rows: Sequence[tuple[Layout, ...]] = (((),),)
    with pytest.raises(ValueError, match="values"):
        price_table(op, rows, np.zeros((1, 1), int), MACHINES[0], memory)


def test_no_joint_layouts() -> None:
    op, memory = next((op, memory) for op, memory in kinds("attention") if op.name == "stablehlo.dot_general")
    domains = tuple((draw(type_.rank, MACHINES[0].mesh, random.Random(0)),) for type_ in op.types)
    table = price_table(op, domains, np.zeros((3, 0), int), MACHINES[0], memory)
    assert not table.seconds.size


def test_moves_are_those_that_joint_layouts_need() -> None:
    op, memory = next((op, memory) for op, memory in kinds("attention") if op.name == "stablehlo.dot_general")
    domains, index = candidates(op, MACHINES[0].mesh, random.Random(0))
    table = price_table(op, domains, index, MACHINES[0], memory)
    for own, reads in zip(index, table.reads):
        assert reads is not None
        assert {(a, b) for a, b, _ in reads.moves} <= set(zip(own.tolist(), reads.read.tolist()))
