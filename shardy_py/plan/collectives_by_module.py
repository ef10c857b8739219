"""The collectives of a plan by module, those of the forward and of the backward pass apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shardy_py.dialect.format import aligned
from shardy_py.errors import ShardyError
from shardy_py.plan.collectives import Collective, Total, summary


@dataclass(frozen=True, slots=True)
class ModuleCollectives:
    """The collectives of a module, those of modules inside it included.

    Attributes:
        module: Its path; empty for the whole function.
        forward: Count and bytes per kind of those outside of backward passes; of the whole function, those of its update too.
        backward: The same of backward passes, with what is computed again for these.
    """

    module: str
    forward: tuple[Total, ...]
    backward: tuple[Total, ...]


@dataclass(frozen=True)
class CollectivesByModule(Mapping[str, ModuleCollectives]):
    """Path of a module -> its collectives, modules behind the one that they stand in; `str` gives a table.

    Attributes:
        modules: The modules that have collectives, the whole function first.
    """

    modules: tuple[ModuleCollectives, ...]

    def __getitem__(self, module: str) -> ModuleCollectives:
        for each in self.modules:
            if each.module == module:
                return each
        raise KeyError(module)

    def __iter__(self) -> Iterator[str]:
        return (each.module for each in self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    def __str__(self) -> str:
        rows = [("module", "forward", "backward")]
        for each in self.modules:
            parts = each.module.split("/")
            label = "  " * len(parts) + parts[-1] if each.module else "(all)"
            rows.append((label, _text(each.forward), _text(each.backward)))
        return "\n".join(aligned(rows))


def by_module(collectives: Iterable[Collective], depth: int | None = None) -> CollectivesByModule:
    """Adds up the collectives of each module, of `depth` levels if it is not None. Raises ShardyError if the depth is less than 0."""
    if depth is not None and (not isinstance(depth, int) or depth < 0):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ShardyError(f"depth is {depth!r}", where="Plan.collectives_by_module", why="it counts levels", fix="0, 1, 2, ... or None")
    passes: dict[tuple[str, ...], tuple[list[Collective], list[Collective]]] = {(): ([], [])}
    for collective in collectives:
        path = tuple(collective.module.split("/")) if collective.module else ()
        for level in range(len(path[:depth]) + 1):
            passes.setdefault(path[:level], ([], []))[collective.backward].append(collective)
    first = {path: number for number, path in enumerate(passes)}
    ordered = sorted(passes, key=lambda path: [first[path[: level + 1]] for level in range(len(path))])
    return CollectivesByModule(tuple(ModuleCollectives("/".join(path), *map(summary, passes[path])) for path in ordered))


def _text(totals: tuple[Total, ...]) -> str:
    return ", ".join(map(str, totals)) or "none"
