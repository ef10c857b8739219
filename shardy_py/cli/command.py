"""The description of a subcommand: its name, arguments and function."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from shardy_py.cli.output import Output
from shardy_py.ir.tables import merge_tables

Run = Callable[[argparse.Namespace, Output], int]


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand; `former` is an earlier name that goes on working."""

    name: str
    help: str
    add: Callable[[argparse.ArgumentParser], None]
    run: Run
    former: str = ""


def add_all(parser: argparse.ArgumentParser, commands: tuple[Command, ...], run: str = "run", metavar: str = "COMMAND") -> None:
    """Gives a parser a subparser for each of some commands."""
    merge_tables({command.name: command} for command in commands)  # raises where two have one name
    below = parser.add_subparsers(dest=metavar.lower(), metavar=metavar, required=True)
    for command in commands:
        former = [command.former] if command.former else []
        one = below.add_parser(command.name, aliases=former, help=command.help, description=f"{command.help[0].upper()}{command.help[1:]}.")
        command.add(one)
        one.set_defaults(**{run: command.run})
