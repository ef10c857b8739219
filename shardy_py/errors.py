"""Errors whose messages state the fault, its place, its reason and a fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class ShardyError(ValueError):
    """The base of every error this package raises on wrong input.

    The message is `what`, with one line below it for each of the other parts that is given.

    Args:
        what: The fault; for a check that Shardy has too, in Shardy's words.
        where: Which argument, value, op or source line.
        why: The rule that was broken.
        fix: The code to write instead.
        notes: Facts attached to the error, one line each.

    Example:
        >>> print(ShardyError('unknown axis name: "c"', where="argument x", fix='use "a" or "b"'))
        unknown axis name: "c"
          where: argument x
          fix: use "a" or "b"
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        why: str | None = None,
        fix: str | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix
        self.notes = tuple(notes)
        super().__init__(what)

    def __str__(self) -> str:
        parts = (("where", self.where), ("why", self.why), ("fix", self.fix), *(("note", note) for note in self.notes))
        return "\n".join([self.what, *(f"  {label}: {part}" for label, part in parts if part)])

    def at(self, where: str) -> ShardyError:
        """The same error with `where` filled in, or put before the place it names already."""
        self.where = where if self.where is None else f"{where}, {self.where}"
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (_remake, (type(self), self.what, dict(self.__dict__)))


class DialectError(ShardyError):
    """A mesh, a sharding, a sharding rule or another SDY value that breaks a rule of the dialect."""


class VerificationError(ShardyError):
    """A program that breaks a rule of its ops or of the graph they form."""


class UserError(ShardyError):
    """A mistake in what the user passed; a ValueError, as JAX raises for the same mistake."""


class MeshError(UserError):
    """The mesh cannot be used, or two meshes that must agree do not.

    Example:
        >>> import shardy_py as sp
        >>> try:
        ...     sp.auto_shard(lambda x: x, mesh={"data": 0})
        ... except sp.MeshError as error:
        ...     print(error.what)
        mesh axis 'data' has size 0
    """


class SpecError(UserError):
    """A sharding that the user gave does not fit its value or the mesh.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> try:
        ...     sp.auto_shard(lambda x: x, mesh={"data": 4}, in_shardings=P("batch")).plan(jax.ShapeDtypeStruct((8, 8), jnp.float32))
        ... except sp.SpecError as error:
        ...     print(error.what, error.fix, sep="; ")
        in_shardings: unknown mesh axis 'batch'; use one of 'data'
    """


class PlanMismatchError(UserError, RuntimeError):
    """The processes of a mesh are about to run different programs.

    Example:
        >>> import shardy_py as sp
        >>> def train(step, state, batch):
        ...     try:
        ...         return step(state, batch)
        ...     except sp.PlanMismatchError as error:
        ...         raise SystemExit(f"processes differ: {error.why}")
    """


class PeerMissingError(UserError, RuntimeError):
    """A process of the mesh did not come to compare plans.

    Example:
        >>> import shardy_py as sp
        >>> def train(step, state, batch):
        ...     try:
        ...         return step(state, batch)
        ...     except sp.PeerMissingError as error:
        ...         raise SystemExit(f"a process is missing: {error.why}")
    """


class DeletedBufferError(UserError, RuntimeError):
    """An argument's buffer was donated earlier; a RuntimeError in JAX, a crash on several devices.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> step, x = sp.auto_shard(jnp.sin, mesh={"x": 2}, donate_argnums=0), jnp.ones(4)
        >>> _ = step(x)
        >>> try:
        ...     step(x)
        ... except RuntimeError as error:
        ...     print(type(error).__name__, error.what, sep=": ")
        DeletedBufferError: the buffer of x has been deleted
    """


class DonationError(UserError):
    """One buffer is donated twice, or donated and passed again.

    Example:
        >>> import jax.numpy as jnp, shardy_py as sp
        >>> step, x = sp.auto_shard(jnp.add, mesh={"x": 2}, donate_argnums=0), jnp.ones(4)
        >>> try:
        ...     step(x, x)
        ... except sp.ShardyError as error:
        ...     print(type(error).__name__, error.what, sep=": ")
        DonationError: args[0] and args[1] are one array, and it is donated
    """


class PlanWarning(UserWarning):
    """Warnings about a plan that runs for the first time; `Options.check` turns them on and off.

    Example:
        >>> import warnings, shardy_py as sp
        >>> warnings.simplefilter("error", sp.PlanWarning)
    """


class ParseError(ShardyError):
    """Text that is not what was expected; the message shows the line with a caret under the place.

    Args:
        what: The expectation, or the fault.
        fix: The code to write instead.
    """

    def __init__(self, what: str, text: str, position: int, *, fix: str | None = None) -> None:
        self.text = text
        self.position = position
        start = text.rfind("\n", 0, position) + 1
        self.line = text.count("\n", 0, position) + 1
        self.column = position - start + 1
        super().__init__(what, where=f"line {self.line}, column {self.column}", fix=fix)

    def __str__(self) -> str:
        start = self.position - self.column + 1
        line = self.text[start:].split("\n", 1)[0]
        pad = "".join("\t" if char == "\t" else " " for char in line[: self.column - 1])
        lines = [self.what, f"  where: {self.where}", f"    {line}", f"    {pad}^"]
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


def _remake(cls: type[ShardyError], what: str, state: dict[str, object]) -> ShardyError:
    error = cls.__new__(cls, what)
    error.__dict__.update(state)
    error.args = (what,)
    return error


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`did you mean 'model'?` for a name close to a known one, else the list of known names."""
    names = list(candidates)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(map(repr, names))}" if names else ""
