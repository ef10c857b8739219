"""A module after jaxlib's own passes, and a text of a program that shows all that the passes may change."""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir, passmanager

from shardy_py.ir import Block, Op, Program, Value
from shardy_py.opt.from_mlir import from_mlir, parse_module
from tests.reference import SAME_SHARDY

SHARED = pathlib.Path(os.environ.get("SHARDY_SHARED", pathlib.Path(__file__).resolve().parents[3] / "shared"))


def jaxlib_program(text: str, pipeline: str) -> Program:
    """Runs passes of jaxlib on a module and reads the outcome; uses are in the order in which MLIR has them."""
    module = parse_module(text)
    with module.context:
        passmanager.PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
    return from_mlir(module)


def jaxlib_text(text: str, pipeline: str) -> str:
    """Runs passes of jaxlib on a module and prints the outcome; a ValueError where they refuse the module."""
    module = parse_module(text)
    if not SAME_SHARDY:  # it runs on modules there
        pipeline = pipeline.replace("func.func(sdy-pad-for-divisibility)", "sdy-pad-for-divisibility")
    with module.context:
        try:
            passmanager.PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
        except ir.MLIRError as error:
            raise ValueError(str(error)) from None
    return str(module)


def dump(program: Program, *, uses: bool = True) -> str:
    """Text of a program: ops in order, attributes, shardings and, for every value, its uses in order."""
    lines: list[str] = [f"mesh {name} = {mesh}" for name, mesh in program.meshes.items()]
    for function in program.functions:
        numbers: dict[Value, str] = {}
        places: dict[Op, int] = {op: i for i, op in enumerate(function.body.walk())}
        attributes = {k: v for k, v in sorted(function.attributes.items()) if v is not None}
        lines.append(f"{function.visibility} {function.name} {attributes}")
        _dump_block(function.body, "  ", numbers, places, lines, uses)
        lines.append(f"  results {list(map(str, function.result_shardings))}")
    return "\n".join(lines)


def _dump_block(block: Block, indent: str, numbers: dict[Value, str], places: dict[Op, int], lines: list[str], uses: bool) -> None:
    for value in block.arguments:
        lines.append(f"{indent}{_value(value, numbers, places, uses)}")
    for op in block.ops:
        assert op.block is block, f"{op} stands in {block} but says {op.block}"
        operands = ", ".join(numbers.get(operand, "?") for operand in op.operands)
        attributes = {k: v for k, v in sorted(op.attributes.items()) if v is not None and k != "value"}
        lines.append(f"{indent}{places[op]}: {op.name}({operands}) {_plain(attributes)}")
        for region in op.regions:
            assert region.parent is op
            _dump_block(region, indent + "    ", numbers, places, lines, uses)
        for value in op.results:
            lines.append(f"{indent}  {_value(value, numbers, places, uses)}")


def _value(value: Value, numbers: dict[Value, str], places: dict[Op, int], uses: bool) -> str:
    numbers[value] = f"%{len(numbers)}"
    for op, i in value.uses:
        assert op.operands[i] is value
    found = [(places[op], i) for op, i in value.uses] if uses else []
    if not value.type.rank:
        found.sort()  # nothing propagates through scalars, so the order of their uses does not matter
    used = [f"{place}.{i}" for place, i in found]
    return f"{numbers[value]}: {value.type} {value.sharding or ''} <- {' '.join(used)}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else str(value)


def corpus(name: str) -> Iterator[dict[str, Any]]:
    """The golden cases of a pass; none where there is no corpus."""
    path = SHARED / "corpus" / f"{name}.jsonl"
    if path.exists():
        for line in path.read_text().splitlines():
            yield json.loads(line)


def options_of(pipeline: str) -> dict[str, bool]:
    """The boolean options in the text of a pipeline."""
    return {name.replace("-", "_"): value == "true" for name, value in re.findall(r"([a-z-]+)=(true|false)", pipeline)}
