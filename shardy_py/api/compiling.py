"""Compiles the program of a plan: for the devices of this process, or in a process of its own for TPUs that are elsewhere."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from shardy_py.api.meshes import Chip, MeshView
from shardy_py.api.partitioning import Planned
from shardy_py.api.running import CompiledCall
from shardy_py.backends.compiled_text import aliased_parameters, contents, cycles_by_line
from shardy_py.cost.hardware import Hardware
from shardy_py.cost.hardware_table import HARDWARE
from shardy_py.errors import ShardyError
from shardy_py.facade import Plan
from shardy_py.frontends.context import device_platform
from shardy_py.plan.compiled import CompiledCollective, CompiledProgram
from shardy_py.plan.memory.analysis import MemoryAnalysis, capacity_of, platform_of


class CompileError(ShardyError, RuntimeError):
    """A plan cannot be compiled: the topology is unknown, its compiler is not installed, or it failed.

    A program that is too large for the memory of a device is an answer, `CompiledProgram.fits`, and no error.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.sin, mesh={"data": 4}).plan(jnp.ones(8))
        >>> try:
        ...     compiled = plan.compile_for("h100:8")
        ... except sp.CompileError as error:
        ...     print(error.what)
        'h100:8' does not name a TPU topology
    """


_TOPOLOGY = re.compile(r"(\w+):\d+(x\d+)*")

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # the compiler's devices are no backend
    "TPU_SKIP_MDS_QUERY": "1",  # libtpu would wait for the metadata server of a TPU machine
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # its lock is for processes that share TPUs
    "TF_CPP_MIN_LOG_LEVEL": "2",
}

_DEVICES = {"v4": ("TPU v4", 2), "v5e": ("TPU v5 lite", 1), "v5p": ("TPU v5", 1), "v6e": ("TPU v6 lite", 1), "tpu7x": ("TPU7x", 2)}
"""Kind of chip -> what JAX calls its devices, and their number."""

_KINDS = ("argument", "output", "alias", "temp")
_LAST = 5
"""Lines of what a compiler said that an error has."""


def compiled(
    planned_for: Callable[[MeshView, str], Planned], view: MeshView, topology: str | None, hardware: str | Hardware | int | None
) -> CompiledProgram:
    """See `Plan.compile_for`.

    Args:
        planned_for: The plan for a mesh and a platform.
        view: The mesh that was planned for.
    """
    room = capacity_of(hardware)
    topology = topology or view.topology or None
    if topology is None:
        mesh = view.runnable()
        assert isinstance(mesh, Mesh)
        devices = list(mesh.devices.flat)
        planned = planned_for(view, device_platform(devices[0]))
        target = f"{len(devices)} {devices[0].platform} device{'s' * (len(devices) > 1)}"
        if hardware is None and devices[0] in jax.local_devices():
            room = devices[0].device_kind, (devices[0].memory_stats() or {}).get("bytes_limit")
        return _program(planned.plan, target, room, _compiled_here(planned, target))
    view = _on_chips(view, topology)
    if importlib.util.find_spec("libtpu") is None:
        raise CompileError(
            "the compiler for TPUs is not installed",
            where=f"compile_for({topology!r})",
            why="it is in the package libtpu",
            fix='pip install "shardy_py[tpu]"',
        )
    planned = planned_for(view, "tpu")
    room = capacity_of(HARDWARE[topology.partition(":")[0]]) if hardware is None else room
    return _program(planned.plan, topology, room, _compiled_elsewhere(planned, topology))


def topology(name: str) -> tuple[Chip, ...]:
    """Stands for the devices of a TPU slice that need not be there, to plan for: links, memory and overlap are then those of the slice.

    A mesh over them can be planned and compiled for; to run, a function takes one over `jax.devices()`.

    Args:
        name: A kind of chip and the shape of a slice, as for `Plan.compile_for`.

    Returns:
        The devices, for `jax.make_mesh(..., devices=...)`, which orders them as it orders the devices of such a slice.

    Raises:
        CompileError: The kind of chip is unknown.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> mesh = jax.make_mesh((4, 4), ("data", "model"), devices=sp.topology("v5e:4x4"))
        >>> plan = sp.auto_shard(lambda x, w: x @ w, mesh=mesh).plan(jnp.ones((8, 8)), jnp.ones((8, 8)))
        >>> plan.platform, [levels[0].links.wrapped for levels in plan.cost_analysis("v5e").links.values()]
        ('tpu', [(False,), (False,)])
    """
    shape = _TOPOLOGY.fullmatch(str(name))
    if shape is None or shape[1] not in _DEVICES:
        raise CompileError(
            f"{name!r} does not name a TPU topology",
            where=f"topology {name!r}",
            why=f"one is a kind of chip, {', '.join(_DEVICES)}, and the shape of a slice; programs for GPUs are compiled where there are"
            " GPUs, by compile_for()",
            fix='name "v5e:2x4", "v5p:2x2x1", "v6e:4x4"',
        )
    kind, cores = _DEVICES[shape[1]]
    sides = (*map(int, name.partition(":")[2].split("x")), 1, 1)[:3]
    places = itertools.product(*map(range, reversed(sides)), range(cores))
    return tuple(Chip(i, place[-2::-1], place[-1], kind, name) for i, place in enumerate(places))


def _on_chips(view: MeshView, name: str) -> MeshView:
    """The view of a mesh on a slice: as it is where its devices are those, else in JAX's own order."""
    if view.topology == name:
        return view
    chips = topology(name)
    if len(chips) != math.prod(view.sizes.values()):
        why = f"{name} has {len(chips)} devices, the mesh of the plan {math.prod(view.sizes.values())}"
        raise CompileError("the plan does not fit the topology", where=f"compile_for({name!r})", why=why)
    try:
        mesh = jax.make_mesh(tuple(view.sizes.values()), tuple(view.sizes), axis_types=view.user_mesh.axis_types, devices=chips)
    except NotImplementedError as error:
        raise CompileError(f"JAX cannot arrange {view.describe()} on {name}", where=f"compile_for({name!r})", why=str(error)) from None
    return dataclasses.replace(view, user_mesh=mesh, from_mapping=False)


