"""A planned function that is called inside of a shard_map over some axes of its mesh."""

from __future__ import annotations

from typing import Any

import jax

from shardy_py.api.meshes import MeshView
from shardy_py.api.partitioning import RegionBuilder
from shardy_py.api.planning import make_plan
from shardy_py.api.request import Settings, request
from shardy_py.api.signature import ArgumentSlots
from shardy_py.api.static_leaves import user_tree
from shardy_py.api.tracing import trace
from shardy_py.backends.shard_map import fits_inside
from shardy_py.frontends.mesh_context import no_mesh


def run_inside(settings: Settings, view: MeshView, layout: ArgumentSlots, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs the function; unless under `lowering="jit"` in a region over the axes that are left, where the plan uses only those."""
    context = jax.sharding.get_abstract_mesh()
    sizes = {name: size for name, size in view.sizes.items() if name not in context.manual_axes and size > 1}
    if settings.lowering == "jit" or not sizes or dict(context.shape) != view.sizes:
        return settings.fun(*args, **kwargs)
    slots = layout.slots(args, kwargs)
    call = request(settings, view, layout, slots, runs=True)
    with no_mesh():
        planned = make_plan(trace(call))
    plan = planned.plan
    inputs, outputs = ([v.sharding for v in values] for values in (plan.inputs, plan.outputs))
    if not fits_inside(planned.imported, context, inputs, outputs):
        return settings.fun(*args, **kwargs)
    by_planner = planned.region is not None and planned.region.by_planner
    partitioning = RegionBuilder(planned.imported, planned.traced, context, by_planner=by_planner)
    if not partitioning.is_run(plan):
        return settings.fun(*args, **kwargs)
    results = partitioning.calling(plan, None)(*jax.tree.leaves(layout.dynamic_arguments(slots)))
    return user_tree(jax.tree.unflatten(planned.traced.out_tree, results))
