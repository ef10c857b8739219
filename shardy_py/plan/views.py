"""The forms in which a plan leaves the library: a page, and files for other tools."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from shardy_py.files import write_file

if TYPE_CHECKING:
    from shardy_py.cost.hardware import Hardware
    from shardy_py.plan.plan import Plan


class Views:
    """What `Plan` offers besides text. Each view is loaded when it is asked for."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """What a notebook shows: mesh, figures, the largest inputs and outputs, reshards, findings."""
        from shardy_py.view.html.card import card

        return card(cast("Plan", self))

    def save_html(self, path: str | os.PathLike[str], other: Plan | None = None, *, hardware: str | Hardware | None = None) -> None:
        """Writes one page that shows all of the plan and loads nothing from anywhere.

        It lists every value by path, or by module and source line, and shows for each the part that every device holds, why, and where it
        moves; charts of memory and communication; findings. It is made for a recent browser, by mouse or by keyboard.

        Args:
            path: The file.
            other: A plan to show beside this one, with what differs marked.
            hardware: As for `cost_analysis`; with it the page says how long a call takes and whether it fits.

        Raises:
            HardwareError: Such hardware is not known.
            TypeError: `other` is no plan.
            OSError: The file cannot be written.
        """
        from shardy_py.view.html.page import page

        write_file(path, page(cast("Plan", self), other, hardware))

    def as_sdy(self) -> str:
        """The program with its final shardings, as an MLIR module of StableHLO and SDY ops.

        It is made for reading and comparing: attributes that say nothing of shardings, such as the direction of a comparison, are not in a
        plan. For a module that compiles, see `lower(...).as_text()` of the decorated function.
        """
        from shardy_py.ir.printer import print_program

        return print_program(cast("Plan", self).program) + "\n"

    def save_sdy(self, path: str | os.PathLike[str]) -> None:
        """Writes `as_sdy()` to a file.

        Args:
            path: The file.

        Raises:
            OSError: The file cannot be written.
        """
        write_file(path, self.as_sdy())

    def save_perfetto(
        self, path: str | os.PathLike[str], hardware: str | Hardware | None = None, links: Mapping[str, object] | None = None
    ) -> None:
        """Writes the predicted timeline of one call as trace events: ops, collectives per set of mesh axes, live memory.

        Open the file in https://ui.perfetto.dev or chrome://tracing.

        Args:
            path: The file.
            hardware: As for `cost_analysis`; without it, lengths are bytes at nominal speeds.
            links: As for `cost_analysis`.

        Raises:
            HardwareError: Such hardware is not known.
            LinkError: The links do not fit the mesh.
            OSError: The file cannot be written.
        """
        from shardy_py.view.perfetto import timeline_json

        write_file(path, timeline_json(cast("Plan", self), hardware, links))

    def save_model_explorer(self, path: str | os.PathLike[str]) -> None:
        """Writes the program as a graph for Model Explorer: layers by module, shardings as attributes.

        Args:
            path: The file; Model Explorer wants it to end in `.json`.

        Raises:
            OSError: The file cannot be written.
        """
        from shardy_py.view.model_explorer import graph_json

        write_file(path, graph_json(cast("Plan", self)))
