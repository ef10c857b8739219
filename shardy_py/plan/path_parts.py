"""The parts of a pytree path, as `jax.tree_util.keystr` writes it behind the name of an argument."""

from __future__ import annotations

import re

_PART = re.compile(
    r"""\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]|\[<flat index (\d+)>\]|\[([^\]]*)\]|\.([^.\[]+)|([^.\[]+)|[.\[]""", re.DOTALL
)


def path_parts(path: str) -> tuple[str, ...]:
    """The parts of a path; together they are the path.

    Example:
        >>> path_parts("params['mlp'].layers[0]['w']")
        ('params', "['mlp']", '.layers', '[0]', "['w']")
    """
    return tuple(match[0] for match in _PART.finditer(path))


def names_of(path: str) -> tuple[str, ...]:
    """The names and numbers that the parts of a path hold.

    Example:
        >>> names_of("params['mlp'].layers[0]['w']")
        ('params', 'mlp', 'layers', '0', 'w')
    """
    return tuple(match[match.lastindex or 0] for match in _PART.finditer(path))
