"""Compiling the programs of a pipeline: for the mesh of a stage, or for each of its devices."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
from jax.extend.core import ClosedJaxpr, Var, jaxpr_as_fun
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from shardy_py.api import auto_shard
from shardy_py.facade import Plan
from shardy_py.frontends.context import device_platform
from shardy_py.stages.jaxprs import dtype_of, shape_of, struct_of
from shardy_py.stages.run.buffers import PartialSums
from shardy_py.stages.run.placing import Places
from shardy_py.stages.run.programs import Program
from shardy_py.stages.run.shards import DeviceCalls, devices_of

MOST_APART = 4
"""Devices of a stage up to which each is handed its own program: it is compiled for each of them. This serves CPU devices, which compute
on the cores that JAX needs for starting a program on all of them at once; see docs/stages.md."""


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
        waits = any(isinstance(stand, PartialSums) for stand in self.program.stands.values()) and self.program.sums
        return "shard_map" if waits else "jit"

    @functools.cached_property
    def per_device(self) -> tuple[ClosedJaxpr, ...] | None:
        """The program of every device by itself; None where devices exchange data, or are better given one program together."""
        if not 1 < self.mesh.size <= MOST_APART or not self.ins or device_platform(devices_of(self.mesh)[0]) != "cpu":
            return None
        traced = self._sharded("shard_map", ()).trace(*self.structs)
        plan = traced.plan()
        planned = zip((*jax.tree.leaves(plan.input_shardings), *jax.tree.leaves(plan.output_shardings)), (*plan.inputs, *plan.outputs))
        same = all(at.is_equivalent_to(here, len(v.shape)) for at, (here, v) in zip((*self.ins, *self.outs), planned, strict=True))
        return traced.per_device() if same else None

    def apart(self, donate: Sequence[int]) -> DeviceCalls:
        """The program for every device; takes and gives tuples of shards."""
        assert self.per_device is not None
        here = NamedSharding(AbstractMesh((1,), ("device",)), PartitionSpec())
        lowered: dict[int, Any] = {}
        calls: list[Any] = []
        for device, closed in zip(devices_of(self.mesh), self.per_device, strict=True):
            program = lowered.get(id(closed))
            if program is None:
                function = _named(closed, self.program.name)
                structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in cast(Any, closed).in_avals]
                traced = _jitted(function, here, here, donate).trace(*structs)
                program = lowered[id(closed)] = traced.lower(lowering_platforms=(device_platform(device),))
            calls.append(program.compile(device_assignment=(device,)))
        return DeviceCalls(tuple(calls))

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


def _named(closed: ClosedJaxpr, name: str) -> Callable[..., list[Any]]:
    run = jaxpr_as_fun(closed)

    def function(*args: Any) -> list[Any]:
        return run(*args)

    function.__name__ = function.__qualname__ = name
    return function


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
