"""Compiling the programs of a pipeline for the meshes of their stages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Var

from shardy_py.api import auto_shard
from shardy_py.facade import Plan
from shardy_py.pipelines.jaxprs import dtype_of, shape_of, struct_of
from shardy_py.pipelines.placing import Places
from shardy_py.pipelines.programs import Program


class Compiling:
    """A program with everything its compilation needs: mesh, shardings, types."""

    def __init__(self, program: Program, places: Places) -> None:
        stage = program.stage
        self.program = program
        self.mesh = places.mesh(stage)
        self.planner = places.planner
        self.ins = tuple(places.sharding(v, stage) for v in (*program.inputs, *program.sums))
        self.outs = tuple(places.sharding(v, stage) for v in (*program.outputs, *program.sums, *program.resets))
        self.structs = [struct_of(v) for v in (*program.inputs, *program.sums)]

    def whole(self, donate: Sequence[int]) -> Any:
        """The program for its mesh; takes and gives arrays."""
        if self.mesh.size == 1:
            return _jitted(self.program.function(), self.ins, self.outs, donate).lower(*self.structs).compile()
        return self._sharded(self._lowering, donate).lower(*self.structs).compile()

    def plan(self) -> Plan:
        """The plan of the program for its mesh, which has several devices."""
        return self._sharded(self._lowering, ()).plan(*self.structs)

    @property
    def _lowering(self) -> str:
        # Under "jit" XLA adds up what devices have of a sum, each time.
        waits = self.program.stands and self.program.sums
        return "shard_map" if waits else "jit"

    def _sharded(self, lowering: Any, donate: Sequence[int]) -> Any:
        function = self.program.function()
        function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(f"x{i}", inspect.Parameter.POSITIONAL_ONLY) for i in range(len(self.ins))]
        )
        return auto_shard(
            function, mesh=self.mesh, in_shardings=self.ins or None, out_shardings=self.outs, donate_argnums=tuple(donate) or None,
            lowering=lowering, planner=self.planner,
        )  # fmt: skip


def _jitted(function: Callable[..., Any], ins: Any, outs: Any, donate: Sequence[int]) -> Any:
    return jax.jit(function, in_shardings=ins, out_shardings=outs, donate_argnums=tuple(donate), keep_unused=True)


def donatable(program: Program, candidates: Sequence[int], places: Places) -> list[int]:
    """The operands whose memory results can take: for each a result of its type and sharding, which no operand before it takes."""

    def layout(v: Var) -> tuple[Any, ...]:
        return shape_of(v), dtype_of(v), places.sharding(v, program.stage)

    free = [layout(v) for v in (*program.outputs, *program.resets)]
    donated: list[int] = []
    for i in candidates:
        if (output_layout := layout(program.inputs[i])) in free:
            free.remove(output_layout)
            donated.append(i)
    return donated


def compile_program(program: Program, places: Places, donate: Sequence[int]) -> Any:
    """The compiled program on the mesh of its stage."""
    return Compiling(program, places).whole(donate)
