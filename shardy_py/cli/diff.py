"""`shardy-py diff`."""

from __future__ import annotations

import argparse

from shardy_py.cli.options import TARGET, add_compiling, add_output, add_planning
from shardy_py.cli.output import Output
from shardy_py.cli.progress import progress
from shardy_py.cli.report import compiled_for
from shardy_py.cli.targets import plan_of

DIFFERENT = 1
"""The exit status where plans differ, with `--exit-code`."""


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("before", metavar="BEFORE", help=TARGET)
    parser.add_argument("after", metavar="AFTER", help="the same")
    parser.add_argument("--exit-code", action="store_true", help="exit 1 if the plans differ")
    parser.add_argument("--limit", type=int, metavar="N", help="most lines per section; by default 30 on a terminal, else all")
    add_output(parser)
    add_planning(parser)
    add_compiling(parser, "--compile-for")


def run(options: argparse.Namespace, out: Output) -> int:
    """Compares two plans."""
    before, after = plan_of(options.before, options), plan_of(options.after, options)
    for plan in (before, after):
        compiled_for(plan, options.compile_for, None)
    with progress("comparing the plans"):
        differences = before.diff(after)
    if options.json:
        out.plain(differences.to_json(indent=1))
    else:
        out.show(differences.as_text(limit=options.limit or (None if out.console is None else 30)))
    return DIFFERENT if differences and options.exit_code else 0
