"""The record of a plan: the decisions of planning, without the analyses that are computed beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

from shardy_py.cost.links import Lattice
from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.errors import ShardyError
from shardy_py.ir import Program, Value
from shardy_py.ir.types import local_bytes
from shardy_py.passes.collection import no_collection
from shardy_py.passes.propagation.step import Strategy
from shardy_py.plan.collectives import Collective
from shardy_py.plan.donation import Donated
from shardy_py.plan.feeding import Feeding, feeding_of
from shardy_py.plan.findings import Finding
from shardy_py.plan.progress import Timings
from shardy_py.plan.search import Search
from shardy_py.plan.values import PlannedValue
from shardy_py.plan.values import intermediates as planned_intermediates


@dataclass(frozen=True, slots=True)
class PropagationOptions:
    """The options of the propagation that set a plan's shardings."""

    strategy: Strategy = "aggressive"
    conservative: bool = False
    op_priority: bool = True
    recorded: bool = True


class PlanError(ShardyError):
    """A plan lacks the value that a caller names, or `Plan.check` raises its findings.

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


@dataclass(frozen=True, slots=True)
class Tree:
    """The structure of a pytree, as a plan is stored with it.

    Attributes:
        kind: `node` is anything else that is a pytree, which becomes a dict when it is read: no class is looked up by its name.
        keys: Of a dict or a node, one for each child.
        cls: The name of the class of a node, for people to read.
    """

    kind: Literal["leaf", "none", "list", "tuple", "dict", "node"]
    children: tuple[Tree, ...] = ()
    keys: tuple[str | int, ...] = ()
    cls: str = ""

    def __post_init__(self) -> None:
        if len(set(self.keys)) != len(self.keys) or (self.kind in ("dict", "node") and len(self.keys) != len(self.children)):
            raise ShardyError(f"a {self.kind} of a tree does not have one key for each child")

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.kind == "leaf" else sum(child.leaves for child in self.children)


@dataclass(frozen=True)
class Structure:
    """The pytree structures of a plan: `inputs` of `(args, kwargs)`; `devices` is empty for 0, 1, 2, ... or a mesh without any."""

    inputs: Tree
    outputs: Tree
    names: tuple[str, ...]
    axis_types: tuple[str, ...]
    devices: tuple[int, ...] = ()


class Pytrees(Protocol):
    """Gives a plan's shardings in the form of the framework it was made for."""

    def trees(self, plan: PlanRecord) -> Any:
        """The arguments and the result, see `shardy_py.api.stored_trees.PlanTrees`."""
        ...

    def place(self, plan: PlanRecord, args: Any, mesh: Any) -> Any:
        """The arguments where the plan has them, see `Plan.place`."""
        ...

    def structure(self, plan: PlanRecord) -> Structure:
        """Both structures as stored with a plan."""
        ...


class RegionPartitioner(Protocol):
    """Partitions a plan into local arrays and explicit collectives, at first use of a result."""

    def is_run(self, plan: PlanRecord) -> bool:
        """Whether the partitioned program runs; XLA's partitioner may be left with the plan."""
        ...

    def has_region(self, plan: PlanRecord) -> bool:
        """Whether there is a partitioned program: one that runs, or one that figures of a plan are read from that XLA partitions."""
        ...

    def collectives(self, plan: PlanRecord) -> tuple[Collective, ...]:
        """The collectives in execution order."""
        ...

    def region_jaxpr(self, plan: PlanRecord) -> Any:
        """The partitioned program as a jaxpr; None if the plan has `local_program` only."""
        ...

    def findings(self, plan: PlanRecord) -> tuple[Finding, ...]:
        """Findings for ops that could not be partitioned, or the reason why the partitioned program is not run."""
        ...

    def local_program(self, plan: PlanRecord) -> Program:
        """The program that runs on every device."""
        ...


@dataclass(frozen=True)
class Variant:
    """A plan of the function with something changed.

    Attributes:
        location: `file:line` of the user's code to change; empty where it is the annotations.
    """

    change: str
    plan: PlanRecord
    location: str = ""
    of_residuals: bool = False


