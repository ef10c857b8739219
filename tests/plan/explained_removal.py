"""Takes annotations out of the text of a random program, as explanations name them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

import shardy_py
from shardy_py.facade import Plan
from shardy_py.plan.values import PlannedValue
from tests.random_programs import load

End = tuple[str, str]
"""Name and place of an annotation: `file:line`, or the path of the annotated input or output."""

_JIT = re.compile(r"(\s*\w+ = jax\.jit\(\w+), in_shardings=.*\)$")
_OF_JIT = re.compile(r"(in|out)_shardings of jit ")
_CALL = re.compile(r"\s*[\w, ]+ = (\w+)\(")
_CONSTRAINT = re.compile(r"constrain\((\w+), (P\(.*\))\)$")


class Elsewhere(Exception):
    """An annotation that cannot be taken out of the text: the specs of a shard_map, or one on another line.

    JAX gives the ops of a derivative rule the line of the call, on which no annotation stands.
    """


def planned(text: str, without: Iterable[End] = ()) -> Plan:
    """The plan of a program without some of its annotations."""
    lines = text.splitlines()
    paths = set()
    for said, where in without:
        file, _, line = where.rpartition(":")
        if file != "<random program>":
            paths.add((said, where))
        elif said == "with_sharding_constraint":
            lines[int(line) - 1], count = _CONSTRAINT.subn(r"\1", lines[int(line) - 1])
            if not count:
                raise Elsewhere(where)
        elif said.endswith("of shard_map"):
            raise Elsewhere(where)  # a shard_map without its specs is another program
        else:
            assert _OF_JIT.match(said), said
            match = _CALL.match(lines[int(line) - 1])
            assert match is not None, lines[int(line) - 1]
            at = next(n for n in reversed(range(int(line))) if lines[n].strip().startswith(f"{match[1]} = jax.jit("))
            lines[at] = _JIT.sub(r"\1)", lines[at])
    # So that each constraint has a line of its own, not that of the function that makes it.
    lines = [_CONSTRAINT.sub(r"lax.with_sharding_constraint(\1, NamedSharding(mesh, \2))", line) for line in lines]
    loaded = load("\n".join(lines))
    names = inspect.signature(loaded.program).parameters
    ins = tuple(None if ("in_shardings", name) in paths else s for name, s in zip(names, loaded.in_shardings, strict=True))
    outs = tuple(None if ("out_shardings", f"result[{i}]") in paths else s for i, s in enumerate(loaded.out_shardings))
    return shardy_py.auto_shard(loaded.program, mesh=loaded.mesh, in_shardings=ins, out_shardings=outs).plan(*loaded.arguments)


def compared(first: Plan, second: Plan) -> list[tuple[PlannedValue, PlannedValue]]:
    """The values of a plan with those of a plan of the same program with fewer annotations."""
    pairs = [*zip(first.inputs, second.inputs, strict=True), *zip(first.outputs, second.outputs, strict=True)]
    a, b = ([p for v, p in plan.intermediates if v.defining_op is None or v.defining_op.name != "sdy.reshard"] for plan in (first, second))
    if [(p.location, p.primitive, p.type) for p in a] == [(p.location, p.primitive, p.type) for p in b]:
        pairs += zip(a, b, strict=True)
    return pairs


def has(value: PlannedValue, dim: int, axis: str) -> bool:
    """Whether a dimension of a value has an axis or a part of it."""
    return value.sharding is not None and any(a.name == axis for a in value.sharding.dims[dim].axes)
