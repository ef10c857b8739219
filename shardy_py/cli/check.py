"""`shardy-py check`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from shardy_py.cli.options import TARGET, add_output, add_planning
from shardy_py.cli.output import Output
from shardy_py.cli.progress import progress
from shardy_py.cli.report import dumped
from shardy_py.cli.targets import plan_of
from shardy_py.plan.checks.table import accepted
from shardy_py.view.check import Check
from shardy_py.view.text import findings_lines

HAS_FINDINGS = 1
"""The exit status where there are warnings or errors, or what is checked does not fit the hardware."""


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("target", metavar="TARGET", help=TARGET)
    parser.add_argument("--ignore", action="append", default=[], metavar="KIND[:PATH]", help="findings that are accepted; may be repeated")
    parser.add_argument("--notes", action="store_true", help="list notes too, which do not change the exit status")
    parser.add_argument("--hardware", metavar="NAME", help="say what moves, what it costs and whether it fits on this hardware too")
    add_output(parser)
    add_planning(parser)


def run(options: argparse.Namespace, out: Output) -> int:
    """Lists findings."""
    plan = plan_of(options.target, options, as_it_is=True)
    with progress(f"checking {plan.name}"):
        findings = accepted(plan.findings, options.ignore)
    if options.hardware:
        report = Check(plan, options.hardware)
        (out.plain if options.json else out.show)(report.to_json() if options.json else report.as_text())
        return 0 if report.is_clean else HAS_FINDINGS
    grave = [finding for finding in findings if finding.severity != "info"]
    shown = findings if options.notes else tuple(grave)
    if options.json:
        out.plain(dumped({"format": "shardy_py.findings", "version": 1, "name": plan.name, "findings": list(map(asdict, shown))}))
    elif not shown:
        notes = len(findings) - len(grave)
        out.plain(f"no findings: plan of {plan.name}" + (f", {notes} notes" if notes else ""))
    else:
        out.show("\n".join(map(str, shown) if out.console is None else findings_lines(shown, None, out.width)))
    return HAS_FINDINGS if grave else 0
