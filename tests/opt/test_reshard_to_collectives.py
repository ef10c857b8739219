"""`sdy-reshard-to-collectives` does what jaxlib's does."""

from __future__ import annotations

from typing import Any

import pytest

from shardy_py.opt.from_mlir import from_mlir
from shardy_py.opt.reshard_to_collectives import ReshardToCollectives
from tests.passes.oracle import corpus, dump, jaxlib_program

MESHES = """
sdy.mesh @m = <["x"=2, "y"=2]>
sdy.mesh @other = <["x"=4]>
sdy.mesh @single = <[], device_ids=[0]>
"""
TYPE = "tensor<8x8xf32>"


def program(source: str, *targets: str) -> str:
    """A function that reshards its argument, and the outcome, and so on."""
    names = ["%x", *(f"%{i}" for i in range(len(targets)))]
    lines = [f"{names[i + 1]} = sdy.reshard {names[i]} <{target}> : {TYPE}" for i, target in enumerate(targets)]
    argument = f"%x: {TYPE} {{sdy.sharding = #sdy.sharding<{source}>}}" if source else f"%x: {TYPE}"
    body = "\n  ".join([*lines, f"return {names[-1]} : {TYPE}"])
    return f"{MESHES}func.func @main({argument}) -> {TYPE} {{\n  {body}\n}}"


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in corpus(ReshardToCollectives.name)])
def test_golden(case: dict[str, Any]) -> None:
    found = from_mlir(case["input"])
    ReshardToCollectives(keep_redundant_reshards="keep-redundant-reshards=true" in case["pipeline"]).run(found)
    assert dump(found, uses=False) == dump(from_mlir(case["output"]), uses=False)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        program("", '@m, [{"x"}, {}]', '@m, [{}, {"x"}]', "@m, [{}, {}]"),
        program('@m, [{"x"}, {}]', '@m, [{"x"}, {}]', '@m, [{"x", ?}, {"y"}]'),
        program('@m, [{"x"}, {}]', '@other, [{"x"}, {}]', "@m, [{}, {}]"),
        program("@single, []", '@m, [{"x"}, {}]'),
        program("@m, [{}, {}]", '@other, [{}, {"x":(1)2}]'),
    ],
)
def test_against_jaxlib(text: str, keep: bool) -> None:
    found = from_mlir(text)
    ReshardToCollectives(keep_redundant_reshards=keep).run(found)
    option = f"{{keep-redundant-reshards={str(keep).lower()}}}"
    assert dump(found, uses=False) == dump(jaxlib_program(text, f"func.func(sdy-reshard-to-collectives{option})"), uses=False)


def test_uses_are_kept_in_order() -> None:
    found = from_mlir(program('@m, [{"x"}, {}]', '@m, [{"x"}, {}]'))
    ReshardToCollectives().run(found)
    (use,) = found.main.arguments[0].uses
    assert use == (found.main.body.terminator, 0)