def _compiled_here(planned: Planned, target: str) -> dict[str, Any]:
    lowered = CompiledCall(planned).lower()
    began = time.monotonic()
    try:
        executable = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return _checked({"error": str(error)}, target)
    return _described(executable.memory_analysis(), executable.as_text(), began)


def _compiled_elsewhere(planned: Planned, topology: str) -> dict[str, Any]:
    """What the compiler for a topology says, in another process: it needs an environment of its own, and may abort."""
    request = planned.traced.request
    try:
        lowered = CompiledCall(planned, abstract=True).lower(lowering_platforms=("tpu",))
    except (NotImplementedError, ValueError) as error:  # of JAX, for callbacks and primitives of one platform
        raise CompileError(
            "JAX cannot lower the program for TPUs here",
            where=request.location,
            why=str(error).partition("\n")[0],
            fix="leave out callbacks such as jax.debug.print, or compile where the TPUs are, by compile_for()",
        ) from error
    module = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(module)
    mesh, options = request.view.user_mesh, dict(request.settings.jit.get("compiler_options") or {})
    assert isinstance(mesh, Mesh)
    order = [[*chip.coords, chip.core_on_chip] for chip in mesh.devices.flat]
    head = json.dumps({"topology": topology, "order": order, "options": options})
    environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("XLA_FLAGS", None)  # of the devices here; LIBTPU_INIT_ARGS are for this compiler
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import main; main()"],
        input=head.encode() + b"\n" + module.getvalue(),
        capture_output=True,
        env=environment,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return _checked({"error": "\n".join((f"its process ended with status {done.returncode}", *said[-_LAST:]))}, topology)
    return _checked(json.loads(done.stdout), topology)


def main() -> None:
    """The process that compiles: a line of JSON and the StableHLO on its standard input, JSON on its standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the compiler may print
    head, _, module = sys.stdin.buffer.read().partition(b"\n")
    try:
        answer = _compiled_for(module=module, **json.loads(head))
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError) as error:
        answer = {"error": str(error)}
    answers.write(json.dumps(answer))
    answers.close()
    os._exit(0)  # libtpu may hang or abort when it is taken down


def _compiled_for(module: bytes, topology: str, order: list[list[int]], options: dict[str, Any]) -> dict[str, Any]:
    from jax.experimental import topologies
    from jax.interpreters.mlir import make_ir_context
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    chips = topologies.get_topology_desc(topology, platform="tpu").devices
    places: dict[tuple[int, ...], Any] = {(*device.coords, device.core_on_chip): device for device in chips}
    devices = [places[tuple(place)] for place in order]
    chosen = xla_client.CompileOptions()
    chosen.env_option_overrides = list(options.items())
    build = chosen.executable_build_options
    chosen.num_replicas, chosen.num_partitions = build.num_replicas, build.num_partitions = 1, len(devices)
    build.use_spmd_partitioning = build.use_shardy_partitioner = True
    numbers = np.array([[device.id for device in devices]])
    chosen.device_assignment = build.device_assignment = xla_client.DeviceAssignment.create(numbers)
    began = time.monotonic()
    with make_ir_context():
        executable = devices[0].client.compile(ir.Module.parse(module), xla_client.DeviceList(tuple(devices)), chosen)
    return _described(executable.get_compiled_memory_stats(), executable.hlo_modules()[0].to_string(), began)


def _described(stats: Any, text: str, began: float) -> dict[str, Any]:
    sizes = {name: getattr(stats, name) for kind in _KINDS for name in (f"{kind}_size_in_bytes", f"host_{kind}_size_in_bytes")}
    return {"memory": sizes, "text": text, "seconds": time.monotonic() - began}


def _checked(answer: dict[str, Any], target: str) -> dict[str, Any]:
    """The answer of a compiler; raises CompileError unless it has compiled, or found that the program does not fit."""
    error = answer.get("error")
    if error is not None and "RESOURCE_EXHAUSTED" not in error:
        head, *notes = error.splitlines() or [""]
        raise CompileError("the program could not be compiled", where=f"compiling for {target}", why=head, notes=tuple(notes[:_LAST]))
    return answer


def _program(plan: Plan, target: str, room: tuple[str, int | None], answer: dict[str, Any]) -> CompiledProgram:
    if "error" in answer:
        return CompiledProgram(plan, target, None, (), {}, frozenset(), 0.0, "", answer["error"].strip().splitlines()[0])
    text, sizes = answer["text"], answer["memory"]
    argument, output, alias, temporary = (sizes[f"{kind}_size_in_bytes"] for kind in _KINDS)
    name, size = room
    memory = MemoryAnalysis(
        plan.name,
        platform_of(plan, None),
        **sizes,
        peak_memory_in_bytes=argument + output - alias + temporary,
        peak_step=0,
        steps=(),
        contributors=(),
        hardware=None if size is None else name or "the given memory",
        hardware_bytes=size,
    )
    items = contents(text)
    collectives = tuple(item for item in items if isinstance(item, CompiledCollective) and item.group_size > 1)
    return CompiledProgram(plan, target, memory, collectives, cycles_by_line(items), aliased_parameters(text), answer["seconds"], text)