class Variants(Protocol):
    """Plans variants of a function."""

    def variants(self, plan: PlanRecord, peak: int) -> Iterator[Variant]:
        """Variants that may have a smaller peak."""
        ...

    def with_shardings(self, plan: PlanRecord, shardings: Mapping[str, TensorSharding]) -> PlanRecord | None:
        """The plan with other shardings of values, by path, as if the user had written them; None where that cannot be."""
        ...

    def code(self, plan: PlanRecord, style: Any) -> Any:
        """The plan as code to paste, see `Plan.as_code`."""
        ...

    def compiled(self, plan: PlanRecord, topology: str | None, hardware: Any) -> Any:
        """What a compiler makes of the plan, see `Plan.compile_for`."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class PlanRecord:
    """The shardings of a function's inputs, outputs and intermediates, and how they came about.

    Attributes:
        name: The function's name.
        mesh: Axes and sizes.
        inputs: One per leaf of the arguments, in order.
        outputs: One per leaf of the result, in order.
        planning_findings: Findings of planning: unused rules, primitives without a rule, ...
        timings: Seconds per step of planning.
        program: The program after all passes.
        log: The steps of the propagation.
        pytrees: Its shardings in the form of the framework it was made for; None of a plan of MLIR text.
        donation: One per donated leaf of the arguments: the output that reuses its memory, or why none does.
        partitioner: Our partitioner, where there is a jaxpr or its stored region; None of a plan of MLIR text.
        propagation: The options of its propagation.
        platform: The platform that it is for, as JAX names it: `cpu`, `cuda`, `rocm`, `tpu`.
        variants: Plans the function with something changed; None of a stored plan.
        search: The planner's search; None where the user's annotations were propagated.
        dropped: Numbers of the inputs that no result needs, which JAX drops before it compiles; none with `keep_unused=True`.
        lattices: Mesh axis -> how it lies on the torus of the mesh's devices; empty where these have no coordinates.
        stated_feeding: What is fed, where a planner was told or a file says so; None where the rule of `plan/feeding.py` decides.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.sin, mesh={"x": 4}, in_shardings=jax.P("x")).plan(jnp.ones(8))
        >>> plan.name, str(plan.inputs[0]), str(plan.outputs[0])
        ('sin', 'x: float32[8@x]', 'result: float32[8@x]')
    """

    name: str
    mesh: Mesh
    inputs: tuple[PlannedValue, ...]
    outputs: tuple[PlannedValue, ...]
    planning_findings: tuple[Finding, ...]
    program: Program
    log: Sequence[Any] = ()
    timings: Timings = field(default_factory=Timings)
    pytrees: Pytrees | None = None
    donation: tuple[Donated, ...] = ()
    partitioner: RegionPartitioner | None = None
    propagation: PropagationOptions = field(default_factory=PropagationOptions)
    platform: str = "cpu"
    variants: Variants | None = None
    search: Search | None = None
    dropped: tuple[int, ...] = ()
    stated_feeding: Feeding | None = None
    lattices: Mapping[str, Lattice] = field(default_factory=dict[str, Lattice])

    @functools.cached_property
    def analyses(self) -> dict[Any, Any]:
        """The results of `Analysis` that have been computed; not part of the record."""
        return {}

    @functools.cached_property
    def active_partitioner(self) -> RegionPartitioner | None:
        """The partitioner whose region figures are read from, whether that runs or XLA partitions; None where it can make none."""
        return self.partitioner if self.partitioner is not None and self.partitioner.has_region(self) else None

    @functools.cached_property
    def lowering(self) -> Literal["jit", "shard_map"]:
        """The lowering of a call: `shard_map` or `jit`. Under `lowering="auto"` decided here."""
        return "shard_map" if self.partitioner is not None and self.partitioner.is_run(self) else "jit"

    @property
    def is_assigned(self) -> bool:
        """Whether a planner chose the sharding of every value, so that it runs as it is; else some follow by propagation."""
        return self.search is not None and self.search.shards_values

    @functools.cached_property
    def feeding(self) -> Feeding:
        """The arguments that come from the host in every call, and the results that go back to it."""
        donated = {d.input for d in self.donation}
        return self.stated_feeding or feeding_of(self.program, self.inputs, self.outputs, donated, self.dropped)

    @property
    def fed_bytes(self) -> int:
        """The bytes of a device's pieces of these."""
        fed = (*(self.inputs[n] for n in self.feeding.arguments), *(self.outputs[n] for n in self.feeding.results))
        return sum(local_bytes(value.type, value.sharding, self.program.meshes) for value in fed)

    @functools.cached_property
    def intermediates(self) -> tuple[tuple[Value, PlannedValue], ...]:
        """The values between inputs and outputs, in program order."""
        with no_collection():
            return tuple(planned_intermediates(self.program))

    @functools.cached_property
    def values(self) -> tuple[PlannedValue, ...]:
        """Every value: inputs, intermediates in program order, outputs."""
        return (*self.inputs, *(planned for _, planned in self.intermediates), *self.outputs)

    @functools.cached_property
    def described(self) -> dict[Value, PlannedValue]:
        """The values of the program that the plan lists: intermediates and arguments."""
        return {**dict(self.intermediates), **dict(zip(self.program.main.arguments, self.inputs))}

    @functools.cached_property
    def names(self) -> dict[Value, str]:
        """The paths of inputs and intermediates."""
        return {value: planned.path for value, planned in self.described.items()}

    @functools.cached_property
    def by_path(self) -> dict[str, tuple[Value | int, PlannedValue]]:
        """Path -> the value, for a result of the function its number; inputs come first where a path stands for several."""
        numbered = (*self.intermediates, *enumerate(self.outputs), *zip(self.program.main.arguments, self.inputs))
        return {planned.path: (value, planned) for value, planned in numbered}


T = TypeVar("T")


class Analysis(Generic[T]):
    """Decorates a function of a plan: its result is computed once per plan. A plan never changes, so results are never invalidated.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> from shardy_py.plan.record import Analysis
        >>> @Analysis
        ... def rank_of_first_input(plan):
        ...     return len(plan.inputs[0].shape)
        >>> plan = sp.auto_shard(lambda x: x * 2, mesh={"x": 2}).plan(jnp.ones((4, 4)))
        >>> rank_of_first_input.is_computed(plan), rank_of_first_input(plan), rank_of_first_input.is_computed(plan)
        (False, 2, True)
    """

    def __init__(self, compute: Callable[[PlanRecord], T]) -> None:
        self._compute = compute
        functools.update_wrapper(self, compute)

    def __call__(self, plan: PlanRecord) -> T:
        """The result for a plan."""
        if self not in plan.analyses:
            plan.analyses[self] = self._compute(plan)
        return cast(T, plan.analyses[self])

    def keep(self, plan: PlanRecord, result: T) -> None:
        """Has a result for a plan that differs from the computed one."""
        plan.analyses[self] = result

    def is_computed(self, plan: PlanRecord) -> bool:
        """Whether the result has been computed."""
        return self in plan.analyses
