"""`shardy-py plan`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from shardy_py.cli.options import add_compiling, add_target, output_file
from shardy_py.cli.output import Output
from shardy_py.cli.progress import progress
from shardy_py.cli.report import compiled_for, dumped, plan_report
from shardy_py.cli.targets import plan_of
from shardy_py.plan.code import STYLES

if TYPE_CHECKING:
    from shardy_py.facade import Plan
    from shardy_py.plan.compiled import CompiledProgram


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_target(parser)
    parser.add_argument("--save", type=output_file, metavar="FILE", help="write the whole plan as JSON, compressed if the name ends in .gz")
    parser.add_argument("--html", type=output_file, metavar="FILE", help="write a page that shows the plan")
    parser.add_argument("--hardware", metavar="NAME", help="add costs and memory on this hardware: h100, v5p, ...")
    parser.add_argument(
        "--where", metavar="TEXT", help="only values whose path, primitive, line or module contains this; * matches anything"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="most lines per section; by default 60 on a terminal, else all")
    parser.add_argument("--as-code", choices=STYLES, help="print the plan as code to paste, in this style, for plain jax.jit")
    add_compiling(parser, "--compile-for")


def run(options: argparse.Namespace, out: Output) -> int:
    """Plans, writes files, prints."""
    plan = plan_of(options.target, options)
    if options.save:
        with progress(f"writing {options.save}"):
            plan.save(options.save)
    compiled = compiled_for(plan, options.compile_for, options.hardware)
    if options.html:
        with progress(f"writing {options.html}"):
            plan.save_html(options.html, hardware=options.hardware)
    if options.as_code:
        out.plain(str(plan.as_code(options.as_code)))
        return 0
    with progress(f"reading the plan of {plan.name}"):
        _print(plan, compiled, options, out)
    return 0


def _print(plan: Plan, compiled: CompiledProgram | None, options: argparse.Namespace, out: Output) -> None:
    cost = memory = None
    if options.hardware:
        cost, memory = plan.cost_analysis(hardware=options.hardware), plan.memory_analysis(hardware=options.hardware)
    if options.json:
        costs = {} if cost is None or memory is None else {"cost": cost.to_dict(), "memory": memory.to_dict()}
        costs |= {} if compiled is None else {"compiled": compiled.to_dict()}
        out.plain(dumped({**plan_report(plan), **costs}))
    else:
        limit = options.limit or (None if out.console is None else 60)
        out.show(plan.as_text(where=options.where, limit=limit, width=out.width))
        if cost is not None and memory is not None:
            out.show(f"{cost.as_text()}\n{memory.as_text()}")
        if compiled is not None:
            out.show(compiled.as_text())
