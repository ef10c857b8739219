"""`shardy-py pipedream profile`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardy_py.cli.errors import CommandError
from shardy_py.cli.options import add_output, add_tracing, output_file
from shardy_py.cli.output import Output
from shardy_py.cli.pipedream.tables import counts, profile_data, profile_text
from shardy_py.cli.progress import progress
from shardy_py.cli.report import dumped
from shardy_py.cli.targets import arguments_of, lookup, mesh_of, refuse_missing
from shardy_py.files import write_file

FILE = "graph.txt"


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("target", metavar="MODULE:FUNCTION", help="a forward pass, the loss; also file.py:FUNCTION")
    parser.add_argument(
        "-o", "--output", type=output_file, metavar="FILE", help=f"where to write the graph; by default {FILE}, unless there is one"
    )
    parser.add_argument("--by", default="layer", metavar="GRAIN", help="equation, scope or layer (default): what becomes one node")
    parser.add_argument("--parameters", default="0", metavar="N,...", help="which arguments hold parameters, by position; by default 0")
    parser.add_argument("--hardware", default="h100", metavar="NAME", help="what the times are modelled for: h100 (default), v5p, ...")
    parser.add_argument("--measured", action="store_true", help="run every distinct piece on the default device, in place of a model")
    parser.add_argument("--limit", type=int, metavar="N", help="nodes that are shown; by default 40 on a terminal, all elsewhere")
    add_output(parser)
    add_tracing(parser, "tracing", "the devices of one stage: sizes are then those of one device")


def run(options: argparse.Namespace, out: Output) -> int:
    """Profiles, writes the graph, prints it."""
    from shardy_py.pipedream import profile, write_graph

    file = options.output or FILE
    if options.output is None and Path(file).exists():
        raise CommandError(f"there is a {file} already", fix=f"say where to write, -o {file} to replace it")
    if options.limit is not None and options.limit < 1:
        raise CommandError(f"--limit is {options.limit}", fix="write a number of nodes, 1 or more")
    mesh = mesh_of(options.mesh)
    parameters = counts(options.parameters, "--parameters")
    function, args = _function_and_arguments(options)
    with progress(f"profiling {options.target}"):
        graph = profile(
            function, *args, by=options.by, parameters=parameters, hardware=options.hardware, measured=options.measured, mesh=mesh
        )
    write_file(file, write_graph(graph))
    if options.json:
        out.plain(dumped(profile_data(graph, file)))
    else:
        limit = options.limit or (None if out.console is None else 40)
        out.show(f"{profile_text(graph, limit)}\nwritten to {file}")
    return 0


def _function_and_arguments(options: argparse.Namespace) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and its arguments, all by position."""
    from shardy_py.api import AutoSharded
    from shardy_py.pipelines.pipelining import by_position

    target = lookup(options.target, options.flags)
    function = target.__wrapped__ if isinstance(target, AutoSharded) else target
    if not callable(function):
        raise CommandError(f"{options.target} is of type {type(function).__name__}, not a function", fix="name one, train.py:loss")
    if options.args is None and options.args_from is None:
        refuse_missing(function, options.target)
    args, named = arguments_of(options)
    return function, by_position(function, args, named)
