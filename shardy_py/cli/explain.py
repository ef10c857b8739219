"""`shardy-py explain`."""

from __future__ import annotations

import argparse

from shardy_py.cli.options import add_target
from shardy_py.cli.output import Output
from shardy_py.cli.targets import plan_of


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_target(parser)
    parser.add_argument("value", metavar="VALUE", help="a path (params['w']), a name (%%12), a variable, a module, or file.py:12")
    parser.add_argument("--axis", metavar="NAME", help="only this mesh axis; where the value lacks it, why")
    parser.add_argument("--dim", type=int, metavar="N", help="only this dimension")


def run(options: argparse.Namespace, out: Output) -> int:
    """Explains a value."""
    explanation = plan_of(options.target, options).explain(options.value, options.axis, dim=options.dim)
    out.plain(explanation.to_json(indent=1) if options.json else explanation.as_text(width=min(out.width, 116)))
    return 0
