"""Plan: what planning decided, for people and for programs to read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from shardy_py.dialect import Mesh
from shardy_py.dialect.format import printable
from shardy_py.errors import ShardyError
from shardy_py.ir import Program, Value
from shardy_py.passes.collection import no_collection
from shardy_py.plan.collectives import Collective
from shardy_py.plan.costs import Costs
from shardy_py.plan.donation import Donated
from shardy_py.plan.explain import Explanation
from shardy_py.plan.findings import Finding
from shardy_py.plan.reshards import Reshard, find_reshards
from shardy_py.plan.settings import Propagated
from shardy_py.plan.stored import Stored
from shardy_py.plan.timings import Timings
from shardy_py.plan.values import PlannedValue, intermediates
from shardy_py.plan.views import Views

if TYPE_CHECKING:
    from shardy_py.plan.explaining import Explainer
    from shardy_py.plan.remedies import Variants
    from shardy_py.plan.store.structure import Structure


class PlanError(ShardyError):
    """`Plan.check` found something that should be put right.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> mean = sp.auto_shard(lambda x: x.mean(), mesh={"data": 4, "model": 2}, in_shardings=P("data"))
        >>> try:
        ...     findings = mean.plan(jax.ShapeDtypeStruct((1 << 12, 1 << 12), jnp.float32)).check(strict=True)
        ... except sp.PlanError as error:
        ...     print("unused-axis" in str(error))
        True
    """


class ShardingTrees(Protocol):
    """Gives a plan's shardings in the form of the framework it was made for."""

    def inputs(self, plan: Plan) -> Any:
        """The input shardings, in the structure of the arguments."""
        ...

    def outputs(self, plan: Plan) -> Any:
        """The output shardings, in the structure of the result."""
        ...

    def abstract(self, plan: Plan, argument: str | int | None, mesh: Any, like: Any) -> Any:
        """The arguments without their values, see `Plan.abstract_state`."""
        ...

    def place(self, plan: Plan, args: Any, mesh: Any) -> Any:
        """The arguments where the plan has them, see `Plan.place`."""
        ...

    def structure(self, plan: Plan) -> Structure:
        """What a stored plan keeps of both structures."""
        ...


