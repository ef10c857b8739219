"""`shardy-py pipedream simulate`."""

from __future__ import annotations

import argparse
from typing import Any

from shardy_py.cli.errors import CommandError
from shardy_py.cli.options import add_output, output_file
from shardy_py.cli.output import Output
from shardy_py.cli.pipedream.tables import counts, crossing_of, graph_of, simulation_data, simulation_text, times
from shardy_py.cli.progress import progress
from shardy_py.cli.report import dumped
from shardy_py.cost.quantity import quantity
from shardy_py.files import write_file

MILLISECOND = 1e-3


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("name", metavar="NAME", help="1f1b, gpipe, eager-1f1b, interleaved, circular, zb-h1, zb-h2, auto, ...")
    parser.add_argument("--stages", type=int, metavar="N", help="number of meshes; by default as many as the stages of --graph need")
    parser.add_argument("--microbatches", type=int, required=True, metavar="N", help="number of microbatches")
    parser.add_argument("--virtual", type=int, default=1, metavar="N", help="stages per mesh, for interleaved, circular and auto")
    parser.add_argument("--perfetto", type=output_file, metavar="FILE", help="write a trace that ui.perfetto.dev opens")
    parser.add_argument("--svg", type=output_file, metavar="FILE", help="write a picture")
    parser.add_argument("--width", type=int, metavar="N", help="columns of the picture; by default those of the terminal, or 100")
    costs = parser.add_argument_group("times in milliseconds, one or one per stage: 1.5 or 1,2,1.5; or from a graph")
    costs.add_argument("--forward", metavar="T", help="of a forward pass; by default 1")
    costs.add_argument("--backward", metavar="T", help="of gradients of inputs; by default as --forward")
    costs.add_argument("--weight", metavar="T", help="of gradients of parameters; by default as --forward")
    costs.add_argument("--transfer", metavar="T", help="between stages; by default 0")
    costs.add_argument("--graph", metavar="FILE", help="a graph.txt with stage ids: its times, and bytes of its activations")
    costs.add_argument("--replicas", metavar="N,...", help="machines that share each stage of the graph: 4,1,1; by default one each")
    costs.add_argument("--bandwidth", metavar="B", help="bytes per second between stages of the graph; without, transfers take no time")
    costs.add_argument("--max-in-flight", type=int, metavar="N", help="activations that a mesh may hold, for auto")
    add_output(parser)


def run(options: argparse.Namespace, out: Output) -> int:
    """Builds, simulates and draws a schedule."""
    from shardy_py.pipelines import schedule, simulate

    if options.width is not None and options.width < 1:
        raise CommandError(f"--width is {options.width}", fix="write a number of columns, 1 or more")
    costs, sizes, meshes = _costs(options)
    with progress(f"simulating {options.name}"):
        order = schedule(options.name, meshes, options.microbatches, options.virtual, max_in_flight=options.max_in_flight, **costs)
        result = simulate(order, **costs, activation_bytes=sizes)
    if options.perfetto:
        write_file(options.perfetto, result.to_perfetto(MILLISECOND))
    if options.svg:
        write_file(options.svg, result.as_svg())
    written = [f"written to {file}" for file in (options.perfetto, options.svg) if file]
    width = options.width or out.width
    if options.json:
        out.plain(dumped(simulation_data(result)))
    else:
        legend = [] if out.console is None else ["digits: forward, letters: backward, w: gradients of weights, by microbatch"]
        out.show("\n".join([simulation_text(result, width), *legend, *written]))
    return 0


def _costs(options: argparse.Namespace) -> tuple[dict[str, Any], list[float] | None, int]:
    """Times, bytes of activations, number of meshes."""
    by_name = {name: times(getattr(options, name), f"--{name}") for name in ("forward", "backward", "weight", "transfer")}
    named = [name for name, value in by_name.items() if value is not None]
    if options.graph is None:
        if options.stages is None:
            raise CommandError("the number of stages is missing", fix="write --stages 4, or --graph FILE with stage ids")
        alone = next((name for name in ("bandwidth", "replicas") if getattr(options, name) is not None), None)
        if alone is not None:
            raise CommandError(f"--{alone} is for the stages of a graph", fix="give --graph FILE too")
        return {name: by_name[name] for name in named}, None, options.stages
    if named:
        raise CommandError(f"--{named[0]} and --graph are both given", fix="give one of them")
    return _costs_of_graph(options)


def _costs_of_graph(options: argparse.Namespace) -> tuple[dict[str, Any], list[float], int]:
    graph = graph_of(options.graph)
    count = graph.num_stages
    if not count:
        raise CommandError(f"{options.graph} has no stage ids", fix="divide it first: shardy-py pipedream partition ... -o FILE")
    virtual = max(options.virtual, 1)
    if count % virtual or options.stages not in (None, count // virtual):
        shape = f"{virtual} on each of {options.stages or 'some'} meshes"
        raise CommandError(f"{options.graph} has {count} stages, not {shape}", fix="leave --stages out, or change --virtual")
    replicas = [1] * count if options.replicas is None else counts(options.replicas, "--replicas")
    if len(replicas) != count or 0 in replicas:
        raise CommandError(f"--replicas {options.replicas} is not a number of machines for each of {count} stages")
    shared = [(part.nodes, width) for part, width in zip(graph.stage_graphs(), replicas)]
    # Half of a backward pass computes gradients of inputs, half gradients of parameters.
    backward = [sum(node.backward_ms for node in nodes) / 2 / width for nodes, width in shared]
    costs: dict[str, Any] = {"forward": [sum(node.forward_ms for node in nodes) / width for nodes, width in shared]}
    costs |= {"backward": backward, "weight": backward}
    if options.bandwidth is not None:
        rate = quantity(options.bandwidth, "--bandwidth")
        if not rate:
            raise CommandError("--bandwidth is 0", fix="leave it out for transfers that take no time")
        costs["transfer"] = [size / rate / MILLISECOND for size in crossing_of(graph)]
    return costs, [sum(node.activation_bytes for node in nodes) / width for nodes, width in shared], count // virtual
