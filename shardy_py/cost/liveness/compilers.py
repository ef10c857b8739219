"""Memory policies of compilers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardy_py.errors import ShardyError


class CompilerError(ShardyError):
    """An unknown compiler."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """The memory policy of a compiler.

    Attributes:
        name: Its name.
        order: The order in which it runs a program; one of `order.ORDERS`.
        alignment: Of the start of buffers, in bytes.
        pointer: Bytes of an address in the tables through which several results of one node are found; 0 without such tables.
        small_program: Largest number of buffers that are placed one by one, with the gaps between them; of more, gaps are left out.
        widens: Whether it computes with floats of two bytes in float32.
    """

    name: str
    order: str
    alignment: int
    pointer: int
    small_program: int = 1_500
    widens: bool = False


COMPILERS: Mapping[str, Compiler] = {
    "cpu": Compiler("cpu", "breadth-first", 64, 8, widens=True),
    "accelerator": Compiler("accelerator", "program", 256, 0),
}
"""Name -> compiler.

`cpu` is XLA for CPUs as jaxlib 0.10.2 has it, compared with its own figures in docs/memory.md. It runs nodes in the order in which they
become ready, so that cores work in parallel, and keeps more alive than necessary. `accelerator` runs a program as it is written, forward
and then backward, which is near to what XLA's schedulers for GPUs and TPUs do, as they save memory; it has not been compared with a device.
"""


def compiler(name: str) -> Compiler:
    """A compiler by name.

    Args:
        name: One of `COMPILERS`.

    Raises:
        CompilerError: There is none of that name.

    Example:
        >>> compiler("cpu").order
        'breadth-first'
    """
    match = COMPILERS.get(name)
    if match is None:
        raise CompilerError(f"unknown compiler {name!r}", why=f"known are {', '.join(COMPILERS)}", fix="use one of these names")
    return match
