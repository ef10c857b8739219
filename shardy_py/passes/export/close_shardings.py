"""Final shardings: closed, without replicated axes, which mean nothing any more; and ops without rules."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from shardy_py.dialect import TensorSharding
from shardy_py.ir import Program, TensorType, Type
from shardy_py.passes.base import FUNCTION, Pass
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
        names = [name for name, mesh in program.meshes.items() if not mesh.is_empty and not mesh.is_maximal]
        mesh = names[0] if self.every_value and len(names) == 1 else None

        @functools.cache
        def final(sharding: TensorSharding | None, type_: Type) -> TensorSharding | None:
            if sharding is not None:
                return sharding.closed_like()
            return TensorSharding.closed(mesh, type_.rank) if mesh is not None and isinstance(type_, TensorType) else None

        for function in program.functions:
            function.result_shardings = list(map(final, function.result_shardings, function.result_types))
        for block in blocks_of(program):
            for argument in block.arguments:
                argument.sharding = final(argument.sharding, argument.type)
            for op in block.ops:
                for result in op.results:
                    result.sharding = final(result.sharding, result.type)
                if op.regions and (op.attributes.get("in_shardings") or op.attributes.get("out_shardings")):
                    op.attributes = {
                        name: tuple(sharding.closed_like() for sharding in value) if name in _COMPUTATION_SHARDINGS and value else value
                        for name, value in op.attributes.items()
                    }


_COMPUTATION_SHARDINGS = frozenset(("in_shardings", "out_shardings"))


@dataclass(frozen=True, kw_only=True)
class DropShardingRules(Pass):
    """Removes sharding rules, except custom ones."""

    name = "sdy-drop-sharding-rules"
    anchor = FUNCTION

    def run(self, program: Program, log: Log | None = None) -> None:
        """Removes the rules that the op determines; a custom one stays. Source: Shardy's drop_sharding_rules.cc."""
        for block in blocks_of(program):
            for op in block.ops:
                if op.rule is None or not op.rule.is_custom:
                    op.rule, op.rule_decided = None, False
