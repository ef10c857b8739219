"""Runs a pass pipeline that is written as text."""

from __future__ import annotations

import difflib

from shardy_py.ir import Program
from shardy_py.ir.verifier import verify
from shardy_py.opt.table import OLD_NAMES, OLD_OPTIONS, PASSES
from shardy_py.passes.base import Pass
from shardy_py.passes.collection import no_collection
from shardy_py.passes.pipeline_text import FUNCTION, MODULE, PassCall, PipelineError, parse_pipeline


def run_pipeline(program: Program, pipeline: str, *, verify_each: bool = False) -> None:
    """Runs a pipeline on a program in place, verifying it between passes. Raises PipelineError before anything has run."""
    passes = [bind(call, pipeline) for call in parse_pipeline(pipeline)]
    with no_collection():
        for i, pass_ in enumerate(passes):
            pass_.run(program)
            if verify_each or i + 1 < len(passes):
                try:
                    verify(program)
                except ValueError as error:
                    error.add_note(f"found after pass '{pass_.name}'")
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
