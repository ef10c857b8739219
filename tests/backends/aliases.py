"""The donated buffers of a compiled program, and the differences from a plan's donation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from shardy_py.backends.compiled_text import closing
from shardy_py.facade import Plan
from shardy_py.plan.donation import arrangement


@dataclass(frozen=True)
class Alias:
    """An output that lies in the buffer of a parameter.

    Attributes:
        output: Index path into the result; empty where the result is one array.
        parameter: Number of the parameter.
        index: Index path into the parameter; empty where it is one array.
        must: Whether the program relies on it; otherwise it copies what may not be overwritten.
    """

    output: tuple[int, ...]
    parameter: int
    index: tuple[int, ...] = ()
    must: bool = False


@dataclass(frozen=True)
class Aliases:
    """The donated buffers that a compiled program reuses.

    Attributes:
        pairs: Outputs that lie in buffers of parameters.
        donors: Parameters, with index paths, whose buffers no output fits; they are used for other things.
    """

    pairs: tuple[Alias, ...] = ()
    donors: tuple[tuple[int, tuple[int, ...]], ...] = ()


_ALIAS = re.compile(r"\{([\d, ]*)\}:\s*\((\d+),\s*\{([\d, ]*)\}(?:,\s*(\w+)-alias)?\)")
_DONOR = re.compile(r"\((\d+),\s*\{([\d, ]*)\}\)")


def aliases_in(hlo_text: str) -> Aliases:
    """The donated buffers of a compiled program: `input_output_alias` and `buffer_donor`.

    Args:
        hlo_text: `compiled.as_text()`.

    Example:
        >>> aliases_in("HloModule m, input_output_alias={ {1}: (0, {}, may-alias) }, buffer_donor={ (2, {}) }").pairs
        (Alias(output=(1,), parameter=0, index=(), must=False),)
    """
    head = hlo_text.lstrip().partition("\n")[0]
    pairs = _ALIAS.findall(_braces(head, "input_output_alias="))
    donors = _DONOR.findall(_braces(head, "buffer_donor="))
    return Aliases(
        tuple(Alias(_path(output), int(parameter), _path(index), how == "must") for output, parameter, index, how in pairs),
        tuple((int(parameter), _path(index)) for parameter, index in donors),
    )


def _braces(text: str, key: str) -> str:
    start = text.find(key)
    return "" if start < 0 else text[start + len(key) : closing(text, start + len(key))]


def _path(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def check_compiled(compiled: Any, plan: Plan) -> list[str]:
    """The differences between a plan's donation and what the compiled program does; empty where there is none.

    Args:
        compiled: `step.lower(...).compile()`.
        plan: The plan of the same call.
    """
    laid_out = arrangement(plan.donation, plan.program, plan.outputs)
    order = laid_out.outputs or tuple(range(len(plan.outputs)))
    place = {output: position for position, output in enumerate(order)}
    wanted: dict[int, tuple[int, str]] = {}
    for donated in plan.donation:
        if donated.output is not None:
            is_sorted = list(laid_out.donated) == sorted(laid_out.donated)
            parameter = donated.input - sum(n < donated.input for n in plan.dropped) if is_sorted else laid_out.donated.index(donated.input)
            wanted[place[donated.output]] = parameter, donated.path
    donors = {alias.output[0] if alias.output else 0: alias.parameter for alias in aliases_in(compiled.as_text()).pairs}
    differences = []
    for position, output in enumerate(order):
        parameter, path = wanted.get(position, (None, ""))
        has = donors.get(position)
        if has != parameter:
            planned = f"{path}, parameter {parameter}" if path else "no input"
            compiled_to = "that of no input" if has is None else f"that of parameter {has}"
            differences.append(f"{plan.outputs[output].path} is to reuse the memory of {planned}, but has {compiled_to}")
    return differences
