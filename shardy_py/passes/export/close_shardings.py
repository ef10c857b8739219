"""Closes all dimensions of all shardings, and drops replicated axes, which mean nothing any more."""

from __future__ import annotations

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.ir import Program, TensorType
from shardy_py.passes.walk import blocks_of

NAME = "sdy-close-shardings"


def run(program: Program, *, every_value: bool = False, **_: object) -> None:
    """Replaces every sharding by its closed form.

    Args:
        program: Changed in place.
        every_value: Also gives each tensor without a sharding the replicated one. This needs a program with exactly
            one mesh that is not empty or a single device; otherwise such values stay as they are.

    Source: Shardy's close_shardings.cc.
    """
    closed: dict[TensorSharding | None, TensorSharding | None] = _Closed()
    fill = _single_mesh(program.meshes) if every_value else None
    replicated: dict[int, TensorSharding] = {}

    for function in program.functions:
        function.result_shardings = [closed[sharding] for sharding in function.result_shardings]
    for block in blocks_of(program):
        values = block.arguments
        for argument in values:
            if argument.sharding is not None:
                argument.sharding = closed[argument.sharding]
        for op in block.ops:
            for result in op.results:
                if result.sharding is not None:
                    result.sharding = closed[result.sharding]
            if op.regions and (op.attributes.get("in_shardings") or op.attributes.get("out_shardings")):
                op.attributes = {
                    name: tuple(closed[sharding] for sharding in value) if name in _STATED and value else value
                    for name, value in op.attributes.items()
                }
    if fill is None:
        return

    def replicate(rank: int) -> TensorSharding:
        made = replicated[rank] = TensorSharding.closed(fill, rank)
        return made

    for function in program.functions:
        function.result_shardings = [
            sharding if sharding is not None or type(t) is not TensorType else replicated.get(t.rank) or replicate(t.rank)
            for sharding, t in zip(function.result_shardings, function.result_types, strict=True)
        ]
    for block in blocks_of(program):
        for argument in block.arguments:
            if argument.sharding is None and type(argument.type) is TensorType:
                argument.sharding = replicated.get(argument.type.rank) or replicate(argument.type.rank)
        for op in block.ops:
            for result in op.results:
                if result.sharding is None and type(result.type) is TensorType:
                    result.sharding = replicated.get(result.type.rank) or replicate(result.type.rank)


_STATED = frozenset(("in_shardings", "out_shardings"))


class _Closed(dict["TensorSharding | None", "TensorSharding | None"]):
    """Sharding -> its closed form, computed once."""

    def __missing__(self, sharding: TensorSharding | None) -> TensorSharding | None:
        made = self[sharding] = None if sharding is None else sharding.closed_like()
        return made


def _single_mesh(meshes: dict[str, Mesh]) -> str | None:
    names = [name for name, mesh in meshes.items() if not mesh.is_empty and not mesh.is_maximal]
    return names[0] if len(names) == 1 else None
