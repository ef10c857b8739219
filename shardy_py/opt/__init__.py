"""Runs passes on MLIR modules, as `sdy_opt` does.

python -m shardy_py.opt --pass-pipeline='sdy-propagation-pipeline' model.mlir
python -m shardy_py.opt --list
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from shardy_py.dialect import INSTALLED, Semantics
from shardy_py.dialect.format import printable
from shardy_py.dialect.semantics import VERSIONS
from shardy_py.errors import ShardyError
from shardy_py.files import write_file
from shardy_py.ir import Program
from shardy_py.opt.debug_attributes import run_pass
from shardy_py.opt.pipeline_text import PassCall, PipelineError, parse_pipeline
from shardy_py.opt.table import OLD_NAMES, OLD_OPTIONS, PASSES
from shardy_py.passes.base import FUNCTION, MODULE, Pass
from shardy_py.passes.collection import no_collection
from shardy_py.rules import is_registered

if TYPE_CHECKING:
    from jaxlib.mlir import ir

__all__ = ["UnknownOpWarning", "diagnostics", "main", "run_passes"]


class UnknownOpWarning(UserWarning):
    """An op unknown to all passes: it stays, and nothing propagates through it.

    Example:
        >>> issubclass(UnknownOpWarning, UserWarning)
        True
    """


def run_passes(
    module_text: str, pipeline: str = "", *, verify_each: bool = False, locations: bool = False, semantics: Semantics = INSTALLED
) -> str:
    """Runs a pass pipeline on a module.

    Args:
        module_text: A module of StableHLO and SDY ops; ops of other dialects stand in their generic form.
        pipeline: As MLIR writes it, such as `sdy-add-data-flow-edges,func.func(sdy-sink-data-flow-edges)`; "" reads, verifies
            and prints the module. A pass on functions may also stand outside of `func.func(...)`.
        verify_each: Whether an error after the last pass names it, as those between passes do.
        locations: Whether ops say where they come from.
        semantics: The version of Shardy whose rules and passes these are; by default the version in the installed jaxlib.

    Returns:
        The module as MLIR prints it.

    Raises:
        ValueError: If the module is invalid, a pass or option does not exist, or a pass finds the module wrong. Where Shardy
            checks the same, the message has Shardy's words.

    Example:
        >>> text = "func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }"
        >>> print(run_passes(text, "sdy-close-shardings"))
        module {
          func.func @f(%arg0: tensor<8xf32>) -> tensor<8xf32> {
            return %arg0 : tensor<8xf32>
          }
        }
        <BLANKLINE>
    """
    from shardy_py.opt.from_mlir import from_mlir  # the passes need no jaxlib, as where a stored plan is asked for Shardy's reshards
    from shardy_py.opt.to_mlir import to_mlir

    module = _parsed(module_text, semantics)
    program = from_mlir(module, keep=True)
    program.semantics = semantics
    _warn_of_unknown_ops(program)
    run_pipeline(program, pipeline, verify_each=verify_each)
    return to_mlir(program, locations=locations, context=module.context)


def _parsed(text: str, semantics: Semantics) -> ir.Module:
    from shardy_py.opt.from_mlir import parse_module

    try:
        return parse_module(text)
    except ShardyError as error:
        later = semantics.has("text: single-device shardings")
        old, new = ("a maximal sharding can", "a single-device sharding can")[:: 1 if later else -1]
        if old not in str(error):
            raise
        raise ShardyError(str(error).replace(old, new)) from None


def _warn_of_unknown_ops(program: Program) -> None:
    for name in dict.fromkeys(op.name for op in program.walk()):
        if not is_registered(name) and name.partition(".")[0] not in _DIALECTS:
            warnings.warn(UnknownOpWarning(f"op '{name}' is not known: it is kept and nothing propagates through it"), stacklevel=3)


def main(arguments: Sequence[str] | None = None, *, program: str = "python -m shardy_py.opt") -> int:
    """The command line; returns the exit status.

    Args:
        arguments: The words after the name of the program; None reads them from `sys.argv`.
        program: That name, for the help.

    Example:
        >>> main(["missing.mlir"])  # "error: cannot read 'missing.mlir': ..." on standard error
        1
    """
    options = _parser(program).parse_args(arguments)
    try:
        status = _run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _let_go_of_output()
        return 0
    except OSError as error:
        _let_go_of_output()
        _say(f"error: cannot write to standard output: {error}")
        return 1
    except (MemoryError, RecursionError) as error:
        _say(f"error: the module is too large or nested too deep: {error or type(error).__name__}")
        return 1
    return status


def _run(options: argparse.Namespace) -> int:
    if options.list:
        print(_list())
        return 0
    try:
        text = sys.stdin.read() if options.file == "-" else pathlib.Path(options.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _say(f"error: cannot read '{options.file}': {error}")
        return 1
    name = "<stdin>" if options.file == "-" else options.file
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = _show_warning
            semantics = Semantics(options.semantics)
            result = run_passes(
                text, options.pass_pipeline, verify_each=options.verify_each, locations=options.mlir_print_debuginfo, semantics=semantics
            )
    except ValueError as error:
        _say(diagnostics(error, name))
        return 1
    if options.output == "-":
        sys.stdout.write(result)
        return 0
    try:
        write_file(options.output, result)
    except OSError as error:
        _say(f"error: cannot write '{options.output}': {error}")
        return 1
    return 0


def _say(text: str) -> None:
    """Writes to standard error; names in a module or of a file do not steer the terminal."""
    print(printable(text), file=sys.stderr)


def _let_go_of_output() -> None:
    """Discards standard output from here on, so that Python prints no error about a closed pipe at exit."""
    with contextlib.suppress(OSError, ValueError):  # it may be no file, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def diagnostics(error: ValueError, name: str) -> str:
    """An error as MLIR prints it, with the file name if the error has a place in a file.

    Args:
        error: The exception of `run_passes`.
        name: Name of the file.

    Example:
        >>> print(diagnostics(ValueError('error: "-":3:5: expected operation name'), "f.mlir"))
        f.mlir:3:5: error: expected operation name
    """
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    text = text.removeprefix("Unable to parse module assembly:\n")
    placed = _PLACE.sub(lambda match: f"{match[1]}{name}:{match[3]}:{match[4]}: {match[2]}: ", text)
    if placed != text:
        return placed
    line = _LINE.match(getattr(error, "where", None) or "")
    return f"{name}:{line[1]}: error: {text}" if line else f"{name}: error: {text}"


_DIALECTS = frozenset(("chlo", "func", "mhlo", "sdy", "stablehlo"))
"""Dialects whose ops are known."""

_LINE = re.compile(r"-:(\d+(?::\d+)?)")
_PLACE = re.compile(r'^( *)(error|warning|note|remark): "-":(\d+):(\d+): ', re.MULTILINE)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    _say(f"warning: {message}")


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Run Shardy's passes on an MLIR module.",
        epilog=_passes_and_options(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="the module; - is standard input (the default)")
    parser.add_argument("--pass-pipeline", default="", metavar="PIPELINE", help="passes to run, such as 'sdy-propagation-pipeline'")
    parser.add_argument("-o", dest="output", default="-", metavar="FILE", help="where the result goes; - is standard output (the default)")
    parser.add_argument("--list", action="store_true", help="print all passes with their options, and stop")
    parser.add_argument("--verify-each", action="store_true", help="verify the program after each pass")
    what = f"the jaxlib whose Shardy is followed ({INSTALLED}, by the one installed)"
    parser.add_argument("--semantics", choices=VERSIONS, default=str(INSTALLED), help=what)
    parser.add_argument("--mlir-print-debuginfo", action="store_true", help="print locations of ops")
    return parser


def _passes_and_options() -> str:
    lines = ["passes, with their options and defaults:"]
    for name, pass_ in PASSES.items():
        lines.append(f"  {name}: {pass_.doc()}")
        for option in pass_.options():
            choices = f" ({', '.join(option.choices)})" if option.choices else ""
            lines.append(f"    {option.name}={option.shown_default}: {option.doc}{choices}")
    return "\n".join(lines)


def _list() -> str:
    width = max(map(len, PASSES))
    return "\n".join(f"{name:{width}}  {_summary(pass_)}" for name, pass_ in PASSES.items())


def _summary(pass_: type[Pass]) -> str:
    if not pass_.options():
        return pass_.doc()
    return f"{pass_.doc()} {{{' '.join(f'{option.name}={option.shown_default}' for option in pass_.options())}}}"


def run_pipeline(program: Program, pipeline: str, *, verify_each: bool = False) -> None:
    """Runs a pipeline on a program in place; between passes MLIR verifies it. Raises PipelineError before anything has run."""
    from shardy_py.opt.from_mlir import parse_module
    from shardy_py.opt.to_mlir import to_mlir

    passes = [bind(call, pipeline) for call in parse_pipeline(pipeline)]
    with no_collection():
        for i, pass_ in enumerate(passes):
            run_pass(pass_, program)
            if verify_each or i + 1 < len(passes):
                try:
                    parse_module(to_mlir(program, locations=True, pretty=False))
                except ShardyError as error:
                    error.at(f"after pass '{pass_.name}'")
                    raise


def bind(call: PassCall, pipeline: str) -> Pass:
    """The pass of a call with its options; raises PipelineError if a name or value is unknown, or a module pass is nested in a function."""
    pass_ = lookup(call, pipeline)
    options = {option.name: option for option in pass_.options()}
    values = {}
    for name, text, position in call.options:
        option = options.get(name) or options.get(OLD_OPTIONS.get(name, name))
        if option is None:
            has = f"has the options {', '.join(options)}" if options else "has no options"
            raise PipelineError(f"no such option {name}: '{call.name}' {has}", pipeline, position, fix="remove it or write one of these")
        try:
            values[option.name.replace("-", "_")] = option.read(text)
        except ValueError:
            fix = f"write {option.expected}"
            raise PipelineError(f"'{text}' is invalid value for option {name}", pipeline, position, fix=fix) from None
    return pass_(**values)


def lookup(call: PassCall, pipeline: str) -> type[Pass]:
    """The pass with a name, present or earlier; raises PipelineError if there is none, or a module pass is nested in a function."""
    name = OLD_NAMES.get(call.name, call.name)
    pass_ = PASSES.get(name)
    if pass_ is None:
        near = difflib.get_close_matches(name, PASSES, 1) or difflib.get_close_matches(f"sdy-{name}", PASSES, 1)
        fix = f"write '{near[0]}'" if near else "see `python -m shardy_py.opt --list` for all passes"
        raise PipelineError(f"'{call.name}' does not refer to a registered pass or pass pipeline", pipeline, call.position, fix=fix)
    if pass_.anchor == MODULE and call.anchor == FUNCTION:
        what = f"pass '{name}' runs on '{MODULE}' and cannot be nested in '{FUNCTION}'"
        raise PipelineError(what, pipeline, call.position, fix=f"write it outside of {FUNCTION}(...)")
    return pass_
