"""Draws the rooms of the package from its imports into design.md: `python -m docs.rooms`.

An arrow leads from a room to one that it imports; one that follows from others is left out, so that the layers stay visible.
"""

from __future__ import annotations

import pathlib

from tests.imports import ORDER, imported, modules, room, target_of

DESIGN = pathlib.Path(__file__).resolve().parent / "design.md"
START, END = "```mermaid\n", "```\n"


def imports_of_rooms() -> dict[str, set[str]]:
    """Room -> the rooms that it imports, the package itself left out."""
    files = dict(modules())
    rooms: dict[str, set[str]] = {}
    for module, path in files.items():
        if not (own := room(module)) or own == "__main__":
            continue
        targets = {room(target_of(base, name, files)) for base, name, _ in imported(module, path)}
        rooms.setdefault(own, set()).update(targets - {own, ""})
    return rooms


def without_shortcuts(imports: dict[str, set[str]]) -> dict[str, list[str]]:
    """The imports of earlier rooms that do not follow from others; a late import of a later one is no layer."""
    reached: dict[str, set[str]] = {}
    direct: dict[str, list[str]] = {}
    for name in (name for name in ORDER if name in imports):
        earlier = [target for target in ORDER if target in imports[name] and target in reached]
        reached[name] = set(earlier).union(*(reached[target] for target in earlier))
        direct[name] = [target for target in earlier if not any(target in reached[other] for other in earlier)]
    return direct


def picture() -> str:
    """The rooms as a Mermaid flow chart."""
    imports = without_shortcuts(imports_of_rooms())
    lines = [f"  {name} --> {target}" for name in reversed(imports) for target in imports[name]]
    return "\n".join([START + "flowchart TD", *lines, END])


def main() -> None:
    """Writes the picture in place of the one before."""
    before, _, rest = DESIGN.read_text().partition(START)
    DESIGN.write_text(before + picture() + rest.partition(END)[2])


if __name__ == "__main__":
    main()
