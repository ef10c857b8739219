"""The whole pipeline, then explicit reshards and collectives, makes of a module what jaxlib makes of it, op by op."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

from benchmarks import gpt
from shardy_py.opt.from_mlir import from_mlir, parse_module
from shardy_py.opt.insert_explicit_reshards import InsertExplicitReshards
from shardy_py.opt.reshard_to_collectives import ReshardToCollectives
from shardy_py.opt.table import PropagationPipeline
from shardy_py.opt.to_mlir import to_mlir
from tests.opt.random_ops import function
from tests.passes.oracle import dump
from tests.passes.random_modules import module
from tests.random_programs import load, program_of_seed
from tests.reference import LEGALIZE_CHLO, SAME_SHARDY, lower, run_pipeline

PIPELINE = "builtin.module(sdy-propagation-pipeline)"
RESHARDS = "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))"
COLLECTIVES = RESHARDS.removesuffix(")") + ",func.func(sdy-reshard-to-collectives))"
NO_CONFLICTS = pytest.mark.filterwarnings("ignore::shardy_py.passes.propagation.rounds.ShardingGroupConflictWarning")


def check(text: str) -> int:
    """Runs both sides on a module; returns how many ops move data afterwards.

    jaxlib reports an error where a collective it made itself does not divide; then nothing is left to compare with.
    """
    program, reference = from_mlir(text, keep=True), parse_module(text)
    PropagationPipeline().run(program)
    run_pipeline(reference, PIPELINE)
    assert dump(program) == dump(from_mlir(reference, keep=True)), text
    if not SAME_SHARDY and re.search(r"stablehlo.reduce\(.*\), \(", text):
        return 1  # later reshards do not combine what has several results, such as an argmax
    InsertExplicitReshards(enable_full_version=True).run(program)
    if SAME_SHARDY:  # later collectives gather more than they have to
        ReshardToCollectives().run(program)
    try:
        run_pipeline(reference, COLLECTIVES if SAME_SHARDY else RESHARDS)
    except ir.MLIRError as error:
        if "doesn't match operand on dimension" not in str(error):
            raise
        return 0
    assert dump(program, uses=False) == dump(from_mlir(reference, keep=True), uses=False), text
    return sum(op.name.startswith("sdy.") and op.name != "sdy.constant" for function in program.functions for op in function.body.walk())


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)


def mlp_step(weights: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    return jax.value_and_grad(lambda w: jnp.mean(jnp.square(jax.nn.gelu(x @ w["up"]) @ w["down"])))(weights)


def recurrence(weight: jax.Array, x: jax.Array) -> jax.Array:
    return jax.grad(lambda w: lax.scan(lambda h, row: (jnp.tanh(h @ w + row), h.sum()), x[0], x)[0].sum())(weight)


def branches(i: jax.Array, x: jax.Array) -> jax.Array:
    y = lax.switch(i, [jnp.sin, lambda x: x.T.T, lambda x: jnp.where(x > 0, x, 0.0)], x)
    return lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (i, y))[1]


def lookups(table: jax.Array, indices: jax.Array) -> tuple[jax.Array, ...]:
    rows = jnp.take(table, indices, axis=0)
    return rows, table.at[indices].add(1.0), jnp.sort(table, 1), jnp.argmax(table, 0), jnp.cumsum(table, 1), lax.top_k(table, 2)[0]


def shared_calls(x: jax.Array, y: jax.Array) -> jax.Array:
    inner = jax.jit(lambda a: jax.nn.softmax(a) + jnp.var(a, 0))
    return inner(x) @ inner(x.T) + inner(y)


def randomness(key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    keep = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, x.shape)
    return jnp.where(keep, x, 0.0), jax.random.normal(jax.random.wrap_key_data(key), (8, 4))


def images(x: jax.Array, kernel: jax.Array) -> jax.Array:
    y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def decompositions(a: jax.Array, x: jax.Array) -> tuple[jax.Array, ...]:
    square = a @ a.T
    return jnp.linalg.cholesky(square), jnp.linalg.solve(square, a), jnp.fft.rfft(x), lax.top_k(x, 2)[0]


def approximate(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return lax.approx_max_k(x, 2)


PROGRAMS: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = [
    (mlp_step, ({"up": f32(8, 32), "down": f32(32, 8)}, f32(16, 8)), ({"up": P(None, "y"), "down": None}, P("x"))),
    (mlp_step, ({"up": f32(8, 32), "down": f32(32, 8)}, f32(16, 8)), ({"up": P("x"), "down": P("x", "y")}, P("y"))),
    (recurrence, (f32(8, 8), f32(4, 16, 8)), (P("y"), P(None, "x"))),
    (branches, (i32(), f32(8, 8)), (None, P("x", "y"))),
    (lookups, (f32(16, 8), i32(4)), (P("y", "x"), None)),
    (lookups, (f32(16, 8), i32(4)), (None, P("y"))),
    (shared_calls, (f32(8, 8), f32(8, 8)), (P("x"), P(None, "y"))),
    (randomness, (jax.ShapeDtypeStruct((2,), np.uint32), f32(8, 16)), (None, P("x", "y"))),
    (images, (f32(8, 8, 8, 4), f32(3, 3, 4, 8)), (P("x", "y"), P(None, None, None, "y"))),
    (decompositions, (f32(8, 8), f32(4, 16)), (P("x", "y"), P("x", "y"))),
    (approximate, (f32(8, 16),), (P("x"),)),
]


def bound(specs: Any) -> Any:
    """Specs as shardings on a mesh of 2 by 4 devices; None stays open."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P))


