"""`shardy-py check`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from shardy_py.cli.options import add_compiling, add_target
from shardy_py.cli.output import Output
from shardy_py.cli.progress import progress
from shardy_py.cli.report import compiled_for, dumped
from shardy_py.cli.targets import plan_of
from shardy_py.plan.checks.table import accepted
from shardy_py.view.check import Check
from shardy_py.view.text import findings_lines

HAS_FINDINGS = 1
"""The exit status where there are warnings or errors, what is checked does not fit the hardware, or is not compiled as planned."""


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_target(parser)
    parser.add_argument("--ignore", action="append", default=[], metavar="KIND[:PATH]", help="findings that are accepted; may be repeated")
    parser.add_argument("--notes", action="store_true", help="list notes too, which do not change the exit status")
    parser.add_argument("--hardware", metavar="NAME", help="also report what moves, its cost, and whether the step fits on this hardware")
    add_compiling(parser, "--compile")


def run(options: argparse.Namespace, out: Output) -> int:
    """Lists findings."""
    plan = plan_of(options.target, options, as_it_is=True)
    with progress(f"checking {plan.name}"):
        findings = accepted(plan.findings, options.ignore)
    compiled = compiled_for(plan, options.compile, options.hardware)
    extra = {} if compiled is None else {"compiled": compiled.to_dict()}
    if options.hardware:
        report = Check(plan, options.hardware)
        is_clean = report.is_clean
        out.plain(dumped({**report.to_dict(), **extra})) if options.json else out.show(report.as_text())
    else:
        grave = [finding for finding in findings if finding.severity != "info"]
        is_clean, shown = not grave, findings if options.notes else tuple(grave)
        if options.json:
            head = {"format": "shardy_py.findings", "version": 1, "name": plan.name}
            out.plain(dumped({**head, "findings": list(map(asdict, shown)), **extra}))
        elif not shown:
            notes = len(findings) - len(grave)
            out.plain(f"no findings: plan of {plan.name}" + (f", {notes} notes" if notes else ""))
        else:
            out.show("\n".join(map(str, shown) if out.console is None else findings_lines(shown, None, out.width)))
    if compiled is not None and not options.json:
        out.show(compiled.as_text())
    return 0 if is_clean and (compiled is None or not compiled.problems) else HAS_FINDINGS
