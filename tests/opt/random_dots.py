"""Writes random dots whose result is wanted with the axes that are summed over, as text."""

from __future__ import annotations

import random

_PIECES = ('"x"', '"y"', '"z":(1)2', '"z":(2)2', '"w"')


def dot(seed: int) -> str:
    """A module with one `dot_general`, and shardings of its operands that mostly agree; one in five has disagreeing operands."""
    source = random.Random(seed)
    batch, left, right, summed = (source.choice(counts) for counts in ((0, 1, 1, 2), (0, 1, 1), (0, 1, 1), (1, 1, 2)))
    factors = [("batch", i) for i in range(batch)] + [("left", i) for i in range(left)] + [("right", i) for i in range(right)]
    factors += [("summed", i) for i in range(summed)]
    sizes = {factor: source.choice((1, 2, 4, 8, 16, 32)) for factor in factors}
    axes: dict[tuple[str, int], list[str]] = {factor: [] for factor in factors}
    for piece in source.sample(_PIECES, len(_PIECES)):
        if source.random() < 0.8:
            axes[source.choice(factors)].append(piece)
    groups = [[factor for factor in factors if factor[0] in kinds] for kinds in (("batch", "left", "summed"), ("batch", "right", "summed"))]
    result = [factor for factor in factors if factor[0] != "summed"]
    wanted = dict(axes)
    if result:
        reduced = [piece for factor in factors if factor[0] == "summed" for piece in axes[factor]]
        source.shuffle(reduced) if source.random() < 0.2 else None
        wanted[source.choice(result)] = reduced
    other = dict(axes)
    if source.random() < 0.2:
        other[source.choice(groups[1])] = []
    tensors = [(groups[0], axes), (groups[1], other), (result, wanted)]
    types = [f"tensor<{''.join(f'{sizes[factor]}x' for factor in dims)}f32>" for dims, _ in tensors]
    shardings = [f"<@mesh, [{', '.join('{' + ', '.join(_merged(stated[factor])) + '}' for factor in dims)}]>" for dims, stated in tensors]
    arguments = ", ".join(f"%{i}: {types[i]} {{sdy.sharding = #sdy.sharding{shardings[i]}}}" for i in range(2))
    places = [[dims.index(("summed", i)) for i in range(summed)] for dims in groups]
    numbers = f"batching_dims = {list(range(batch))} x {list(range(batch))}, contracting_dims = {places[0]} x {places[1]}"
    return f"""sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4, "w"=3]>
func.func @main({arguments}) -> {types[2]} {{
  %2 = stablehlo.dot_general %0, %1, {numbers} {{sdy.sharding = #sdy.sharding_per_value<[{shardings[2]}]>}} : ({types[0]}, {types[1]}) -> {types[2]}
  return %2 : {types[2]}
}}"""  # noqa: E501


def _merged(pieces: list[str]) -> list[str]:
    """Axes of one dimension, where two parts of `z` that follow each other are all of it."""
    text = ", ".join(pieces).replace('"z":(1)2, "z":(2)2', '"z"')
    return text.split(", ") if text else []
