"""All configurations, each drawn from a name and a number.

A configuration is a primitive with parameters and operands, with other ops around it, on a mesh, with shardings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from shardy_py.ir.tables import merge_tables
from tests.sweep import algebra, control, harnesses, indexing, pointwise, reductions, shapes, windows
from tests.sweep.draw import Draw, Generator
from tests.sweep.shardings import draw_input, draw_mesh, draw_output
from tests.sweep.surroundings import transformed, unconstrained, with_operands, with_results

FAMILIES = {algebra: 1, control: 1, harnesses: 40, indexing: 3, pointwise: 1, reductions: 2, shapes: 3, windows: 3}
"""Module with generators -> weight: more goes wrong where elements move, and in windows, than elsewhere."""

GENERATORS: Mapping[str, Generator] = merge_tables(tuple(family.GENERATORS for family in FAMILIES))
"""Name, which begins with a primitive's -> generator."""

ORDER = [name for family, weight in FAMILIES.items() for name in family.GENERATORS for _ in range(weight)]
random.Random(0).shuffle(ORDER)


class Configuration(NamedTuple):
    """A program to run with and without shardings.

    Attributes:
        function: Takes what constrains a value to a spec, `constraint(mesh)` or `unconstrained`, and the arguments.
        arguments: Arrays.
        mesh: Where it runs.
        in_shardings: Of the arguments.
        out_shardings: Of the results, in one tuple.
        x64: Whether 64-bit types are enabled, as they must be where it runs.
        around: What stands around the primitive, for messages.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    mesh: Mesh
    in_shardings: tuple[Any, ...]
    out_shardings: tuple[Any, ...]
    x64: bool
    around: tuple[str, ...]


def name_of(number: int) -> str:
    """The name of a configuration in a sweep; each name comes up as often as its weight says."""
    return ORDER[number % len(ORDER)]


def configuration_of(name: str, seed: int) -> Configuration:
    """The configuration of a name and a number; the same in every process."""
    draw = Draw.of(name, seed)
    with jax.enable_x64(draw.x64):
        return _drawn(name, draw)


def _drawn(name: str, draw: Draw) -> Configuration:
    case = GENERATORS[name](draw)
    mesh = draw_mesh(draw)
    around: list[str] = []
    function, arguments = with_operands(draw, case, around)
    function = with_results(draw, function, arguments, mesh, around)
    function = transformed(draw, case, function, arguments, around)
    results = jax.eval_shape(lambda *args: function(unconstrained, *args), *arguments)
    ins = tuple(draw_input(draw, np.shape(a), mesh) for a in arguments)
    outs = tuple(draw_output(draw, r.shape, mesh) for r in results)
    return Configuration(function, arguments, mesh, ins, outs, draw.x64, tuple(around))
