"""Writes the row of this Python into the table of BUILD.md, once something has passed: `python .ci/tried.py BUILD.md 'what ran'`."""

import platform
import sys
from importlib import metadata
from pathlib import Path

HEADER = "| Python | jax, jaxlib | flax | optax | what ran |\n|---|---|---|---|---|\n"


def minor(row: str) -> tuple[int, ...]:
    """The minor version of Python that a row is of, as numbers."""
    return tuple(map(int, row.split("|")[1].split(".")[:2]))


def main(document: str, ran: str) -> None:
    """Puts the row in the place of the one with the same minor version of Python."""
    text = Path(document).read_text()
    before, rest = text.split(HEADER)
    table, after = rest.split("\n\n", 1)
    row = " | ".join((platform.python_version(), *map(metadata.version, ("jax", "flax", "optax")), ran))
    rows = {minor(line): line for line in (*table.splitlines(), f"| {row} |")}
    Path(document).write_text(before + HEADER + "\n".join(rows[key] for key in sorted(rows)) + "\n\n" + after)


if __name__ == "__main__":
    main(*sys.argv[1:])
