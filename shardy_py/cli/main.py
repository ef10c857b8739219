"""Parses a command line and runs its subcommand."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from shardy_py.cli import check, diff, explain, pipedream, plan, view
from shardy_py.cli.command import Command, add_all
from shardy_py.cli.errors import one_line
from shardy_py.cli.output import output_of
from shardy_py.dialect.format import printable


def run_passes(arguments: Sequence[str]) -> int:
    """`shardy-py opt`: Shardy's passes on an MLIR module; imported late, since no other command needs MLIR."""
    from shardy_py.opt import main

    try:
        return main(arguments, program="shardy-py opt")
    except SystemExit as stopped:  # for its help, or for options that it does not have
        return stopped.code if isinstance(stopped.code, int) else 2


_PIPEDREAM = "profile a model, divide it into pipeline stages"

COMMANDS = (
    Command("plan", "plan a function, and show, save or draw the plan", plan.add, plan.run),
    Command("explain", "say why a value has its sharding, or why it lacks an axis", explain.add, explain.run),
    Command("check", "list likely mistakes; exit 1 if there are warnings or errors", check.add, check.run),
    Command("diff", "say what differs between two plans", diff.add, diff.run),
    Command("view", "open a plan as a page in the browser", view.add, view.run),
    Command("opt", "run Shardy's passes on an MLIR module", lambda _: None, lambda _, __: run_passes(())),
    Command("pipedream", f"{_PIPEDREAM}, write them as code, simulate schedules", pipedream.add, pipedream.run, former="stages"),
)
"""The subcommands: names, options and functions of all."""

WRONG = 2
"""The exit status where a command could not be run."""

INTERRUPTED = 130

_EPILOG = """examples:
  shardy-py plan train.py:step --args-from train.py:example --hardware h100
  shardy-py plan jax.numpy:dot --mesh data=4,model=2 --args 'f32[64@data,256]' 'f32[256,512@model]' --save plan.json.gz
  shardy-py explain plan.json.gz result --axis model
  shardy-py check plan.json.gz && shardy-py diff old.json.gz plan.json.gz

Flags after -- go to absl, for modules that define flags. Exit status: 0, 1 for findings or differences, 2 for errors."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Returns:
        The exit status: 0; 1 where there are findings or differences; 2 where the command could not be run.
    """
    if arguments is None:
        own_standard_output()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["opt"]:  # its options are its own, those in front of the file too
        return run_passes(words[1:])
    flags = words[words.index("--") + 1 :] if "--" in words else []
    try:
        options = parser().parse_args(words[: words.index("--")] if "--" in words else words)
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else WRONG
    options.flags, options.words = flags, words
    try:
        status = options.run(options, output_of(options.color))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that nothing more is said when Python ends
        return 0
    except Exception as error:  # whatever the user's module raises
        if getattr(options, "traceback", False):
            traceback.print_exception(error)
        sys.stderr.write(f"shardy-py: error: {printable(one_line(error))}\n")
        return WRONG


def own_standard_output() -> None:
    """Keeps the standard output of this process for `sys.stdout`; what native libraries write there goes to standard error.

    HiGHS has a message about solutions that it mends which no option turns off.
    """
    sys.stdout.flush()
    with contextlib.suppress(OSError):  # a process may have been started without one of them
        own_output = os.dup(1)
        os.dup2(2, 1)
        encoding, errors = sys.stdout.encoding, sys.stdout.errors
        sys.stdout = os.fdopen(own_output, "w", buffering=1 if os.isatty(own_output) else -1, encoding=encoding, errors=errors)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    result = argparse.ArgumentParser(
        prog="shardy-py",
        description="Plan the shardings of a JAX function; read, explain, check and compare plans. Planning needs no devices.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="version", version=f"shardy_py {_version()}")
    add_all(result, COMMANDS)
    return result


def _version() -> str:
    try:
        return version("shardy_py")
    except PackageNotFoundError:
        return "(not installed)"