@pytest.mark.parametrize(("fun", "args", "specs"), PROGRAMS, ids=[f"{i}-{fun.__name__}" for i, (fun, *_) in enumerate(PROGRAMS)])
def test_jax_programs(fun: Callable[..., Any], args: tuple[Any, ...], specs: Any) -> None:
    check(str(run_pipeline(lower(fun, *args, in_shardings=bound(specs)), LEGALIZE_CHLO)))


@pytest.mark.parametrize("scanned", [False, True])
def test_training_step(scanned: bool) -> None:
    args, specs = gpt.arguments(2, 128, scanned=scanned)
    renamed = jax.tree.map(
        lambda spec: P(*({"data": "x", "model": "y"}.get(axis) for axis in spec)), specs, is_leaf=lambda leaf: isinstance(leaf, P)
    )
    assert check(str(run_pipeline(lower(gpt.train_step, *args, in_shardings=bound(renamed)), LEGALIZE_CHLO))) > 10


def test_random_jax_programs() -> None:
    for seed in range(12):
        loaded = load(program_of_seed(seed))
        lowered = lower(loaded.program, *loaded.arguments, in_shardings=loaded.in_shardings, out_shardings=loaded.out_shardings)
        check(str(run_pipeline(lowered, LEGALIZE_CHLO)))


@NO_CONFLICTS
@pytest.mark.parametrize("seeds", [range(10), range(80, 90)], ids=str)
def test_random_modules(seeds: range) -> None:
    assert sum(check(module(seed)) for seed in seeds) > 10
    assert sum(check(function(seed)) for seed in seeds) > 10


@NO_CONFLICTS
@pytest.mark.slow
def test_many_random_modules() -> None:
    for seed in range(20, 80):
        check(module(seed))
        check(function(seed))


def test_erases_a_dead_loop_whose_inside_is_dead_already() -> None:
    check(module(88))


def layers(count: int) -> str:
    """A chain of eight ops per layer with a constant of its own, every fourth with a call."""
    tensor = "tensor<64x64xf32>"
    arguments = (
        f'%x: {tensor} {{sdy.sharding = #sdy.sharding<@mesh, [{{"a", ?}}, {{?}}]>}}, '
        f'%w: {tensor} {{sdy.sharding = #sdy.sharding<@mesh, [{{?}}, {{"b", ?}}]>}}'
    )
    lines = [
        'sdy.mesh @mesh = <["a"=2, "b"=4]>',
        f"func.func private @f(%x: {tensor}) -> {tensor} {{ %0 = stablehlo.tanh %x : {tensor} return %0 : {tensor} }}",
        f"func.func @main({arguments}) -> {tensor} {{",
    ]
    last = "%x"
    for i in range(count):
        lines += [
            f"%a{i} = stablehlo.dot {last}, %w : ({tensor}, {tensor}) -> {tensor}",
            f"%b{i} = stablehlo.constant dense<1.0> : {tensor}",
            f"%c{i} = stablehlo.add %a{i}, %b{i} : {tensor}",
            f"%d{i} = stablehlo.transpose %c{i}, dims = [1, 0] : ({tensor}) -> {tensor}",
            f"%e{i} = stablehlo.reshape %d{i} : ({tensor}) -> tensor<4096xf32>",
            f"%f{i} = stablehlo.reshape %e{i} : (tensor<4096xf32>) -> {tensor}",
            f"%g{i} = stablehlo.multiply %f{i}, %a{i} : {tensor}",
            f"%h{i} = func.call @f(%g{i}) : ({tensor}) -> {tensor}" if i % 4 == 0 else f"%h{i} = stablehlo.tanh %g{i} : {tensor}",
        ]
        last = f"%h{i}"
    return "\n".join([*lines, f"return {last} : {tensor}", "}"])


def calls_made(count: int) -> int:
    """How many calls of Python functions it takes to read, propagate through and write a module of so many layers."""
    text, made = layers(count), 0

    def count_call(_: object, event: str, __: object) -> None:
        nonlocal made
        made += event == "call"

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        program = from_mlir(text, keep=True)
        PropagationPipeline().run(program)
        written = to_mlir(program, pretty=False)
    finally:
        sys.setprofile(before)
    assert written.count("stablehlo.dot") == count
    return made


def test_work_grows_with_the_number_of_ops() -> None:
    small, large = calls_made(125), calls_made(625)  # 1,000 and 5,000 ops
    assert large < 5.5 * small
