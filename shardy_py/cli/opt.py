"""`shardy-py opt`: Shardy's passes on an MLIR module, with the options of `python -m shardy_py.opt`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from shardy_py.cli.output import Output

NAME = "opt"


def add(parser: argparse.ArgumentParser) -> None:
    """The options, which `shardy_py.opt` reads."""
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="shardy-py opt --help lists them")


def run(options: argparse.Namespace, _out: Output) -> int:
    """Runs passes."""
    return run_passes(options.arguments)


def run_passes(arguments: Sequence[str]) -> int:
    """Runs passes; imported late, since no other command needs MLIR."""
    from shardy_py.opt import main

    try:
        return main(arguments, program=f"shardy-py {NAME}")
    except SystemExit as stopped:  # for its help, or for options that it does not have
        return stopped.code if isinstance(stopped.code, int) else 2
