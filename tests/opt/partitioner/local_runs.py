"""Runs local programs on as many devices as their mesh has, and compares them with the whole program."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
from jax._src.lib import xla_client
from jax.sharding import PartitionSpec as P

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.ir import Program
from shardy_py.opt import run_passes
from shardy_py.opt.from_mlir import from_mlir

Array = np.ndarray[Any, Any]

DROP = "sdy-drop-sharding-and-mesh"


def at(dims: str) -> str:
    """An argument's or a result's sharding."""
    return f"{{sdy.sharding = #sdy.sharding<@m, {dims}>}}"


def per_value(dims: str) -> str:
    """An op's sharding."""
    return f"sdy.sharding = #sdy.sharding_per_value<[<@m, {dims}>]>"


def check(text: str, pipeline: str) -> None:
    """Compares each device's part of the result of `@main` with what the passes make it compute."""
    program = from_mlir(text)
    inputs = [random(value.type.shape, value.type.dtype, seed) for seed, value in enumerate(program.main.arguments)]
    without = re.sub(r"sdy\.reshard (%\w+) <.*> : (tensor<\S+>)", r"stablehlo.reshape \1 : (\2) -> \2", text)
    (whole,) = run(run_passes(without, DROP).replace("sdy.constant", "stablehlo.constant"), [inputs])
    compare(run_passes(text, pipeline), program, inputs, whole)


def compare(local: str, program: Program, inputs: list[Array], whole: Array) -> None:
    """Compares each device's part of a result with what a local program computes.

    Args:
        local: The local program.
        program: Has the shardings of inputs and result.
        inputs: Those of the whole program.
        whole: Its result.
    """
    (mesh,) = program.meshes.values()
    wanted = by_device(whole, program.main.result_shardings[0], mesh)
    for device, got in enumerate(run(run_passes(local, DROP), parts(inputs, program, mesh))):
        np.testing.assert_allclose(got, wanted[device], rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(whole).max())))


def random(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Small numbers; indices into eight rows where they are integers, some of them outside."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 8, shape).astype(dtype) if dtype.startswith("int") else draw.normal(size=shape).astype(dtype)


def parts(inputs: list[Array], program: Program, mesh: Mesh) -> list[list[Array]]:
    """The piece of each input on each device."""
    cut = [by_device(array, value.sharding, mesh) for array, value in zip(inputs, program.main.arguments, strict=True)]
    return [[each[device] for each in cut] for device in range(mesh.size)]


def by_device(array: Array, sharding: TensorSharding | None, mesh: Mesh) -> list[Array]:
    """The part of an array on each device."""
    found = [array] * mesh.size
    for position, device in enumerate(mesh.device_ids or range(mesh.size)):
        place = dict(zip(mesh.axis_names, np.unravel_index(position, tuple(mesh.shape.values())), strict=True))
        part = array
        for dim, axes in enumerate(sharding.dims if sharding is not None else ()):
            for axis in axes.axes:
                size, end = mesh.shape[axis.name], axis.next_pre_size or mesh.shape[axis.name]
                count = axis.size or size
                part = np.split(part, count, dim)[place[axis.name] // (size // end) % count]
        found[device] = part
    return found


def run(text: str, inputs: list[list[Array]]) -> list[Array]:
    """Runs a module with one result on one device per list of inputs.

    Devices take part as replicas: as partitions, XLA would want to partition the program itself.
    """
    text = re.sub(r"channel_handle = #stablehlo.channel_handle<[^>]*>, ", "", text).replace(", use_global_device_ids", "")
    text = re.sub(
        r"module (?:attributes \{[^}]*\} )?\{", f"module @jit_main attributes {{mhlo.num_replicas = {len(inputs)} : i32}} {{", text
    )
    devices = jax.devices()[: len(inputs)]
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = len(inputs), 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.arange(len(inputs)).reshape(-1, 1))
    client = devices[0].client
    executable = client.compile_and_load(text.replace("partition_id", "replica_id"), xla_client.DeviceList(tuple(devices)), options)
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    arguments = []
    for arrays in zip(*inputs, strict=True):
        shape = arrays[0].shape
        spec = P("d") if shape else P()
        shards = [jax.device_put(array, device) for array, device in zip(arrays, devices, strict=True)]
        whole = (shape[0] * len(inputs), *shape[1:]) if shape else ()
        arguments.append(jax.make_array_from_single_device_arrays(whole, jax.sharding.NamedSharding(mesh, spec), shards))
    (results,) = executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
    return [np.asarray(result) for result in results]
