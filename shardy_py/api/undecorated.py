"""Plans and checks of steps that are not decorated, such as functions under `jax.jit`, as they are."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, Var
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import Mesh as JaxMesh

from shardy_py.api.auto import AutoSharded, decorate
from shardy_py.api.calls import Settings
from shardy_py.api.errors import ArgumentTypeError
from shardy_py.api.meshes import AnyMesh, context_mesh
from shardy_py.api.options import Options
from shardy_py.api.request import PlanRequest
from shardy_py.api.trees import location_of
from shardy_py.cost.hardware import Hardware
from shardy_py.cost.hardware_table import hardware as hardware_named
from shardy_py.errors import MeshError
from shardy_py.facade import Plan
from shardy_py.frontends.context import api_boundary, context_devices
from shardy_py.frontends.jaxprs import equations
from shardy_py.view.check import Check


@api_boundary
def plan_of(fun: Callable[..., Any], *args: Any, mesh: AnyMesh | None = None, options: Options | None = None, **kwargs: Any) -> Plan:
    """The plan of a step as it is: `jax.jit` and its shardings, donation, inner constraints and calls count, and nothing is changed.

    Args:
        fun: A function under `jax.jit`, `flax.nnx.jit`, `equinox.filter_jit` or the like, with Auto or Explicit axes; any other function
            of arrays; or one under `auto_shard`, whose own plan it is.
        args: Its arguments: arrays, or `jax.ShapeDtypeStruct`s, whose shardings count.
        mesh: By default the mesh of the arguments' shardings, of the shardings of `jax.jit`, or of `jax.set_mesh`.
        options: As in `auto_shard`.
        kwargs: Its keyword arguments.

    Returns:
        The plan, for XLA's partitioner (`lowering="jit"`) unless the function is under `auto_shard`.

    Raises:
        MeshError: No argument and no sharding names a mesh, and none is set.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> step = jax.jit(lambda w, x: jnp.tanh(x @ w), donate_argnums=1)
        >>> weights, batch = jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((32, 8), jnp.float32)
        >>> print(sp.plan_of(step, weights, batch, mesh={"data": 4}).donation[0].aliased)
        result
    """
    if isinstance(fun, AutoSharded):
        return (fun if mesh is None else fun.replace(mesh=mesh)).plan(*args, **kwargs)
    mesh = _mesh_of(fun, args, kwargs) if mesh is None else mesh
    settings = Settings(fun, mesh, None, None, None, None, options, None, "jit", _static_argnums(fun, args, kwargs))
    call = decorate(settings, fun).trace(*args, **kwargs)._call
    jaxpr, slots = call.jaxpr.jaxpr, call.request.leaf_slots
    stated = {**_stated(jaxpr, "in_shardings", "invars"), **_stated(jaxpr, "out_shardings", "outvars")}
    results = [stated.get(v) if isinstance(v, Var) else None for v in jaxpr.outvars]
    inside = dataclasses.replace(
        settings,
        in_shardings=_by_slot([stated.get(v) for v in jaxpr.invars], slots, call.request),
        out_shardings=call.result.outline.tree.unflatten(results) if any(results) else None,
        donate_argnums=_donated_slots(jaxpr, slots),
    )
    return decorate(inside, fun).plan(*args, **kwargs)


@api_boundary
def check(
    fun: Callable[..., Any],
    *args: Any,
    mesh: AnyMesh | None = None,
    hardware: str | Hardware | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> Check:
    """What a step does on its mesh: what is replicated and where, what moves and at which line, what it costs, whether it fits.

    Args:
        fun: As in `plan_of`; nothing about it is changed, and it does not run.
        args: Its arguments.
        mesh: As in `plan_of`.
        hardware: The accelerator whose time and memory are reported, and for which is planned if the mesh has no devices: a name
            (`"h100"`, `"v5e"`) or a `shardy_py.Hardware`.
        options: As in `auto_shard`.
        kwargs: Its keyword arguments.

    Returns:
        A report to print, with `findings`, `cost`, `memory`, `plan` and `is_clean`.

    Raises:
        MeshError: No argument and no sharding names a mesh, and none is set.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> step = jax.jit(lambda w, x: jnp.tanh(x @ w))
        >>> weights, batch = jax.ShapeDtypeStruct((4096, 4096), jnp.float32), jax.ShapeDtypeStruct((8192, 4096), jnp.float32)
        >>> print([finding.kind for finding in sp.check(step, weights, batch, mesh={"data": 4}, hardware="v5e").findings])
        ['unused-axis']
    """
    mesh = mesh if mesh is not None or isinstance(fun, AutoSharded) else _mesh_of(fun, args, kwargs)
    if hardware is not None and not isinstance(mesh, JaxMesh) and (options is None or options.platform is None):
        options = dataclasses.replace(options or Options(), platform=hardware_named(hardware).platform)
    return Check(plan_of(fun, *args, mesh=mesh, options=options, **kwargs), hardware)


def _mesh_of(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AnyMesh:
    """The mesh that arguments lie on, that is set, or that the function names."""
    mesh = next(_meshes(jax.tree.leaves((args, kwargs))), None) or context_devices() or context_mesh()
    if mesh is None and hasattr(fun, "trace"):  # a function under jax.jit names one in its shardings
        traced = jax.make_jaxpr(functools.partial(fun, **kwargs), static_argnums=_static_argnums(fun, args, kwargs))(*args)
        mesh = next(_named_in(traced.jaxpr), None)
    if not callable(fun):
        raise ArgumentTypeError(
            f"the step is a {type(fun).__name__}, not a function",
            where="sp.check(fun, ...) and sp.plan_of(fun, ...)",
            why="the first argument is the function; its own arguments follow",
            fix="pass the step, under jax.jit or as it is, and then the arguments of a call",
        )
    if mesh is None:
        raise MeshError(
            "no mesh",
            where=f"check of {location_of(fun)}",
            why="neither an argument nor the function names one, and none is set",
            fix='pass mesh={"data": 4, "model": 2}, or call it inside `with jax.set_mesh(mesh):`',
        )
    return mesh


def _meshes(leaves: Sequence[Any]) -> Iterator[JaxMesh | AbstractMesh]:
    for leaf in leaves:
        sharding = leaf if isinstance(leaf, NamedSharding) else getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty:
            yield sharding.mesh


def _stated(jaxpr: Jaxpr, parameter: str, side: str) -> dict[Any, NamedSharding]:
    """The shardings that calls of functions under `jax.jit` state of their operands or results."""
    return {
        v: sharding
        for eqn in jaxpr.eqns
        for v, sharding in zip(getattr(eqn, side), eqn.params.get(parameter, ()))
        if isinstance(sharding, NamedSharding) and isinstance(v, Var)
    }


def _by_slot(shardings: Sequence[Any], slots: Sequence[int], request: PlanRequest) -> Any:
    """Shardings of leaves as `in_shardings`: a tuple, those of each positional argument in its structure."""
    if not any(shardings):
        return None
    leaves = iter(shardings)
    outlines = [outline.tree.unflatten([next(leaves) for _ in outline.paths]) for outline in request.outlines]
    return tuple(outlines[: len(request.names)])


def _named_in(jaxpr: Jaxpr) -> Iterator[JaxMesh | AbstractMesh]:
    """The meshes that the equations of a jaxpr name."""
    for eqn in equations(jaxpr):
        values = [each for value in eqn.params.values() for each in (value if isinstance(value, tuple) else (value,))]
        yield from _meshes([value for value in values if isinstance(value, NamedSharding)])
        yield from (value for value in values if isinstance(value, (JaxMesh, AbstractMesh)) and not value.empty)


def _static_argnums(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """The positional arguments that `jax.jit` holds static: as many as it does not trace, of those that are not arrays."""
    if not hasattr(fun, "trace"):
        return ()
    info = getattr(fun.trace(*args, **kwargs), "args_info", None)  # flax.nnx.jit has none
    if info is None:
        return ()
    info, _ = info
    missing = len(args) - len(info)
    if not missing:
        return ()
    plain = [i for i, arg in enumerate(args) if not any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(arg))]
    names = list(inspect.signature(fun).parameters)
    if len(plain) != missing:
        raise TypeError(f"{missing} of {', '.join(names[i] for i in plain)} are static: pass the others as arrays, jnp.asarray(...)")
    return tuple(plain)


def _donated_slots(jaxpr: Jaxpr, slots: Sequence[int]) -> tuple[int, ...]:
    """The arguments all leaves of which a call inside donates."""
    donated = {
        v
        for eqn in jaxpr.eqns
        for v, gives in zip(eqn.invars, eqn.params.get("donated_invars", ()))
        if gives and not any(v is other for other in jaxpr.outvars)
    }
    needed = {slot for v, slot in zip(jaxpr.invars, slots, strict=True) if v not in donated}
    return tuple(sorted(set(slots) - needed))
