"""The user's own `shard_map`s inside of the region: their bodies are manual over their axes, and planned over the others."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, JaxprEqn
from jax.sharding import PartitionSpec

from shardy_py.backends.local.annotations import identity
from shardy_py.backends.local.calls import only_child, run_body
from shardy_py.backends.local.interpreter import Handler, Interpreter
from shardy_py.backends.local.local_rule import bind
from shardy_py.backends.local.loops import settled_layout
from shardy_py.backends.local.sharded_value import RegionContext, ShardedValue, Values
from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.axis import Axes
from shardy_py.errors import MeshError
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.locations import locate
from shardy_py.ir.jax_collectives import CASTS, PSUMS
from shardy_py.partition.region.layouts import Layout, layout, nests, num_shards, replicated

Array = Any
Rename = Callable[[Sequence[str]], tuple[str, ...]]
"""Converts axes of the plan's mesh to the axes of the region's mesh that they are split into."""


def handlers(rename: Rename) -> dict[str, Handler]:
    """Handlers of shard_maps, and of equations that occur in their bodies only."""

    def run_shard_map(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
        return _shard_map(interpreter, eqn, index, operands, scope, rename)

    def run_collective(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
        return _collective(interpreter, eqn, operands, rename)

    def axis_index(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None) -> Values:
        names = rename(_named(eqn.params["axis_name"]))
        return [interpreter.constant(None if interpreter.region.dry else lax.axis_index(names), eqn.outvars[0].aval)]

    return {
        "axis_index": axis_index,
        "shard_map": run_shard_map,
        **dict.fromkeys(CASTS, identity),
        **dict.fromkeys(_COLLECTIVES, run_collective),
    }


def _named(axes: Any) -> tuple[str, ...]:
    return tuple(axes) if isinstance(axes, tuple | list) else (axes,)


def _shard_map(interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None, rename: Rename) -> Values:
    """Runs the body on blocks of the operands, by an interpreter whose region has the remaining axes."""
    params, body, sizes = eqn.params, eqn.params["jaxpr"], interpreter.mesh.shape
    own_axes = [name for name in params["mesh"].axis_names if name in params["newly_manual_axes"]]
    manual = rename(own_axes)
    shape = params["mesh"].shape
    if any(math.prod(sizes.get(part, 0) for part in rename((name,))) != shape[name] for name in own_axes):
        axes = ", ".join(f"{name}={size}" for name, size in shape.items())
        place = locate(eqn.source_info)
        raise MeshError(
            f"a shard_map is over another mesh, {axes}",
            where="shard_map" if place is None else f"shard_map, {place.place}",
            why='under lowering="shard_map" its body runs on axes of the function\'s mesh; jax.pmap is a shard_map over a mesh of its own',
            fix='give the shard_map the mesh that is planned for, call it outside of the function, or use lowering="jit"',
        )
    left = Mesh(tuple((name, size) for name, size in sizes.items() if name not in manual))
    around = interpreter.region
    region = RegionContext(left, around.platform, dry=around.dry, movements=around.movements)
    region.trips = around.trips
    inner = _Inner(region, interpreter.layout_of, interpreter.analysis, interpreter.previous, interpreter.hint)
    inner.findings, inner.values = interpreter.findings, interpreter.values
    child = only_child(scope, index)

    def cut(spec: PartitionSpec, rank: int) -> list[Axes]:
        entries = [() if entry is None else rename(_named(entry)) for entry in spec]
        return [tuple(AxisRef(name) for name in entry if sizes[name] > 1) for entry in (*entries, *[()] * (rank - len(entries)))]

    arguments = []
    for value, v, spec in zip(operands, body.invars, params["in_specs"], strict=True):
        outer, free = _within(cut(spec, value.rank), _free(inner.planned(v, child), value.rank, left), value.shape, interpreter.mesh)
        arguments.append(inner.new_value(value.get(outer), free, tuple(getattr(v.aval, "shape", ())), value.dtype, uses=1))
    results = []
    for value, v, spec in zip(inner.jaxpr(body, [], arguments, child), eqn.outvars, params["out_specs"], strict=True):
        shape = tuple(getattr(v.aval, "shape", ()))
        at, free = _within(cut(spec, value.rank), settled_layout(value), shape, interpreter.mesh)
        results.append(interpreter.new_value(value.get(free), at, shape, value.dtype))
    around.spent += region.spent
    return results


class _Inner(Interpreter):
    """Runs a body. Its constant arrays remember the mesh that they were traced under; their views do not."""

    def constant(self, value: Any, aval: Any) -> ShardedValue:
        """A value that every device has."""
        return super().constant(value.view() if isinstance(value, np.ndarray) else value, aval)


def _free(planned: Layout | None, rank: int, left: Mesh) -> Layout:
    """A layout restricted to the remaining axes."""
    if planned is None:
        return replicated(rank)
    return layout([tuple(axis for axis in dim.axes if axis.name in left.shape) for dim in planned.dims])


def _within(manual: Sequence[Axes], free: Layout, shape: Sequence[int], mesh: Mesh) -> tuple[Layout, Layout]:
    """The layouts of a value and of one of its blocks, trimmed to axes along which pieces of blocks are blocks of the value."""
    inner = []
    for size, outer, dim in zip(shape, manual, free.dims, strict=True):
        axes = dim.axes
        while axes and not nests(size, num_shards(outer, mesh), num_shards(axes, mesh)):
            axes = axes[:-1]
        inner.append(axes)
    return layout([(*outer, *axes) for outer, axes in zip(manual, inner)]), layout(inner)


def _collective(interpreter: Interpreter, eqn: JaxprEqn, operands: Values, rename: Rename) -> Values:
    """A user's collective over manual axes; dimensions that it does not rearrange may be sharded over the others."""
    name = eqn.primitive.name
    dims = tuple(axis for axis in _named(eqn.params.get("axes", ())) if isinstance(axis, int))
    if dims:  # of a named axis that jax.vmap has made a dimension of
        body = _reduction(name, dims, tuple((value.shape, value.dtype) for value in operands))
        operands = run_body(interpreter, body, operands, None)
        names = tuple(axis for axis in _named(eqn.params["axes"]) if axis not in dims)
        if not names:
            return operands
        eqn = eqn.replace(params={**eqn.params, "axes": names})
    params = {name: _renamed(value, rename) if name in ("axes", "axis_name") else value for name, value in eqn.params.items()}
    eqn = eqn.replace(params=params)
    touched = _touched(name, params)
    run = _PLAIN.get(name, lambda eqn, arrays: bind(eqn, arrays, eqn.params))
    if interpreter.region.dry:
        run = _nothing
    moving = interpreter.region.movements.moving(value.planned for value in operands)
    if touched is None:
        why = f"{name} rearranges all dimensions, so it takes operands that are whole along the axes that are not manual"
        interpreter.report_gathers(eqn, operands, "runs-whole", why, "make those axes manual too")
        arrays = [value.whole() for value in operands]
        with moving:
            parts = run(eqn, arrays)
        return [interpreter.result(x, v) for x, v in zip(parts, eqn.outvars, strict=True)]
    at = [layout([() if d in touched else dim.axes for d, dim in enumerate(settled_layout(value).dims)]) for value in operands]
    arrays = [value.get(where) for value, where in zip(operands, at)]
    with moving:
        parts = run(eqn, arrays)
    equation = interpreter.analysis.equation(eqn)
    return [
        interpreter.new_value(x, where, shape, dtype)
        for x, where, shape, dtype in zip(parts, at, equation.result_shapes, equation.result_dtypes, strict=True)
    ]


