"""jaxlib's Shardy as the reference, and comparison of our rules with its rules."""

from __future__ import annotations

import functools
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterable

from shardy_py.dialect import INSTALLED, Semantics
from shardy_py.ir import Op
from shardy_py.opt.from_mlir import from_mlir
from shardy_py.rules import rule_for

POPULATE = "func.func(chlo-legalize-to-stablehlo,sdy-populate-op-sharding-rules)"

_WORKER = pathlib.Path(__file__).with_name("reference_worker.py")


class ReferenceError(Exception):
    """The reference rejected the module, or ended on a failed check."""


@functools.cache
def _worker() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def stop_worker() -> None:
    """Ends the process that runs the reference; the next request starts a new one."""
    if _worker.cache_info().currsize:
        worker = _worker()
        _worker.cache_clear()
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.close()
        worker.wait(30)
        worker.stdout.close()


def run_passes(module: str, pipeline: str) -> str:
    """A module after jaxlib's pipeline."""
    worker = _worker()
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        worker.stdin.write(json.dumps({"module": module, "pipeline": pipeline}) + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
    except BrokenPipeError:
        line = ""
    if not line:
        worker.wait(30)
        stop_worker()
        raise ReferenceError(f"jaxlib ended on this module:\n{module}")
    answer = json.loads(line)
    if "error" in answer:
        raise ReferenceError(f"{answer['error']}\n{module}")
    return answer["module"]


def describe(op: Op) -> str:
    operands = ", ".join(str(value.type) for value in op.operands)
    results = ", ".join(str(value.type) for value in op.results)
    return f"{op.name}({operands}) -> ({results}) {op.attributes}"


def differences(module: str, *, conservative: bool, semantics: Semantics = INSTALLED) -> list[str]:
    """Ops of a module with rules attached for which we build another one."""
    found = []
    for op in from_mlir(module).walk():
        if op.rule is not None and op.rule.is_custom:
            continue
        ours, theirs = str(rule_for(op, conservative=conservative, semantics=semantics)), str(op.rule)
        if ours != theirs:
            found.append(f"{describe(op)}\n  ours {ours}\n  them {theirs}")
    return found


def check(functions: str | Iterable[str], *, conservative: bool | None = None) -> None:
    """Asserts that our rules for all ops of these functions are the reference's; None checks both kinds of rules."""
    if not isinstance(functions, str):
        functions = "\n".join(functions)
    for flag in (False, True) if conservative is None else (conservative,):
        module = run_passes(functions, POPULATE.replace("rules", "rules{conservative-propagation=true}") if flag else POPULATE)
        wrong = differences(module, conservative=flag)
        assert not wrong, f"{len(wrong)} rules differ (conservative={flag})\n" + "\n".join(wrong[:10])
