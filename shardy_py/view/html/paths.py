"""The parts of a pytree path, by which the page groups inputs and outputs."""

from __future__ import annotations

import re

_PART = re.compile(r"""\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]]*)\]|\.[^.\[]+|[^.\[]+|[.\[]""", re.DOTALL)


def path_parts(path: str) -> tuple[str, ...]:
    """The parts of a path in JAX's spelling; together they are the path.

    Args:
        path: As `jax.tree_util.keystr` writes it, behind the name of an argument.

    Example:
        >>> path_parts("params['mlp'].layers[0]['w']")
        ('params', "['mlp']", '.layers', '[0]', "['w']")
    """
    return tuple(_PART.findall(path))
