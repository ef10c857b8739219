"""Options that several subcommands have."""

from __future__ import annotations

import argparse


def add_target(parser: argparse.ArgumentParser) -> None:
    """The plan that a command is for, and how to print."""
    parser.add_argument("target", metavar="TARGET", help=TARGET)
    add_output(parser)
    add_planning(parser)


def add_planning(parser: argparse.ArgumentParser) -> None:
    """Options that say how to plan a function."""
    group = add_tracing(parser, "planning, where TARGET is a function", "by default the mesh of the function's decorator")
    lowerings, default = ("auto", "jit", "shard_map"), "by default as the decorator says, or auto"
    group.add_argument("--lowering", choices=lowerings, help=f"how the plan would run; {default}")
    group.add_argument(
        "--planner",
        metavar="KEY=VALUE,...",
        help="let a planner choose what is not annotated: h100, or hardware=v5e,memory_bytes=16GiB,time_limit_s=10,gap=0.01",
    )
    group.add_argument("--platform", metavar="NAME", help="cpu, cuda (or gpu), rocm or tpu: what to plan for if the mesh has no devices")


def add_tracing(parser: argparse.ArgumentParser, title: str, mesh: str) -> argparse._ArgumentGroup:
    """Options for the arguments with which a function is traced."""
    group = parser.add_argument_group(title)
    group.add_argument("--mesh", metavar="AXES", help=f"axes and sizes, data=4,model=2, or a number of devices, 8; {mesh}")
    group.add_argument(
        "--args",
        nargs="+",
        metavar="ARG",
        help="arguments: types, float32[8,128] or, with a sharding, bf16[8@data,128], in {'w': ...}, [...] or (...); numbers, strings, None"
        "; rate=0.1 by name",
    )
    group.add_argument(
        "--args-from", metavar="MODULE:NAME", help="a tuple of the arguments, a single argument, or a function that returns either"
    )
    group.add_argument("--traceback", action="store_true", help="show the traceback of an error in the module")
    return group


def output_file(text: str) -> str:
    """An `argparse` type for the name of a file to write; refuses an empty name, such as an unset shell variable gives."""
    if not text:
        raise argparse.ArgumentTypeError("the name of the file is empty")
    return text


def add_output(parser: argparse.ArgumentParser) -> None:
    """Options that say how to print."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto", help="whether text has colours; by default on a terminal only"
    )


def add_compiling(parser: argparse.ArgumentParser, flag: str) -> None:
    """An option to compile a plan."""
    parser.add_argument(flag, metavar="TOPOLOGY", help="also compile: for TPUs (v5e:2x4), or `here` for the devices of this machine")


TARGET = "MODULE:FUNCTION (or file.py:FUNCTION), or the file of a stored plan"
