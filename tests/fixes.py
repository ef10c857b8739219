"""Judges the fixes of findings: each is applied as it stands, and the plan with it has to be better in what the finding is about."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest
from jax.sharding import PartitionSpec as P

import shardy_py.plan.checks
from shardy_py.facade import Plan
from shardy_py.plan.findings import Finding

SPEC = re.compile(r"(?<!\w)P\((?:[^()]|\([^()]*\))*\)")


@contextlib.contextmanager
def small_programs_count(size: int = 64) -> Iterator[None]:
    """Findings about a few bytes, so that small programs have some."""
    with pytest.MonkeyPatch.context() as patch:
        for module in pkgutil.iter_modules(shardy_py.plan.checks.__path__):
            checks = importlib.import_module(f"shardy_py.plan.checks.{module.name}")
            for name in {"NOTABLE", "GRAVE", "PARTLY"} & set(vars(checks)):
                patch.setattr(checks, name, size)
        yield


def received(plan: Plan) -> int:
    return sum(c.call_bytes for c in plan.collectives)


def peak(plan: Plan) -> int:
    return plan.memory_analysis().peak_memory_in_bytes


BETTER = {
    "batch-axis-lost": lambda after, before: received(after) < received(before),
    "cut-along-scan": lambda after, before: received(after) < received(before),
    "unused-axis": lambda after, before: received(after) - received(before) <= peak(before) - peak(after) > 0,
    "replicated-large": lambda after, before: peak(after) <= peak(before),
    "state-unlike-parameter": lambda after, before: received(after) <= received(before) and peak(after) <= peak(before),
    "sub-axis-removed": lambda after, before: received(after) <= received(before) and peak(after) <= peak(before),
    "axis-lost-in-reshape": lambda after, before: received(after) <= received(before) and peak(after) <= peak(before),
}
"""Kind of finding -> whether a plan with its fix is better than the one without."""


def judge(plan: Plan) -> list[Finding]:
    """Applies the fixes of a plan's findings; those that were applied."""
    judged: list[Finding] = []
    for finding in plan.findings:
        specs = [tuple(eval(text, {"P": P})) for text in SPEC.findall(finding.fix)]
        axes = [name for spec in specs for entry in spec if entry for name in ((entry,) if isinstance(entry, str) else entry)]
        assert set(axes) <= set(plan.mesh.shape), finding
        if finding.sharding is None:
            assert not axes or plan.lowering == "jit", finding
            continue
        (spec,) = filter(None, specs)
        for path in finding.targets:
            value = plan.by_path[path][1]
            assert all(n % dim.shards(plan.mesh) == 0 for n, dim in zip(value.shape, finding.sharding.dims, strict=True)), finding
        cut = [tuple(axis.name for axis in dim.axes) for dim in finding.sharding.dims]
        written = [() if e is None else (e,) if isinstance(e, str) else e for e in spec]
        assert [*written, *[()] * (len(cut) - len(written))] == cut, finding
        if finding.fix.endswith("(not tried)"):
            continue
        after = plan.variants.with_shardings(plan, dict.fromkeys(finding.targets, finding.sharding))
        assert after is not None, finding
        assert BETTER[finding.kind](after, plan), (str(finding), received(plan), received(after), peak(plan), peak(after))
        judged.append(finding)
    return judged
