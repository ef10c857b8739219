"""`shardy-py pipedream partition`."""

from __future__ import annotations

import argparse

from shardy_py.cli.options import add_output, output_file
from shardy_py.cli.output import Output
from shardy_py.cli.pipedream.tables import counts, graph_of, partition_data
from shardy_py.cli.progress import progress
from shardy_py.cli.report import dumped
from shardy_py.cost.quantity import quantity
from shardy_py.files import write_file


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("graph", metavar="GRAPH", help="a profile: graph.txt, of `stages profile` or of PipeDream")
    parser.add_argument("--machines", required=True, metavar="N,...", help="machines on each level, innermost first: 4,2 is 4 in each of 2")
    parser.add_argument("--bandwidths", required=True, metavar="B,...", help="bytes per second on each level: 300e9,50e9 or 300GB/s,50GB/s")
    parser.add_argument("--mode", default="pipedream", metavar="MODE", help="pipedream (default), its optimizer; or exact, which mends it")
    parser.add_argument(
        "--activation-compression",
        type=float,
        metavar="R",
        help="divide bytes that are sent by this; 1 leaves them as they are; by default none count",
    )
    parser.add_argument("--straight", action="store_true", help="replicate no stage")
    parser.add_argument("--use-fewer-machines", "--fewer", action="store_true", help="machines may be left unused")
    parser.add_argument("--memory-bytes", "--memory", metavar="BYTES", help="memory of one machine: 80e9, 80GB, 80GiB")
    parser.add_argument("-o", "--output", type=output_file, metavar="FILE", help="write the graph with its stage ids")
    add_output(parser)


def run(options: argparse.Namespace, out: Output) -> int:
    """Divides a graph, writes it, prints the stages."""
    from shardy_py.pipedream import partition, write_graph

    machines = counts(options.machines, "--machines")
    bandwidths = [quantity(part, "--bandwidths") for part in options.bandwidths.split(",")]
    memory = None if options.memory_bytes is None else quantity(options.memory_bytes, "--memory-bytes")
    graph = graph_of(options.graph)
    with progress(f"dividing {options.graph}"):
        result = partition(
            graph, machines, bandwidths, options.mode, options.activation_compression, options.straight, options.use_fewer_machines, memory
        )
    if options.output:
        write_file(options.output, write_graph(result.graph))
    written = [f"written to {options.output}"] if options.output else []
    if options.json:
        out.plain(dumped(partition_data(result)))
    else:
        out.show("\n".join([result.as_text(), *written]))
    return 0
