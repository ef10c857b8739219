"""The private or version-dependent parts of JAX that reading a jaxpr needs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import api_util as _api_util
from jax._src import config as _config
from jax._src import core as _core
from jax._src import linear_util as _linear_util
from jax._src import sharding_impls as _sharding_impls
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import partial_eval as _partial_eval
from jax._src.interpreters import pxla as _pxla
from jax._src.lax.control_flow.loops import _scan_impl
from jax._src.sharding_impls import UnspecifiedValue as _UnspecifiedValue
from jax._src.state.discharge import _run_state_impl
from jax.extend.core import ClosedJaxpr, JaxprEqn
from jax.sharding import AxisType, NamedSharding

from shardy_py.ir import TensorType


def is_extended_dtype(dtype: Any) -> bool:
    """Whether a dtype is an extended one, such as that of PRNG keys."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.extended)


def physical_aval(aval: Any) -> Any:
    """The abstract value of the array that holds an extended-dtype array."""
    return _core.physical_aval(aval)


def trace_context() -> Any:
    """Everything in JAX's configuration on which a lowering can depend."""
    return _config.trace_context()


def tensor_type(array: Any) -> TensorType:
    """The type of a numpy array."""
    return TensorType(tuple(array.shape), str(array.dtype))


def is_specified(sharding: Any) -> bool:
    """Whether a sharding parameter of `jit` says something."""
    return sharding is not None and not isinstance(sharding, _UnspecifiedValue)


def has_explicit_axes(aval: Any) -> bool:
    """Whether JAX puts a sharding constraint after every op with a result of this type."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return mesh is not None and not (mesh.empty or mesh.are_all_axes_manual or mesh.are_all_axes_auto)


def physical_sharding(aval: Any, sharding: Any) -> Any:
    """The sharding of the array that holds an extended-dtype array."""
    return _sharding_impls.physical_sharding(aval, sharding) if is_extended_dtype(aval.dtype) else sharding


@dataclasses.dataclass(frozen=True, slots=True)
class ManualContext:
    """The mesh of the shard_map being read and its manual axes, those of shard_maps around it included."""

    mesh: Any
    axes: frozenset[str]


def manual_sharding(mesh: Any, spec: Any, outer: ManualContext | None, aval: Any) -> Any:
    """As `_make_scoped_manual_sharding`: the sharding of an operand or result of a shard_map."""
    mesh = mesh.abstract_mesh
    if outer is not None:
        mesh = mesh.update_axis_types({a: AxisType.Manual for a in outer.axes})
    return physical_sharding(aval, NamedSharding(mesh, spec))


def scan_as_loop(eqn: JaxprEqn) -> ClosedJaxpr:
    """The jaxpr that the lowering of a scan is made from."""
    key = (tuple(eqn.params.items()), tuple(v.aval for v in eqn.invars), eqn.ctx)
    found = _LOOPS.get(key)
    if found is None:
        with eqn.ctx.manager:
            found = _traced(functools.partial(_scan_impl, **eqn.params), [v.aval for v in eqn.invars])
        if len(_LOOPS) > 256:
            _LOOPS.clear()
        _LOOPS[key] = found
    return found


def without_references(eqn: JaxprEqn) -> ClosedJaxpr:
    """The jaxpr that the lowering of a run_state is made from, with values instead of references."""
    return _traced(functools.partial(_run_state_impl, **eqn.params), [v.aval for v in eqn.invars])


def discharged(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """As `jax.jit` before it lowers: references that do not leave the jaxpr become values."""
    return _pxla._discharge_internal_refs(jaxpr)


def _traced(fun: Callable[..., Any], avals: Sequence[Any]) -> ClosedJaxpr:
    wrapped = _linear_util.wrap_init(fun, debug_info=_api_util.debug_info("lower_fun", fun, avals, {}))
    jaxpr, _, consts = _partial_eval.trace_to_jaxpr_dynamic(wrapped, avals, lower=True)
    return discharged(ClosedJaxpr(jaxpr, consts))


_LOOPS: dict[Any, ClosedJaxpr] = {}


def scoped_sharding(sharding: Any, aval: Any, rank: int, manual: ManualContext | None) -> Any:
    """As `_to_physical_op_sharding`: the sharding of the physical array, with manual axes marked so inside a shard_map."""
    sharding = physical_sharding(aval, sharding)
    if manual is not None and manual.axes:
        context = _sharding_impls.SPMDAxisContext(manual.mesh, manual.axes)
        return _mlir.add_manual_axes(context, sharding, rank)
    return sharding


def custom_partitioning_rule(eqn: JaxprEqn, mesh: Any) -> Any:
    """The rule of a custom_partitioning equation, or None where it has none."""
    return None
