"""The collectives of a reshard are those that jaxlib chooses, and lead from one sharding to the other."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.errors import DialectError
from shardy_py.ir import TensorType
from shardy_py.ir.types import local_bytes
from shardy_py.opt.from_mlir import parse_module
from shardy_py.passes.export.collective_bytes import received, reshard_bytes
from shardy_py.passes.export.collective_steps import collectives_for
from tests.passes.export.reshards import Reshard, jaxlib_steps, random_reshard, texts
from tests.reference import NEEDS_SAME_SHARDY

POWERS_OF_TWO = (2, 4, 8)
MIXED = (1, 2, 3, 4, 5, 6, 8, 12)
MESHES = {
    "m": Mesh([("x", 4), ("y", 2), ("z", 3)]),
    "turned": Mesh([("x", 4), ("y", 2), ("z", 3)], reversed(range(24))),
    "other": Mesh([("x", 4), ("y", 6)]),
}


def steps_of(source: str | None, target: str, shape: tuple[int, ...] = (24, 24)) -> list[str]:
    """The steps as text; shardings are without `#sdy.sharding<` and `>`."""
    before = None if source is None else TensorSharding.parse(f"<{source}>")
    steps = collectives_for(before, TensorSharding.parse(f"<{target}>"), shape, MESHES)
    return [text.replace("out_sharding=", "-> ") for text in texts(steps)]


def check_arithmetic(reshard: Reshard) -> None:
    """MLIR takes each step on the outcome of the one before, and the last one ends in the target."""
    steps = reshard.steps(complete=True)
    parse_module(reshard.function_of(steps))
    assert (steps[-1].result if steps else reshard.source).is_equivalent(reshard.target)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ('@m, [{"x"}, {}]', '@m, [{"x", ?}p1, {}], replicated={"y"}', []),
        (None, '@m, [{"x"}, {"y"}]', ['all_slice [{"x"}, {"y"}] -> <@m, [{"x"}, {"y"}]>']),
        ('@m, [{"x"}, {}]', "@other, [{}, {}]", ['all_gather [{"x"}, {}] -> <@m, [{}, {}]>']),
        ('@m, [{"x"}, {}]', '@m, [{}, {"x"}]', ['all_to_all [{"x"}: 0->1] -> <@m, [{}, {"x"}]>']),
        ('@m, [{"x"}, {"y"}]', '@turned, [{"x"}, {"y"}]', ['collective_permute -> <@turned, [{"x"}, {"y"}]>']),
        (
            '@m, [{"x"}, {"y"}]',
            '@m, [{"y"}, {"x"}]',
            ['collective_permute -> <@m, [{"y", "x":(2)2}, {"x":(1)2}]>', 'all_to_all [{"x":(2)2}: 0->1] -> <@m, [{"y"}, {"x"}]>'],
        ),
        (
            '@m, [{"x"}, {}], unreduced={"y"}',
            '@m, [{}, {}], unreduced={"y"}',
            ['all_gather [{"x"}, {}] -> <@m, [{}, {}], unreduced={"y"}>'],
        ),
    ],
)
def test_examples(source: str | None, target: str, expected: list[str]) -> None:
    assert steps_of(source, target) == expected


def test_sub_axes_that_cannot_coexist_are_gathered_and_sliced() -> None:
    meshes = {"m": Mesh([("x", 6)])}
    source, target = (TensorSharding.parse(f"<@m, [{{{axis}}}]>") for axis in ('"x":(1)2', '"x":(1)3'))
    assert [step.kind for step in collectives_for(source, target, (6,), meshes)] == ["all_gather", "all_slice"]


def test_steps_are_remembered() -> None:
    source, target = TensorSharding("m", [["x"], []]), TensorSharding("m", [[], ["x"]])
    assert collectives_for(source, target, (8, 8), MESHES) is collectives_for(source, target, [8, 8], MESHES)


def test_errors() -> None:
    with pytest.raises(DialectError, match="meshes with different axes"):
        steps_of('@m, [{"x"}, {}]', '@other, [{"x"}, {}]')
    with pytest.raises(DialectError, match="different rank"):
        steps_of('@m, [{"x"}, {}]', '@m, [{"x"}]')


def test_bytes_of_a_reshard_add_up_over_its_collectives() -> None:
    meshes = {"m": Mesh({"x": 2, "z": 4})}
    type_ = TensorType((64, 64), "bfloat16")
    source, target = TensorSharding("m", [["x"], ["z"]]), TensorSharding("m", [["z"], []])
    total, current = 0, source
    for step in collectives_for(source, target, type_.shape, meshes):
        axes = [axis for dim in step.axes for axis in dim] + [axis for move in step.moves for axis in move.axes]
        group = math.prod(axis.size_in(meshes["m"]) for axis in axes) if axes else meshes["m"].size
        total += received(step.kind, group, *(local_bytes(type_, sharding, meshes) for sharding in (current, step.result)))
        current = step.result
    assert reshard_bytes(source, target, type_, meshes) == total > 0
    assert reshard_bytes(None, target, type_, meshes) == 0


@NEEDS_SAME_SHARDY
@pytest.mark.parametrize("sizes", [POWERS_OF_TWO, MIXED])
@pytest.mark.parametrize("count", [100, pytest.param(3_000, marks=pytest.mark.slow)])
def test_steps_are_those_of_jaxlib(sizes: tuple[int, ...], count: int) -> None:
    rng = random.Random(f"{sizes} {count}")
    for start in range(0, count, 100):
        reshards = [random_reshard(rng, sizes) for _ in range(min(100, count - start))]
        for reshard, expected in zip(reshards, jaxlib_steps(reshards), strict=True):
            assert expected is None or texts(reshard.steps()) == expected, reshard


@settings(max_examples=200)
@given(rng=st.randoms(use_true_random=False), sizes=st.sampled_from([POWERS_OF_TWO, MIXED]))
def test_steps_lead_to_the_target(rng: random.Random, sizes: tuple[int, ...]) -> None:
    check_arithmetic(random_reshard(rng, sizes))


@settings(max_examples=100)
@given(rng=st.randoms(use_true_random=False))
def test_nothing_is_missing_with_powers_of_two(rng: random.Random) -> None:
    reshard = random_reshard(rng, POWERS_OF_TWO)
    assert reshard.steps() == reshard.steps(complete=True)
