"""A `jax.shard_map` region of a function of local arrays that is traced by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Var
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from shardy_py.frontends.context import local_type
from shardy_py.frontends.mesh_context import no_mesh
from shardy_py.frontends.transforms import axes_bound, hoisted, shard_map_equation, traced_locally


def region(
    local: Callable[..., Sequence[Any]],
    mesh: AbstractMesh,
    axes: Sequence[str],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    in_specs: Sequence[PartitionSpec],
    out_specs: Sequence[PartitionSpec],
) -> ClosedJaxpr:
    """As `jax.make_jaxpr(jax.shard_map(local, ..., check_vma=False))`, in two thirds of the time.

    Under `jax.shard_map` the types of all values name the mesh, which has to be looked at for each equation and says nothing where all of
    its axes are manual. So the function is traced as one of plain arrays, and the equation is made around what comes of it.
    """
    sizes = {name: mesh.shape[name] for name in axes}
    own = AbstractMesh(tuple(sizes.values()), tuple(sizes))  # without axes that are manual already, where the region stands in another
    arguments = [local_type(aval, _part(aval, own, spec)) for aval, spec in zip(inputs, in_specs, strict=True)]
    with no_mesh(), axes_bound(sizes):
        traced: Any = traced_locally(local, arguments)
    for aval, whole, spec in zip(traced.out_avals, outputs, out_specs, strict=True):
        assert aval.shape == _part(whole, own, spec), f"a result is {aval} on a device, and {whole} of spec {spec} in all"
    consts, specs = [Var(v.aval) for v in traced.jaxpr.constvars], [PartitionSpec() for _ in traced.consts]
    invars, outvars = [Var(aval) for aval in inputs], [Var(aval) for aval in outputs]
    with axes_bound(sizes):
        inside = hoisted(traced).jaxpr
    eqn = shard_map_equation(inside, mesh, axes, [*consts, *invars], outvars, [*specs, *in_specs], out_specs)
    return ClosedJaxpr(Jaxpr(consts, invars, outvars, [eqn], eqn.effects, traced.jaxpr.debug_info), traced.consts)


def _part(aval: Any, mesh: AbstractMesh, spec: PartitionSpec) -> tuple[int, ...]:
    """The shape of a device's part."""
    return NamedSharding(mesh, spec).shard_shape(aval.shape)
