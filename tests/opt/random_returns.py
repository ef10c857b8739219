"""Writes random functions that return arguments, constraints and what barriers pass on, some of them more than once, as text."""

from __future__ import annotations

import random

_PIECES = ('"row"', '"col"', '"deep":(1)2', '"deep":(2)2')
_TYPE = "tensor<16x16xf32>"


def returns(seed: int) -> str:
    """A module with one function without dead ops."""
    source = random.Random(seed)
    values = [f"%x{i}" for i in range(source.randint(1, 2))]
    arguments = ", ".join(f"{value}: {_TYPE}{_attribute(source)}" for value in values)
    lines: list[str] = []
    unused: list[str] = []
    for i in range(source.choice((0, 0, 1, 2, 4))):
        operands = [source.choice(values) for _ in range(2)]
        kind = source.choice(("negate", "add", "constraint"))
        sharding = _sharding(source)
        if kind == "constraint" and sharding:
            lines.append(f"%v{i} = sdy.sharding_constraint {operands[0]} {sharding} : {_TYPE}")
        elif kind == "add":
            lines.append(f"%v{i} = stablehlo.add {operands[0]}, {operands[1]} : {_TYPE}")
        else:
            lines.append(f"%v{i} = stablehlo.negate {operands[0]} : {_TYPE}")
        unused = [value for value in unused if value not in operands] + [f"%v{i}"]
        values.append(f"%v{i}")
    if source.random() < 0.3:
        operands = [source.choice(values) for _ in range(2)]
        lines.append(f"%b:2 = stablehlo.optimization_barrier {operands[0]}, {operands[1]} : {_TYPE}, {_TYPE}")
        unused = [value for value in unused if value not in operands] + ["%b#0", "%b#1"]
        values += ["%b#0", "%b#1"]
    returned = unused + [source.choice(values) for _ in range(source.choice((0, 1, 2)) or not unused)]
    source.shuffle(returned)
    results = ", ".join(f"{_TYPE}{_attribute(source)}" for _ in returned)
    end = f"return {', '.join(returned)} : {', '.join(_TYPE for _ in returned)}"
    mesh = 'sdy.mesh @mesh = <["row"=2, "col"=2, "deep"=4]>'
    return "\n".join((mesh, f"func.func @main({arguments}) -> ({results}) {{", *lines, end, "}"))


def _sharding(source: random.Random) -> str:
    if source.random() < 0.15:
        return ""
    dims: list[list[str]] = [[], []]
    for piece in source.sample(_PIECES, len(_PIECES)):
        dim = source.choice(dims)
        if source.random() < 0.35 and not (dim and dim[-1].endswith("(1)2") and piece.endswith("(2)2")):
            dim.append(piece)
    return f"<@mesh, [{', '.join('{' + ', '.join([*dim, '?'] if source.random() < 0.6 else dim) + '}' for dim in dims)}]>"


def _attribute(source: random.Random) -> str:
    sharding = _sharding(source)
    return f" {{sdy.sharding = #sdy.sharding{sharding}}}" if sharding else ""
