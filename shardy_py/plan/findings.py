"""Findings: remarks about a plan that are no errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import printable
from shardy_py.plan.paths import paths_as_one

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark about a plan.

    Attributes:
        kind: A short stable name: `no-rule`, `unmatched-rule`, `unused-axis`, ...
        message: The defect and its consequence, in a sentence or two.
        path: The pytree path or the name of the value it is about, the first of several; empty where there is none.
        location: `file:line` of the user's code; empty where unknown.
        severity: `error` findings make `Plan.check` raise, `warning` findings do so with `strict=True`.
        bytes: Bytes per device that it is about: that one value takes, or that move in one call; 0 where it is about none.
        fix: Advice: a sentence, or code to paste.
        paths: The paths of all values with the same cause, such as layers, where there are several.
        targets: The paths of the values that the fix gives another sharding; none where it does not.
        sharding: That sharding.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> mean = sp.auto_shard(lambda x: x.mean(), mesh={"data": 4, "model": 2}, in_shardings=P("data"))
        >>> (finding,) = mean.plan(jax.ShapeDtypeStruct((1 << 12, 1 << 12), jnp.float32)).findings
        >>> finding.kind, finding.severity
        ('unused-axis', 'warning')
    """

    kind: str
    message: str
    path: str = ""
    location: str = ""
    severity: Severity = "warning"
    bytes: int = 0
    fix: str = ""
    paths: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    sharding: TensorSharding | None = None

    @property
    def all_paths(self) -> tuple[str, ...]:
        """The paths of all values that it is about."""
        return self.paths or (self.path,)

    def __str__(self) -> str:
        where = ", ".join(part for part in (paths_as_one(self.all_paths), self.location) if part)
        fix = f"; {self.fix}" if self.fix else ""
        return printable(f"{self.severity}: {self.kind}: {self.message}{fix}" + (f" [{where}]" if where else ""))


class Findings(tuple[Finding, ...]):
    """Findings, whose text has a line for each."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "no findings"
