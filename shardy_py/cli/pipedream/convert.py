"""`shardy-py pipedream convert`."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardy_py.cli.options import add_output
from shardy_py.cli.output import Output
from shardy_py.cli.pipedream.tables import VERSION, graph_of
from shardy_py.cli.progress import progress
from shardy_py.cli.report import dumped


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("graph", metavar="GRAPH", help="a graph.txt with stage ids, as `stages partition -o` writes")
    parser.add_argument("directory", metavar="DIRECTORY", help="where the package is written; created if missing")
    parser.add_argument("--arch", metavar="NAME", help="of the architecture; by default as the directory is called")
    parser.add_argument("--model-name", metavar="NAME", help="of the whole model's class; by default as --arch, in camel case")
    parser.add_argument("--stage-to-num-ranks", metavar="STAGE:N,...", help="ranks of each stage, for hybrid_conf.json: 0:3,1:1")
    add_output(parser)


def run(options: argparse.Namespace, out: Output) -> int:
    """Writes the package, prints its files."""
    from shardy_py.pipedream import convert

    graph = graph_of(options.graph)
    arch = options.arch or Path(options.directory).resolve().name
    model = options.model_name or "".join(part[:1].upper() + part[1:] for part in arch.split("_"))
    with progress(f"writing {options.directory}"):
        package = convert(graph, options.directory, arch=arch, model_name=model, stage_to_num_ranks=options.stage_to_num_ranks)
    written = f"{len(package.files)} files written to {options.directory}: {', '.join(package.files)}"
    if options.json:
        named = {"arch": arch, "model_name": model, "num_stages": package.num_stages, "files": list(package.files)}
        out.plain(dumped({"format": "shardy_py.stages.package", "version": VERSION, "directory": options.directory, **named}))
    else:
        out.show(written)
    return 0
