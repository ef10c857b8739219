"""Memory policies of XLA's compilers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compiler:
    """The memory policy of a compiler.

    Attributes:
        pointer: Bytes of an address in the tables through which several results of one node are found; 0 without such tables.
        small_program: Largest number of buffers that are placed one by one, with the gaps between them; of more, gaps are left out.
        error: The part by which peaks of models were at most below those of compiled programs.
    """

    name: str
    title: str
    order: str
    alignment: int
    pointer: int
    small_program: int = 1_500
    widens: bool = False
    error: float = 0.1


COMPILERS: Mapping[str, Compiler] = {
    "cpu": Compiler("cpu", "a cpu", "breadth-first", 64, 8, widens=True),
    "accelerator": Compiler("accelerator", "an accelerator", "program", 256, 0),
}
"""Name -> compiler.

`cpu` is XLA for CPUs as jaxlib 0.10.2 has it, compared with its own figures in docs/memory.md. It runs nodes in the order in which they
become ready, so that cores work in parallel, and keeps more alive than necessary. `accelerator` runs a program as it is written, forward
and then backward, which is near to what XLA's schedulers for GPUs and TPUs do, as they save memory. Both are compared with compiled
programs in docs/memory.md: `accelerator` on one H100 alone, where peaks were at most 2 % below, so that the error of `cpu` stands for it.
"""