class CollectiveSource(Protocol):
    """Partitions a plan that is run by explicit collectives, when it is first asked for what came of that."""

    def is_run(self, plan: Plan) -> bool:
        """Whether the partitioned program runs; under `lowering="auto"` XLA's partitioner may be left with the plan."""
        ...

    def collectives(self, plan: Plan) -> tuple[Collective, ...]:
        """In the order in which they run."""
        ...

    def findings(self, plan: Plan) -> tuple[Finding, ...]:
        """What could not be partitioned, or why the partitioned program is not run."""
        ...

    def local_program(self, plan: Plan) -> Program:
        """What runs on every device, as a program."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Views, Costs, Stored):
    """The shardings of a function's inputs, outputs and intermediates, and how they came about.

    Attributes:
        name: The function's name.
        mesh: Axes and sizes.
        inputs: One per leaf of the arguments, in order.
        outputs: One per leaf of the result, in order.
        noted: What planning found: rules not used, primitives without a rule, ...
        timings: Seconds per step of planning.
        program: The program after all passes.
        log: The steps of the propagation.
        donation: One per donated leaf of the arguments: the output that reuses its memory, or why none does.
        partitioner: What may run the plan by explicit collectives; None under `lowering="jit"`.
        propagation: How its shardings were propagated.
        platform: What it is for, as JAX names it: `cpu`, `cuda`, `rocm`, `tpu`.
        variants: Plans the function with something changed; None of a stored plan.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> layer = sp.auto_shard(lambda w, x: x @ w, mesh={"data": 4, "model": 2}, in_shardings=(P(None, "model"), P("data")))
        >>> plan = layer.plan(jax.ShapeDtypeStruct((8, 8), jnp.float32), jax.ShapeDtypeStruct((8, 8), jnp.float32))
        >>> for value in (*plan.inputs, *plan.outputs):
        ...     print(value)
        w: float32[8,8@model]
        x: float32[8@data,8]
        result: float32[8@data,8@model]
    """

    name: str
    mesh: Mesh
    inputs: tuple[PlannedValue, ...]
    outputs: tuple[PlannedValue, ...]
    noted: tuple[Finding, ...]
    program: Program
    log: Sequence[Any] = ()
    timings: Timings = field(default_factory=Timings)
    trees: ShardingTrees | None = None
    donation: tuple[Donated, ...] = ()
    partitioner: CollectiveSource | None = None
    propagation: Propagated = field(default_factory=Propagated)
    platform: str = "cpu"
    variants: Variants | None = None

    @functools.cached_property
    def source(self) -> CollectiveSource | None:
        """What runs the plan by explicit collectives; None where XLA's partitioner runs it. Under `lowering="auto"` decided here."""
        return self.partitioner if self.partitioner is not None and self.partitioner.is_run(self) else None

    @property
    def lowering(self) -> Literal["jit", "shard_map"]:
        """How a call runs the plan."""
        return "jit" if self.source is None else "shard_map"

    @property
    def input_shardings(self) -> Any:
        """A pytree of `NamedSharding` of the structure of the tuple of arguments; with keyword arguments `(args, kwargs)`."""
        return None if self.trees is None else self.trees.inputs(self)

    @property
    def output_shardings(self) -> Any:
        """A pytree of `NamedSharding` of the structure of the result."""
        return None if self.trees is None else self.trees.outputs(self)

    @functools.cached_property
    def _intermediates(self) -> tuple[tuple[Value, PlannedValue], ...]:
        with no_collection():
            return tuple(intermediates(self.program))

    @functools.cached_property
    def values(self) -> tuple[PlannedValue, ...]:
        """Every value: inputs, intermediates in program order, outputs."""
        return (*self.inputs, *(planned for _, planned in self._intermediates), *self.outputs)

    @functools.cached_property
    def reshards(self) -> tuple[Reshard, ...]:
        """Where data moves, in program order: values that change their sharding, and sums over devices.

        Found when first asked for. They are what Shardy makes explicit for the plan's shardings; under `lowering="jit"` XLA's
        partitioner may move data otherwise.
        """
        return find_reshards(self.program, self._names, tuple(output.path for output in self.outputs))

    @functools.cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives that a call runs, with bytes and trips.

        Under `lowering="shard_map"` those of the partitioned program, which is made when they are first asked for; under
        `lowering="jit"` those that XLA's partitioner is predicted to make on a CPU, where it has an all-reduce and a slice in place of a
        reduce-scatter; benchmarks/README.md says how far that is from what it makes.
        """
        return tuple(p.collective for p in self._predicted) if self.source is None else self.source.collectives(self)

    @functools.cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What deserves a look, in the order of severity and bytes; `plan/checks/table.py` lists the kinds.

        The plan is checked when they are first asked for, and unless under `lowering="jit"` partitioned.
        """
        from shardy_py.plan.checks.table import all_findings

        return all_findings(self, self.noted if self.partitioner is None else (*self.noted, *self.partitioner.findings(self)))

    @functools.cached_property
    def _names(self) -> dict[Value, str]:
        names = {value: described.path for value, described in self._intermediates}
        names.update((value, described.path) for value, described in zip(self.program.main.arguments, self.inputs))
        return names

    def check(self, strict: bool = False, *, ignore: str | Iterable[str] = ()) -> tuple[Finding, ...]:
        """The findings; raises where one is an error.

        Args:
            strict: Raise for warnings too.
            ignore: Findings that are accepted, and left out: `"unused-axis"` is a kind, `"replicated-large:params['table']"` a kind and a
                path or a pattern of paths: the last components, as in `rules=`, or all of it with `*` for any characters.

        Raises:
            PlanError: There are such findings.
            ShardyError: What is to be ignored is no kind of finding.
        """
        from shardy_py.plan.checks.accept import accepted, alike

        findings = accepted(self.findings, ignore)
        bad = [f for f in findings if f.severity == "error" or (strict and f.severity == "warning")]
        if bad:
            listed = "\n".join(f"  {group}" for group in alike(bad))
            raise PlanError(f"the plan of {self.name} has {len(bad)} finding{'s' if len(bad) > 1 else ''}\n{listed}")
        return findings

    def explain(self, target: str | PlannedValue, axis: str | None = None, *, dim: int | None = None) -> Explanation:
        """Why a value has the sharding it has, back to the annotations; or why it lacks an axis.

        Args:
            target: A path (`params['w']`, `result[0]`), the name of an intermediate (`%12`, or one given by `checkpoint_name`), one of
                `plan.values`; or `file.py:line`, the path of a scope or module, or a variable of the source, which stand for the last value
                that the forward computation makes there.
            axis: Only this mesh axis; where the value lacks it, why.
            dim: Only this dimension.

        Returns:
            Its text is made for a terminal; `chains` and `missing` have the same for programs.

        Raises:
            PlanError: There is no such value, axis or dimension, or the plan was made without `Options.provenance`.
        """
        from shardy_py.plan.explained import explained

        return explained(self, target, axis, dim)

    @functools.cached_property
    def _by_path(self) -> dict[str, tuple[Value | int, PlannedValue]]:
        """Path -> the value, for a result of the function its number; inputs come first where a path stands for several."""
        found: dict[str, tuple[Value | int, PlannedValue]] = {planned.path: (value, planned) for value, planned in self._intermediates}
        found.update((planned.path, (number, planned)) for number, planned in enumerate(self.outputs))
        found.update((planned.path, (value, planned)) for value, planned in zip(self.program.main.arguments, self.inputs))
        return found

    @functools.cached_property
    def _explainer(self) -> Explainer:
        from shardy_py.plan.explaining import Explainer

        return Explainer(self)

    def as_text(
        self,
        *,
        where: str | Callable[[PlannedValue], object] | None = None,
        values: bool = True,
        depth: int | None = None,
        limit: int | None = 60,
        width: int = 100,
    ) -> str:
        """The plan as text; the same plan gives the same text in every process.

        Inputs and outputs come by path, intermediates by module and source line, each with its bytes on one device; then what moves, which
        is `reshards`, or under `lowering="shard_map"` `collectives`, and what was found. Layers that are alike are one (`[0..23]`). A part
        with more lines than `limit` is cut to the values with the most bytes, replicated ones first among equals, and says what it leaves
        out. Broadcasts and iotas, which XLA makes inside of what reads them, are shown only where asked for.

        Args:
            where: Shows only some values, with their reshards and findings: a string that a path, primitive, `file:line` or module
                contains; one with `*` or `?`, a pattern as in `ignore=` of `check`; or a function of a `PlannedValue`.
            values: Whether to list the intermediates too.
            depth: Levels of paths and modules that are shown; what is below is counted.
            limit: Lines of each part; None for all.
            width: Where sentences are broken.

        Raises:
            TypeError: `where` is neither a string nor a function.
            ShardyError: `depth` or `limit` is less than 1.
        """
        from shardy_py.view.text import plan_text

        return printable(plan_text(self, values=values, where=where, depth=depth, limit=limit, width=width))

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        known = self.__dict__.get("findings", self.noted)  # without partitioning for it
        grave = sum(finding.severity != "info" for finding in known)
        found = f"{grave} findings, {len(known) - grave} notes"
        return printable(f"<Plan of {self.name} on {axes}: {len(self.inputs)} inputs, {len(self.outputs)} outputs, {found}>")
