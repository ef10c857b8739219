"""Results of `verify`: a call as planned, and by XLA alone, against one device."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.backends.compare import Comparison
from shardy_py.backends.first_difference import FirstDifference
from shardy_py.errors import ShardyError


class DifferenceError(ShardyError, AssertionError):
    """A sharded run gives other values than the unsharded one.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> double = sp.auto_shard(lambda x: x * 2, mesh={"data": 1})
        >>> try:
        ...     verified = double.verify(jnp.ones(8)).check()
        ... except sp.DifferenceError as error:
        ...     print(error)
    """


@dataclass(frozen=True)
class RunComparison:
    """One way of running a function beside the unsharded run.

    Attributes:
        first_difference: The first op that is wrong; None where none is, or ops were not compared.
        ops: Number of ops that were compared one by one, each on the operands it had.
        problem: Why it could not be run.
    """

    outputs: tuple[Comparison, ...]
    first_difference: FirstDifference | None = None
    ops: int = 0
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether all outputs agree, save for explained rounding, and no op was found wrong."""
        wrong = self.first_difference is not None and self.first_difference.alone
        return self.problem is None and not wrong and all(c.agrees or c.rounding is not None for c in self.outputs)

    def lines(self) -> list[str]:
        """The comparison as text; outputs that agree share a line."""
        if self.problem is not None:
            return [f"  it does not run: {self.problem}"]
        lines = [f"  {c}" for c in self.outputs if not c.agrees]
        close = [c for c in self.outputs if c.agrees and c.max_abs]
        equal = len([c for c in self.outputs if c.agrees]) - len(close)
        if equal:
            lines.append(f"  {_count(equal, 'output')} equal to the last bit")
        if close:
            worst = max(close, key=lambda c: c.max_rel)
            lines.append(f"  {_count(len(close), 'output')} within rounding, at most {worst.max_rel:.2g} relative ({worst.path})")
        first = self.first_difference
        if self.ops and (first is None or not first.alone):
            lines.append(f"  {_count(self.ops, 'op')} compared one by one: each gives what one device gives on the same operands")
        if first is not None:
            lines += ["  " + line for line in f"first difference: {first}".splitlines()]
        return [*lines, *(f"  {note}" for note in self.notes)]


@dataclass(frozen=True)
class Verification:
    """The result of `AutoSharded.verify`.

    Attributes:
        name: The function's name.
        location: Where it is defined.
        mesh: `data=2, model=4`.
        run: The run as planned beside the unsharded run.
        plain_xla: `jax.jit` with the same annotations and nothing of this package in it, beside the unsharded run; None where it was
            not asked for.
        idle: Why nothing was compared in this process, where it has no device of the mesh; the processes that have them compare.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> double = sp.auto_shard(lambda x: x * 2, mesh={"data": 1})
        >>> double.verify(jnp.ones(8)).agrees
        True
    """

    name: str
    location: str
    mesh: str
    run: RunComparison
    plain_xla: RunComparison | None
    idle: str | None = None

    @property
    def agrees(self) -> bool:
        """Whether the planned run agrees with the unsharded one, as far as this process can see; rounding is no disagreement."""
        return self.run.agrees

    @property
    def outputs(self) -> tuple[Comparison, ...]:
        """One per leaf of the result."""
        return self.run.outputs

    @property
    def first_difference(self) -> FirstDifference | None:
        """The first op that differs."""
        return self.run.first_difference

    def check(self) -> Verification:
        """Itself.

        Raises:
            DifferenceError: The planned run differs from the unsharded one.
        """
        if self.agrees:
            return self
        first = self.first_difference
        head, *details = [self.location] if first is None else str(first).splitlines()
        bad = [str(c) for c in self.outputs if not c.agrees and c.rounding is None]
        raise DifferenceError(
            f"{self.name} gives other values on mesh {self.mesh} than on one device",
            where=head,
            why=self.run.problem or "; ".join(bad[:3]) or "an op is wrong, by less than the outputs show",
            fix="if the op is wrong on the operands it had, constrain its operands to another sharding (P() replicates), and report it; "
            "if rounding has grown, pass rtol= or run in float64",
            notes=(*(line.strip() for line in details), *self.run.notes),
        )

    def __str__(self) -> str:
        if self.idle is not None:
            return f"{self.name} on mesh {self.mesh} was not compared here: {self.idle}"
        verb = "agrees with" if self.agrees else "differs from"
        lines = [f"{self.name} on mesh {self.mesh} {verb} the unsharded run", *self.run.lines()]
        if self.plain_xla is not None:
            lines.append(f"plain jax.jit {'agrees too' if self.plain_xla.agrees else 'is wrong'}")
            if not self.plain_xla.agrees:
                lines += self.plain_xla.lines()
        return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
