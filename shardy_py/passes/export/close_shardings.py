"""Closes all dimensions of all shardings, and drops replicated axes, which mean nothing any more."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.ir import Program, TensorType, Type
from shardy_py.passes.base import Pass
from shardy_py.passes.propagation.log import Log
from shardy_py.passes.walk import blocks_of


@dataclass(frozen=True, kw_only=True)
class CloseShardings(Pass):
    """Closes all dimensions of all shardings.

    Attributes:
        every_value: Also gives each tensor without a sharding the replicated one. This needs a program with exactly one mesh that is
            not empty or a single device; otherwise such values stay as they are.
    """

    name = "sdy-close-shardings"

    every_value: bool = False

    def run(self, program: Program, log: Log | None = None) -> None:
        """Replaces every sharding by its closed form.

        Source: Shardy's close_shardings.cc.
        """
        closed = _Closed()
        replicated = _Replicated(_single_mesh(program.meshes) if self.every_value else None)

        def final(sharding: TensorSharding | None, type_: Type) -> TensorSharding | None:
            if sharding is not None:
                return closed[sharding]
            return replicated[type_.rank] if isinstance(type_, TensorType) else None

        for function in program.functions:
            function.result_shardings = list(map(final, function.result_shardings, function.result_types))
        for block in blocks_of(program):
            for argument in block.arguments:
                argument.sharding = final(argument.sharding, argument.type)
            for op in block.ops:
                for result in op.results:
                    sharding = result.sharding
                    if sharding is not None:
                        result.sharding = closed[sharding]
                    elif result.type.rank or type(result.type) is TensorType:
                        result.sharding = replicated[result.type.rank]
                if op.regions and (op.attributes.get("in_shardings") or op.attributes.get("out_shardings")):
                    op.attributes = {
                        name: tuple(closed[sharding] for sharding in value) if name in _COMPUTATION_SHARDINGS and value else value
                        for name, value in op.attributes.items()
                    }


_COMPUTATION_SHARDINGS = frozenset(("in_shardings", "out_shardings"))


class _Closed(dict[TensorSharding, TensorSharding]):
    """Sharding -> its closed form, computed once."""

    def __missing__(self, sharding: TensorSharding) -> TensorSharding:
        closed = self[sharding] = sharding.closed_like()
        return closed


class _Replicated(dict[int, "TensorSharding | None"]):
    """Rank -> the replicated sharding over a mesh, or None where there is no mesh."""

    def __init__(self, mesh: str | None) -> None:
        super().__init__()
        self.mesh = mesh

    def __missing__(self, rank: int) -> TensorSharding | None:
        replicated = self[rank] = None if self.mesh is None else TensorSharding.closed(self.mesh, rank)
        return replicated


def _single_mesh(meshes: dict[str, Mesh]) -> str | None:
    names = [name for name, mesh in meshes.items() if not mesh.is_empty and not mesh.is_maximal]
    return names[0] if len(names) == 1 else None
