"""`shardy-py pipedream`: pipeline stages, from a profile to code and schedules. `ACTIONS` is the table of its actions."""

from __future__ import annotations

import argparse

from shardy_py.cli.command import Command, add_all
from shardy_py.cli.output import Output
from shardy_py.cli.pipedream import convert, partition, profile, simulate, train

ACTIONS = (
    Command("profile", "time every piece of a function's forward and backward pass, and write graph.txt", profile.add, profile.run),
    Command("partition", "divide a graph.txt into the pipeline stages whose slowest is fastest", partition.add, partition.run),
    Command("convert", "write the stages of a graph.txt as Flax modules", convert.add, convert.run),
    Command("run", "train the modules that convert wrote, as a pipeline over one process or several", train.add, train.run),
    Command("simulate", "run a pipeline schedule on paper, and draw it", simulate.add, simulate.run),
)


def add(parser: argparse.ArgumentParser) -> None:
    """The actions, each with its options."""
    add_all(parser, ACTIONS, run="act", metavar="ACTION")


def run(options: argparse.Namespace, out: Output) -> int:
    """Runs the chosen action."""
    return options.act(options, out)
