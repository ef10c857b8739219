"""From a traced call to a Plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from shardy_py.api.abstract_state import Argument, abstract_state
from shardy_py.api.partitioning import Partitioning
from shardy_py.api.propagating import propagated
from shardy_py.api.specs import broadcast_specs, to_tensor_sharding
from shardy_py.api.stored_trees import axis_types_of, devices_of, structure_of
from shardy_py.api.tracing import TracedCall
from shardy_py.api.trees import Leaf, result_paths
from shardy_py.backends.donation import used_inputs, why_off
from shardy_py.backends.named_shardings import AnyMesh, NamedShardings
from shardy_py.dialect import TensorSharding
from shardy_py.frontends.jaxpr import Imported
from shardy_py.ir import TensorType
from shardy_py.passes.collection import no_collection
from shardy_py.passes.propagation.log import Step
from shardy_py.plan.donation import Donated, donations, refusals
from shardy_py.plan.plan import Plan
from shardy_py.plan.settings import Propagated
from shardy_py.plan.store.structure import Structure
from shardy_py.plan.timings import Timings
from shardy_py.plan.values import PlannedValue


@dataclass(frozen=True)
class NamedTrees:
    """A plan's shardings as pytrees of `NamedSharding`.

    Attributes:
        mesh: What the shardings refer to.
        in_tree: Structure of `(args, kwargs)`.
        out_tree: Structure of the result.
        names: Names of the positional arguments.
    """

    mesh: AnyMesh
    in_tree: Any
    out_tree: Any
    names: tuple[str, ...] = ()

    def inputs(self, plan: Plan) -> Any:
        """Like the tuple of arguments; `(args, kwargs)` where there are keyword arguments."""
        named = NamedShardings(self.mesh)
        args, kwargs = jax.tree.unflatten(self.in_tree, [named(v.sharding, len(v.shape)) for v in plan.inputs])
        return (args, kwargs) if kwargs else args

    def outputs(self, plan: Plan) -> Any:
        """Like the result."""
        named = NamedShardings(self.mesh)
        return jax.tree.unflatten(self.out_tree, [named(v.sharding, len(v.shape)) for v in plan.outputs])

    def abstract(self, plan: Plan, argument: str | int | None, mesh: Any, like: Any) -> Any:
        """The arguments as `jax.ShapeDtypeStruct`s."""
        args, kwargs = self.in_tree.children()
        positional = [Argument(name, t.num_leaves, t.unflatten) for name, t in zip(self.names, args.children(), strict=True)]
        keywords = [Argument(name, t.num_leaves, t.unflatten) for name, t in zip(kwargs.node_data()[1], kwargs.children(), strict=True)]
        return abstract_state(plan, positional, keywords, self.mesh, argument, mesh, like)

    def structure(self, plan: Plan) -> Structure:
        """What a stored plan keeps of the trees."""
        trees = structure_of(self.in_tree), structure_of(self.out_tree)
        return Structure(*trees, self.names, axis_types_of(self.mesh), devices_of(self.mesh))


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan with what the back ends need besides.

    Attributes:
        plan: The plan.
        imported: Its program.
        traced: What was planned.
        partitioning: Makes its region, under `lowering="shard_map"`.
    """

    plan: Plan
    imported: Imported
    traced: TracedCall
    partitioning: Partitioning | None = None


def result_leaves(traced: TracedCall) -> list[Leaf]:
    """Path, shape and type of each leaf of the result."""
    structs = jax.tree.leaves(traced.out_info)
    return [Leaf(path, tuple(s.shape), str(s.dtype)) for path, s in zip(result_paths(traced.out_info), structs)]


def out_shardings(traced: TracedCall, leaves: list[Leaf]) -> list[TensorSharding | None]:
    """The user's out_shardings, one per leaf of the result.

    Raises:
        SpecError: They do not fit.
    """
    given = traced.request.settings.out_shardings
    if given is None:
        return [None] * len(leaves)
    location = traced.request.location
    specs = broadcast_specs(given, traced.out_info, "out_shardings", lambda path: "result" + path, location)
    view = traced.request.view
    return [to_tensor_sharding(spec, view, leaf, "out_shardings", location=location) for spec, leaf in zip(specs, leaves)]


def make_plan(traced: TracedCall) -> Planned:
    """Reads the jaxpr, propagates, and describes the result."""
    request = traced.request
    timings = Timings()
    log: list[Step] | None = [] if request.settings.options.provenance else None
    with no_collection():
        with timings.step("describe"):
            results = result_leaves(traced)
            wanted = out_shardings(traced, results)
        names = [leaf.path for leaf in request.leaves]
        imported = propagated(traced.jaxpr, request.view, request.settings.options, request.shardings, wanted, timings, log, names)
        with timings.step("collect"):
            main = imported.program.main
            said = ["out_shardings" if given else "" for given in wanted]
            inputs = tuple(
                PlannedValue(leaf.path, "input", TensorType(leaf.shape, leaf.dtype), argument.sharding, given=given, given_by=by)
                for leaf, argument, given, by in zip(request.leaves, main.arguments, request.shardings, request.sources)
            )
            outputs = tuple(
                PlannedValue(leaf.path, "output", TensorType(leaf.shape, leaf.dtype), sharding, given=given, given_by=by)
                for leaf, sharding, given, by in zip(results, main.result_shardings, wanted, said)
            )
            donated = _donated(traced, imported, inputs, outputs)
            findings = (*request.findings, *imported.findings, *refusals(donated, request.location.partition(" (")[0]))
            trees = NamedTrees(request.view.given, request.in_tree, traced.out_tree, request.names)
            source = Partitioning(imported, traced) if request.settings.lowering == "shard_map" else None
            described = (inputs, outputs, findings, imported.program, log or (), timings, trees, donated, source)
            options = request.settings.options
            how = Propagated(options.strategy, options.conservative, options.op_priority, options.provenance)
            plan = Plan(request.name, request.view.core, *described, how)
    return Planned(plan, imported, traced, source)


def _donated(
    traced: TracedCall, imported: Imported, inputs: Sequence[PlannedValue], outputs: Sequence[PlannedValue]
) -> tuple[Donated, ...]:
    """What becomes of the donated arguments."""
    layout = traced.request.layout
    if not layout.donated:
        return ()
    slots: list[int | None] = []
    for i in layout.dynamic:
        leaves = jax.tree.structure(traced.request.slots[i]).num_leaves
        slots += [i if i in layout.donated else None] * leaves
    return donations(imported.program, inputs, outputs, slots, used_inputs(traced.jaxpr), why_off())
