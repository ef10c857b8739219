"""The result of a planner's search: what the plan costs, how much less any other could cost, and what else was considered."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import aligned
from shardy_py.errors import UserError
from shardy_py.ir import Type
from shardy_py.plan.checks.specs import sharding_text
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.cost_analysis import seconds_text
from shardy_py.plan.progress import WORTH_TELLING
from shardy_py.plan.values import typed

Status = Literal["optimal", "time_limit", "work_limit", "template"]
STATUSES: tuple[Status, ...] = get_args(Status)

KeptAnnotations = Literal["keep", "hint", "ignore"]
"""Whether the user's constraints on values inside hold."""


NOTHING = "nothing is sharded"
"""What a plan is called that uses no axis; the name in `Search.space` of what it takes beside a plan that uses some."""


MODEL_BOUND = "lower bound by single ops"
"""The name in `Search.space` of a bound that the plan is below: a region also shares copies, and fuses otherwise."""


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of pinning an input, or of an annotation, compared with the plan.

    Attributes:
        path: The input.
        spec: Its sharding.
        seconds: More than the plan takes.
        bytes: More than the plan's peak; None where it was not computed.
        lower_bound_seconds: At least so many seconds more, whatever else is chosen; negative where the bound of the search is loose.
        gap: Of a pinned value, the part of its step by which a better plan with it could be cheaper.

    Example:
        >>> print(Price("w", "P()", 2e-3, 1 << 20, 1e-3))
        w as P(): 2 ms more, at least 1 ms
    """

    path: str
    spec: str
    seconds: float
    bytes: int | None
    lower_bound_seconds: float
    gap: float = 0.0

    def __str__(self) -> str:
        least = f", at least {seconds_text(self.lower_bound_seconds)}" if self.lower_bound_seconds > WORTH_TELLING * self.seconds else ""
        return f"{self.path} as {self.spec}: {seconds_text(max(self.seconds, 0.0))} more{least}"


@dataclass(frozen=True, slots=True)
class Constraint:
    """The sharding of a value inside of the function that propagation needs, besides those of inputs and results, to give the plan.

    Attributes:
        value: The path of the value in the plan.
        type: Its type.
        location: `file:line` of the user's code at which it stands; empty where no line of it makes the value, as in a backward pass.
        sharding: The sharding.
        primitive: The JAX primitive that makes the value; the reader's primitive where it is constrained in front of one.
        is_in_front: Whether it is constrained in front of a loop, or of a gather, that reads it.
        number: Of the variable, among all that may be constrained.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, planner=sp.Planner(hardware="h100")).plan(jnp.eye(8), jnp.eye(8))
        >>> plan.search.constraints
        ()
    """

    value: str
    type: Type
    location: str
    sharding: TensorSharding
    primitive: str
    is_in_front: bool
    number: int

    @property
    def spec(self) -> str:
        """The sharding as a `PartitionSpec` to paste."""
        return sharding_text(self.sharding)

    def __str__(self) -> str:
        place = f"in front of the {self.primitive}" if self.is_in_front else f"from {self.primitive}"
        return f"{self.value}, {typed(self.type, None)}, {place}{f' at {self.location}' if self.location else ''} as {self.spec}"


@dataclass(frozen=True, eq=False)
class Alternative:
    """A plan that the search considered.

    Attributes:
        name: Of the template, or the change.
        objective_seconds: Its step, as `Search.objective_seconds`.
        inputs: Path of an input -> its sharding as text.
        budget_bytes: As of the search.
        planned: The plan, made once; None of a stored one.
        peak_of: Its peak.
        constrained: Finds its constraints, as `Search.constraints`; None of a stored one.
        stored_peak_bytes: The peak of a stored one.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, planner=sp.Planner(hardware="h100")).plan(jnp.eye(8), jnp.eye(8))
        >>> plan.search.alternatives[1].name
        'tensor parallel over x'
    """

    name: str
    objective_seconds: float
    inputs: Mapping[str, str]
    budget_bytes: int | None = None
    planned: Callable[[], Any] | None = field(default=None, repr=False)
    peak_of: Callable[[Any], int] = field(default=lambda plan: 0, repr=False)
    constrained: Callable[[], tuple[Constraint, ...]] | None = field(default=None, repr=False)
    stored_peak_bytes: int = 0

    def plan(self) -> Any:
        """The plan, with everything a plan has; made when it is first asked for.

        Raises:
            ValueError: The search was read from a file.
        """
        if self.planned is None:
            raise ValueError(f"alternative {self.name!r} was read from a file, which keeps only prices; plan again to get its plan")
        return self.planned()

    @functools.cached_property
    def peak_bytes(self) -> int:
        """Its peak, by `memory_analysis`; its plan is made for it, unless the search was read from a file."""
        return self.stored_peak_bytes if self.planned is None else self.peak_of(self.plan())

    @property
    def fits(self) -> bool:
        """Whether the peak is within the budget."""
        return self.budget_bytes is None or self.peak_bytes <= self.budget_bytes

    @functools.cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """The fewest constraints with which propagation gives it; see `Search.constraints`.

        Raises:
            ValueError: The search was read from a file.
        """
        if self.constrained is None:
            raise ValueError(f"alternative {self.name!r} was read from a file, which keeps only prices; plan again to get its constraints")
        return self.constrained()

    @property
    def in_shardings(self) -> Any:
        """The input shardings of its plan, as in `Plan.input_shardings`."""
        return self.plan().input_shardings


class Pricer(Protocol):
    """Answers questions from where a search ended."""

    def alternatives(self) -> tuple[Alternative, ...]:
        """Other plans, the cheapest first."""
        ...

    def price(self, path: str, spec: Any) -> Price:
        """The cost of pinning a value."""
        ...

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The fewest constraints with which propagation gives the plan."""
        ...

    @property
    def certificate(self) -> str:
        """The proof of the lower bound."""
        ...

    def price_of_annotations(self) -> tuple[Price, ...]:
        """Per annotation, the seconds that dropping it saves; the largest saving first."""
        ...


