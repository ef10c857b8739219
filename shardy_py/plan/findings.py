"""Findings: what a plan has to tell its reader that is no error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark about a plan.

    Attributes:
        kind: A short stable name: `no-rule`, `unmatched-rule`, `unused-axis`, ...
        message: What was seen, why it matters and what to do, in a sentence or two.
        path: The pytree path or the name of the value it is about; empty where there is none.
        location: `file:line` of the user's code; empty where unknown.
        severity: `error` findings make `Plan.check` raise, `warning` findings do so with `strict=True`.
    """

    kind: str
    message: str
    path: str = ""
    location: str = ""
    severity: Severity = "warning"

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.path, self.location) if part)
        return f"{self.severity}: {self.kind}: {self.message}" + (f" [{where}]" if where else "")