@functools.lru_cache(maxsize=1024)
def _reduction(name: str, dims: tuple[int, ...], types: tuple[tuple[tuple[int, ...], Any], ...]) -> ClosedJaxpr:
    """The jaxpr of a reduction along dimensions of its operands."""
    reduce = _REDUCTIONS[name]
    return jax.make_jaxpr(lambda *arrays: [reduce(x, dims) for x in arrays])(*itertools.starmap(jax.ShapeDtypeStruct, types))


def _nothing(eqn: JaxprEqn, arrays: list[Array]) -> list[Array]:
    return [None] * len(eqn.outvars)


def _renamed(axes: Any, rename: Rename) -> Any:
    names = _named(axes)
    renamed = tuple(part for axis in names for part in (rename((axis,)) if isinstance(axis, str) else (axis,)))
    return axes if renamed == names else renamed


def _touched(name: str, params: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The dimensions that a collective rearranges; None if it needs all dimensions whole."""
    if name in _ELEMENTWISE:
        return ()
    if not params.get("tiled"):
        return None
    if name.startswith("all_gather"):
        return (params["all_gather_dimension"],)
    if name == "all_to_all":
        return params["split_axis"], params["concat_axis"]
    return (params["scatter_dimension"],) if "scatter_dimension" in params else None


def _psum(eqn: JaxprEqn, arrays: list[Array]) -> list[Array]:
    return [lax.psum(x, eqn.params["axes"]) for x in arrays]


def _gather(eqn: JaxprEqn, arrays: list[Array]) -> list[Array]:
    params = eqn.params
    return [lax.all_gather(x, params["axis_name"], axis=params["all_gather_dimension"], tiled=params["tiled"]) for x in arrays]


def _scatter(eqn: JaxprEqn, arrays: list[Array]) -> list[Array]:
    params = eqn.params
    dim = params["scatter_dimension"]
    return [lax.psum_scatter(x, params["axis_name"], scatter_dimension=dim, tiled=params["tiled"]) for x in arrays]


_PLAIN: dict[str, Callable[[JaxprEqn, list[Array]], list[Array]]] = {
    "all_gather_invariant": _gather,
    "all_gather_reduced": _gather,
    "psum_invariant": _psum,
    "unreduced_psum": _psum,
    "unreduced_reduce_scatter": _scatter,
}
"""Collectives of a body with checked types -> the one without."""

_REDUCTIONS = {
    **dict.fromkeys(PSUMS, lax.reduce_sum),
    **dict.fromkeys(("pmax", "unreduced_pmax"), lax.reduce_max),
    **dict.fromkeys(("pmin", "unreduced_pmin"), lax.reduce_min),
    "pmul": lax.reduce_prod,
}
"""Collective that may reduce dimensions too -> the reduction."""

_ELEMENTWISE = frozenset({*_REDUCTIONS, "pbroadcast", "pbroadcast_dynamic", "ppermute"})

_COLLECTIVES = (*sorted(_ELEMENTWISE), "all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all", "ragged_all_to_all",
                "reduce_scatter", "unreduced_reduce_scatter")  # fmt: skip
