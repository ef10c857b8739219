"""Runs a pass pipeline that is given as text."""

from __future__ import annotations

import difflib
from typing import Any

from shardy_py.ir import Program
from shardy_py.ir.verifier import verify
from shardy_py.passes.collection import no_collection
from shardy_py.passes.pass_info import Pass
from shardy_py.passes.pipeline_text import FUNCTION, MODULE, PassCall, PipelineError, parse_pipeline
from shardy_py.passes.table import OLD_NAMES, OLD_OPTIONS, PASSES


def run_pipeline(program: Program, pipeline: str, *, verify_each: bool = False) -> None:
    """Runs the passes of a pipeline on a program.

    Args:
        program: Changed in place.
        pipeline: As MLIR writes pass pipelines.
        verify_each: Whether the program is verified after the last pass too; it is between passes in any case.

    Raises:
        PipelineError: If the pipeline is malformed, or names what does not exist; nothing has run then.
        ShardyError: What a pass or the verifier finds wrong with the program.
    """
    calls = parse_pipeline(pipeline)
    bound = [(name, pass_, bind(pass_, call, pipeline)) for call in calls for name, pass_ in (lookup(call, pipeline),)]
    with no_collection():
        for i, (name, pass_, options) in enumerate(bound):
            pass_.run(program, **options)
            if verify_each or i + 1 < len(bound):
                try:
                    verify(program)
                except ValueError as error:
                    error.add_note(f"found after pass '{name}'")
                    raise


def lookup(call: PassCall, pipeline: str) -> tuple[str, Pass]:
    """The pass that is meant, under its present name.

    Raises:
        PipelineError: If there is none, or it runs on modules and is nested in a function.
    """
    name = OLD_NAMES.get(call.name, call.name)
    found = PASSES.get(name)
    if found is None:
        near = difflib.get_close_matches(name, PASSES, 1) or difflib.get_close_matches(f"sdy-{name}", PASSES, 1)
        fix = f"write '{near[0]}'" if near else "see `python -m shardy_py.opt --list` for all passes"
        raise PipelineError(f"'{call.name}' does not refer to a registered pass or pass pipeline", pipeline, call.position, fix=fix)
    if found.anchor == MODULE and call.anchor == FUNCTION:
        what = f"pass '{name}' runs on '{MODULE}' and cannot be nested in '{FUNCTION}'"
        raise PipelineError(what, pipeline, call.position, fix=f"write it outside of {FUNCTION}(...)")
    return name, found


def bind(pass_: Pass, call: PassCall, pipeline: str) -> dict[str, Any]:
    """The options of a pass as keywords of its `run`.

    Raises:
        PipelineError: If it has no such option, or the option no such value.
    """
    known = {option.name: option for option in pass_.options}
    given: dict[str, Any] = {}
    for name, text, position in call.options:
        option = known.get(OLD_OPTIONS.get(name, name)) if name not in known else known[name]
        if option is None:
            has = f"has the options {', '.join(known)}" if known else "has no options"
            raise PipelineError(f"no such option {name}: '{call.name}' {has}", pipeline, position, fix="remove it or write one of these")
        try:
            given[option.name.replace("-", "_")] = option.read(text)
        except ValueError as error:
            wanted = str(error) if not isinstance(option.default, int) or isinstance(option.default, bool) else "an integer"
            raise PipelineError(f"'{text}' is invalid value for option {name}", pipeline, position, fix=f"write {wanted}") from None
    return given