@dataclass(frozen=True, eq=False)
class Search:
    """The result of a search for shardings; `plan.search`.

    Attributes:
        hardware: The hardware whose seconds these are.
        objective_seconds: Of one call of the plan, by `cost_analysis`: nothing overlaps unless `Planner.overlap` says so.
        lower_bound_seconds: No plan of the space takes less by the model's prices of its ops. At most the objective, which may be below.
        peak_bytes: Of one device, by `memory_analysis`.
        budget_bytes: The most that the peak may be; None without a budget.
        status: `optimal` where the gap was reached; `time_limit` where time ran out before; `work_limit` where the counted work of a search
            did, as the rounds that a budget takes do, or the bound is below any plan: a plan can cost more than its ops one by one, and
            under a budget the bound knows arguments and results only; `template` where nothing better than a template was found.
        stored_alternatives: Of a search that was read from a file.
        space: The searched space, in words.
        timings: Seconds of each step.
        pricer: Answers questions; None of a stored plan.
        stored_constraints: Of a search that was read from a file.
        stored_certificate: Of a search that was read from a file.
        margin_bytes: The peak of the compiled program may be so much above: the error of its estimate by docs/memory.md.
        shards_values: Whether it chose the shardings of values inside too; else they follow by propagation from the inputs and results.
        constraint_prices: Where the user's constraints inside cost more than a tenth of the step: the price of all together, and of the
            lines that cost most, each as if no other held.
        annotations: As of `Planner`.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, planner=sp.Planner(hardware="h100")).plan(jnp.eye(8), jnp.eye(8))
        >>> print(plan.search.headline)
        step 0.115 ns on h100, at least 0.115 ns in the space searched (0.0% gap, optimal), peak 384 B of 74.5 GiB
    """

    hardware: str
    objective_seconds: float
    lower_bound_seconds: float
    peak_bytes: int
    budget_bytes: int | None
    status: Status
    stored_alternatives: tuple[Alternative, ...] = ()
    space: Mapping[str, str] = field(default_factory=dict[str, str])
    timings: Mapping[str, float] = field(default_factory=dict[str, float])
    pricer: Pricer | None = field(default=None, repr=False)
    stored_constraints: tuple[Constraint, ...] = ()
    stored_certificate: str = field(default="", repr=False)
    margin_bytes: int = 0
    shards_values: bool = True
    constraint_prices: tuple[Price, ...] = ()
    annotations: KeptAnnotations = "keep"

    @functools.cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """The fewest constraints of values inside with which propagation from the inputs and results gives the plan.

        They are searched for, by some propagations of the program, when they are first read or the plan is stored.
        """
        return self.stored_constraints if self.pricer is None else self.pricer.constraints

    @functools.cached_property
    def certificate(self) -> str:
        """The problem that was solved, with dual values that prove a lower bound, as text; `shardy_py.planner.certificate` checks it.

        It is made when it is first read or the plan is stored.
        """
        return self.stored_certificate if self.pricer is None else self.pricer.certificate

    @functools.cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Templates, and then plans next to the best that differ from it in several ways, of each the cheapest first.

        They are priced when they are first read.
        """
        return self.stored_alternatives if self.pricer is None else self.pricer.alternatives()

    def priced(self) -> Search:
        """The search with its alternatives priced, and without what could answer questions."""
        alternatives = tuple(replace(each, stored_peak_bytes=each.peak_bytes, planned=None) for each in self.alternatives)
        return replace(self, pricer=None, stored_alternatives=alternatives)

    def stored(self) -> Search:
        """The search as a file keeps it: its constraints, certificate and alternatives are computed."""
        return replace(self.priced(), stored_constraints=self.constraints, stored_certificate=self.certificate)

    @property
    def gap(self) -> float:
        """The part of the objective by which a better plan could be cheaper."""
        return (self.objective_seconds - self.lower_bound_seconds) / self.objective_seconds if self.objective_seconds > 0 else 0.0

    def price(self, path: str, spec: Any) -> Price:
        """The cost of pinning a value: the search goes on from its end, with the value pinned.

        Args:
            path: The value, as in `plan.values`; with one inside, what must lie as it does is pinned too.
            spec: A `PartitionSpec`.

        Raises:
            ValueError: There is no such value, or the search was read from a file.
        """
        return self._pricer().price(path, spec)

    def price_of_annotations(self) -> tuple[Price, ...]:
        """Per annotation of the user's, and per line of constraints inside, the seconds that dropping it saves; the dearest first.

        Raises:
            ValueError: The search was read from a file.
        """
        return self._pricer().price_of_annotations()

    def _pricer(self) -> Pricer:
        if self.pricer is None:
            why = "a stored plan keeps only the result of its search"
            raise UserError("the search was read from a file", where="plan.search", why=why, fix="plan again, function.plan(*args)")
        return self.pricer

    @property
    def has_bound(self) -> bool:
        """Whether the lower bound says anything: a search that ends early may have none but a small part of the objective."""
        return self.lower_bound_seconds >= WORTH_TELLING * self.objective_seconds and MODEL_BOUND not in self.space

    @property
    def bound_text(self) -> str:
        """The lower bound, which holds for the plans of the space that was searched, and how far the plan is from it."""
        if MODEL_BOUND in self.space:
            return f"below {self.space[MODEL_BOUND]}, the least in the space searched by prices of single ops ({self.status})"
        if not self.has_bound:
            advice = "; a longer time_limit_s helps" if self.status == "time_limit" or "time limit" in self.space else ""
            return f"no lower bound yet ({self.status}{advice})"
        return f"at least {seconds_text(self.lower_bound_seconds)} in the space searched ({self.gap:.1%} gap, {self.status})"

    @functools.cached_property
    def headline(self) -> str:
        """Objective, bound and budget in one line."""
        parts = [f"step {seconds_text(self.objective_seconds)} on {self.hardware}"]
        parts.append(self.bound_text)
        peak = format_bytes(self.peak_bytes)
        parts.append(f"peak {peak}" if self.budget_bytes is None else f"peak {peak} of {format_bytes(self.budget_bytes)}")
        return ", ".join((*parts, NOTHING) if NOTHING in self.space else parts)

    def __str__(self) -> str:
        rows = [(a.name, seconds_text(a.objective_seconds), *_memory(a)) for a in self.alternatives]
        space = [f"  {name}: {text}" for name, text in self.space.items()]
        lines = [self.headline, *(f"  {line}" for line in aligned([("alternative", "step", "peak", ""), *rows]))]
        constraints = [f"  constraint: {each}" for each in self.constraints]
        return "\n".join(line.rstrip() for line in (*lines, *constraints, *space))


def _memory(alternative: Alternative) -> tuple[str, str]:
    """The peak of an alternative and whether it fits."""
    return format_bytes(alternative.peak_bytes), "" if alternative.fits else "over the budget"


CHOSEN = Search("", 0.0, 0.0, 0, None, "time_limit")
"""Marks plans whose shardings were chosen, where there is no search to tell of."""
