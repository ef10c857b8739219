"""A jaxpr that was traced on Explicit mesh axes, rewritten for the same mesh with Auto axes: what its types say become constraints.

JAX puts a constraint behind every op whose type names an axis. Here one stands where a type says more than the operands' types: at
arguments, at results of the function, and where an op cuts its result in another way than an operand of the same shape.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from shardy_py.dialect import Mesh as DialectMesh
from shardy_py.dialect import TensorSharding
from shardy_py.frontends import _jax
from shardy_py.frontends.annotation_primitives import constraint_equation
from shardy_py.frontends.jaxprs import equations
from shardy_py.frontends.mesh_context import traced_on
from shardy_py.frontends.meshes import Meshes


def states_shardings(jaxpr: Jaxpr) -> bool:
    """Whether code that was traced on Explicit axes says where values are to lie: `jax.reshard`, `out_sharding=`, other axis types.

    Transposes of ops put shardings into their equations by themselves, and so does `zeros_like`, so gradients and arrays of one number
    are not looked at. Where one of these states a sharding all the same, code does not run on Auto axes.
    """
    return any(map(_states_sharding, equations(jaxpr)))


def _states_sharding(eqn: JaxprEqn) -> bool:
    if eqn.primitive.name == "reshard":
        return bool(getattr(eqn.outvars[0].aval, "shape", ()))
    if eqn.primitive.name == "shard_map":
        return True
    if eqn.primitive.name == "broadcast_in_dim" and not getattr(eqn.invars[0].aval, "shape", ()):
        return False
    values = [*eqn.params.values(), *eqn.params.get("devices", ())]  # of a device_put
    shardings = [value for value in values if isinstance(value, NamedSharding) and AxisType.Explicit in value.mesh.axis_types]
    return bool(shardings) and "transpose" not in str(eqn.source_info.name_stack)


def spec_of(aval: Any) -> PartitionSpec | None:
    """The sharding in a type over Explicit axes; dimensions are unconstrained where the mesh has Auto axes, which may shard them too."""
    spec = _spec(aval)
    if spec is None:
        return None
    is_mixed = AxisType.Auto in aval.sharding.mesh.axis_types
    entries = [PartitionSpec.UNCONSTRAINED if is_mixed and not entry else entry for entry in spec.partitions]
    return PartitionSpec(*entries, unreduced=spec.unreduced)


def untyped(closed: ClosedJaxpr, mesh: AbstractMesh) -> ClosedJaxpr:
    """The jaxpr for a mesh of Auto axes, of one that was traced on the same mesh with Explicit axes."""
    with traced_on(mesh):
        return ClosedJaxpr(_Untyping(mesh).jaxpr(closed.jaxpr, is_main=True), closed.consts)


class _Untyping:
    def __init__(self, mesh: AbstractMesh) -> None:
        self._meshes = Meshes("mesh", DialectMesh(tuple(mesh.shape.items())))
        self._jaxprs: dict[Jaxpr, Jaxpr] = {}

    def jaxpr(self, jaxpr: Jaxpr, *, is_main: bool = False) -> Jaxpr:
        if jaxpr in self._jaxprs:
            return self._jaxprs[jaxpr]
        variables: dict[Var, Any] = {}
        eqns: list[JaxprEqn] = []

        def read(atom: Any) -> Any:
            return Literal(atom.val, self._aval(atom.aval)) if isinstance(atom, Literal) else variables[atom]

        def constrained(value: Any, aval: Any, like: JaxprEqn | None = None) -> Any:
            """The value behind a constraint to the sharding in a type, where a constraint can state it."""
            if not _is_statable(aval):
                return value
            new = Var(self._aval(aval))
            sharding, named = self._sharding(aval)
            origin, source = (like.primitive.name, like.source_info) if like is not None else ("argument", None)
            eqn = constraint_equation(value, new, sharding, named, origin, source)
            eqns.append(eqn if like is None else eqn.replace(ctx=_jax.context_on(like.ctx, _without_explicit)))
            return new

        def bind(variable: Var) -> Var:
            variables[variable] = new = Var(self._aval(variable.aval))
            return new

        constvars, invars = list(map(bind, jaxpr.constvars)), list(map(bind, jaxpr.invars))
        if is_main:
            variables.update({v: constrained(new, v.aval) for v, new in zip(jaxpr.invars, invars)})
        for eqn in jaxpr.eqns:
            ins = [read(v) for v in eqn.invars]
            if eqn.primitive.name == "reshard":
                variables[eqn.outvars[0]] = constrained(ins[0], eqn.outvars[0].aval, eqn)
                continue
            outs = list(map(bind, eqn.outvars))
            params = {name: self._param(value, places=eqn.primitive.name in _PLACING) for name, value in eqn.params.items()}
            if "jvp_jaxpr_fun" in params:
                params["jvp_jaxpr_fun"] = _jax.changed_rule(params["jvp_jaxpr_fun"], self._param, eqn.ctx.cur_abstract_mesh)
            if "fwd_jaxpr_thunk" in params:
                params |= self._backward(eqn)
            if eqn.primitive.name == "sharding_constraint":
                params["sharding"] = _joined(params["sharding"], eqn.outvars[0].aval)
            eqns.append(eqn.replace(invars=ins, outvars=outs, params=params, ctx=_jax.context_on(eqn.ctx, _without_explicit)))
            if eqn.primitive.name not in _CONSTRAINED_INSIDE:
                types = [v.aval for v in eqn.invars]
                variables.update({v: constrained(new, v.aval, eqn) for v, new in zip(eqn.outvars, outs) if _says_more(v.aval, types)})
        copy: Any = jaxpr
        self._jaxprs[jaxpr] = copy.replace(constvars=constvars, invars=invars, outvars=list(map(read, jaxpr.outvars)), eqns=eqns)
        return self._jaxprs[jaxpr]

    def _backward(self, eqn: JaxprEqn) -> dict[str, Any]:
        """The functions of a `custom_vjp_call` that are traced where it is differentiated."""
        params, mesh = eqn.params, eqn.ctx.cur_abstract_mesh
        traced: list[Any] = []

        def forward(value: Any) -> Any:
            if isinstance(value, Jaxpr):
                traced[:] = [v.aval for v in value.outvars]
            return self._param(value)

        def types() -> list[Any]:
            """Of the residuals, some of which are arguments of the call, and of the cotangents of its results."""
            computed = iter(traced)
            *_, forwarded = params["out_trees"]()
            residuals = [next(computed) if i is None else eqn.invars[i].aval for i in forwarded]
            return [*residuals, *(v.aval.to_ct_aval() for v in eqn.outvars)]

        return {
            "fwd_jaxpr_thunk": _jax.changed_rule(params["fwd_jaxpr_thunk"], forward, mesh),
            "bwd": _jax.changed_backward(params["bwd"], types, self._param, mesh),
        }

    def _param(self, value: Any, *, places: bool = False) -> Any:
        if isinstance(value, ClosedJaxpr):
            return ClosedJaxpr(self.jaxpr(value.jaxpr), self._param(value.consts))
        if isinstance(value, Jaxpr):
            return self.jaxpr(value)
        if type(value) in (tuple, list):
            return type(value)(self._param(each, places=places) for each in value)
        sharding = value.sharding if isinstance(value, jax.Array) and not isinstance(value, Tracer) else None
        if isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types:
            with jax.ensure_compile_time_eval(), traced_on(_without_explicit(sharding.mesh.abstract_mesh)):
                return jax.device_put(value, NamedSharding(_without_explicit(sharding.mesh), sharding.spec))
        if isinstance(value, NamedSharding) and AxisType.Explicit in value.mesh.axis_types:
            return NamedSharding(_without_explicit(value.mesh), value.spec) if places else None
        if isinstance(value, (AbstractMesh, Mesh)):
            return _without_explicit(value)
        return self._aval(value) if _jax.sharding_of(value) is not None and hasattr(value, "weak_type") else value

    def _aval(self, aval: Any) -> Any:
        """The type without axes."""
        sharding = _jax.sharding_of(aval)
        if sharding is None or sharding.mesh.empty or AxisType.Explicit not in sharding.mesh.axis_types:
            return aval
        return aval.update(sharding=NamedSharding(_without_explicit(sharding.mesh), PartitionSpec(*(None,) * len(aval.shape))))

    def _sharding(self, aval: Any) -> tuple[TensorSharding, NamedSharding]:
        """The sharding in a type, and what JAX can say of it: dimensions stay open for axes that are not Explicit."""
        is_mixed = AxisType.Auto in aval.sharding.mesh.axis_types
        sharding = self._meshes.sharding(aval.sharding, len(aval.shape), open_dimensions=is_mixed)
        spec = spec_of(aval)
        assert spec is not None
        return sharding, NamedSharding(_without_explicit(aval.sharding.mesh), spec)


def _joined(sharding: Any, aval: Any) -> Any:
    """The sharding of a constraint over Auto axes, with the Explicit ones of the type."""
    spec = _spec(aval)
    if spec is None or not isinstance(sharding, NamedSharding):
        return sharding
    entries = [*sharding.spec.partitions, *(None for _ in range(len(aval.shape) - len(sharding.spec)))]
    joined = [own if not typed else (*_axes(typed), *_axes(own)) for typed, own in zip(spec.partitions, entries, strict=True)]
    return sharding.update(spec=PartitionSpec(*joined))


def _axes(entry: Any) -> tuple[str, ...]:
    return entry if isinstance(entry, tuple) else (entry,) if isinstance(entry, str) else ()


def _says_more(aval: Any, operands: Sequence[Any]) -> bool:
    """Whether the type of a result shards it differently from an operand of the same shape."""
    spec = _spec(aval)
    if any(getattr(other, "shape", None) == aval.shape and _spec(other) == spec for other in operands):
        return False
    return any(each is not None and any(each.partitions) for each in (spec, *map(_spec, operands)))


def _is_statable(aval: Any) -> bool:
    spec = _spec(aval)
    return spec is not None and bool(aval.shape) and not spec.unreduced and not _jax.is_extended_dtype(aval.dtype)


def _spec(aval: Any) -> Any:
    return aval.sharding.spec if _jax.has_explicit_axes(aval) else None


_PLACING = ("device_put", "jit", "sharding_constraint")
"""Primitives whose shardings say where values are to lie; those of others repeat the types of their results."""

_CONSTRAINED_INSIDE = ("cond", "custom_jvp_call", "custom_vjp_call", "jit", "checkpoint", "closed_call", "scan", "while")
"""Primitives whose results are those of their bodies, which have constraints."""


@functools.lru_cache(maxsize=256)
def _without_explicit(mesh: Any) -> Any:
    """The mesh with Auto axes in place of Explicit ones."""
    types = [AxisType.Auto if kind is AxisType.Explicit else kind for kind in mesh.axis_types or ()]
    return mesh.update(axis_types=tuple(types)) if types else mesh
