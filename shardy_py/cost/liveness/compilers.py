"""What compilers do with memory that a program does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardy_py.errors import ShardyError


class CompilerError(ShardyError):
    """A compiler that is not known."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """How a compiler lays out memory.

    Attributes:
        name: What it is called.
        order: In which order it runs a program; one of `order.ORDERS`.
        alignment: Where buffers start, in bytes.
        pointer: Bytes of an address in the tables through which several results of one node are found; 0 without such tables.
        small_program: Up to how many buffers are placed one by one, gaps between them counted; of more, gaps are left out.
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

`cpu` is XLA for CPUs as jaxlib 0.10.2 has it, compared with its own figures in docs/memory.md. It runs first what is ready first, so that
cores can work side by side, and keeps more alive than it would have to. `accelerator` runs a program as it is written, forward and then
backward, which is near to what XLA's schedulers for GPUs and TPUs do, as they save memory; it has not been compared with a device.
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
    found = COMPILERS.get(name)
    if found is None:
        raise CompilerError(f"unknown compiler {name!r}", why=f"known are {', '.join(COMPILERS)}", fix="use one of these names")
    return found
