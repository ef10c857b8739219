"""Patterns of paths: one grammar for `rules=`, `ignore=` and `where=`.

A pattern matches a path whose last components it matches. Components are separated as in a printed path (`layers[0]['kernel']`) or by
slashes (`layers/0/kernel`). `*` stands for any characters of a component, `?` for one, `**` for one or more components.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from shardy_py.errors import ShardyError

LONGEST = 1000
"""Limit of the characters of a pattern: nobody writes a longer one."""

_SEPARATOR = re.compile(r"\['|'\]|\[|\]|\.|/")


def check_length(pattern: str, where: str, error: type[ShardyError] = ShardyError) -> None:
    """Raises `error`, a ShardyError, if a pattern has more than `LONGEST` characters; `where` is the argument that holds it."""
    if len(pattern) > LONGEST:
        raise error(f"a pattern of {len(pattern)} characters", where=where, why=f"the longest pattern has {LONGEST}", fix="use ** or *")


def slash_path(path: str) -> str:
    """`state.params['layers'][0]['kernel']` -> `state/params/layers/0/kernel`.

    A last `.value`, which every variable of Flax NNX has, is left out.
    """
    return "/".join(_split(path))


def matches(pattern: str, path: str) -> bool:
    """Whether the last components of `path` match, in time that grows with the lengths of both and not with their powers.

    Example:
        >>> matches("layers/*/kernel", "params/layers/0/kernel"), matches("layers[*]['kernel']", "params['layers'][0]['kernel']")
        (True, True)
    """
    return _ends_with(_components(pattern), _split(path))


def matches_text(pattern: str, text: str) -> bool:
    """Whether a pattern matches all of a text, where `*` stands for any characters and `?` for one; there are no components.

    Example:
        >>> matches_text("step.py:*", "step.py:12"), matches_text("params*", "params['w']")
        (True, True)
    """
    return _glob(pattern).fullmatch(text) is not None


def names_path(pattern: str, path: str) -> bool:
    """Whether a pattern matches the last components of a path, or all of the path as it is printed.

    Example:
        >>> names_path("kernel", "params['kernel']"), names_path("params*", "params['kernel']")
        (True, True)
    """
    return matches_text(pattern, path) or matches(pattern, path)


def _split(path: str) -> list[str]:
    return [part for part in _SEPARATOR.split(path.removesuffix(".value")) if part]


@functools.lru_cache(maxsize=1024)
def _components(pattern: str) -> tuple[str | None, ...]:
    """The components of a pattern; None stands for any number of components, as before the first."""
    components: list[str | None] = [None]
    for component in _split(pattern):
        components += ["?*", None] if component == "**" else [component]
    return tuple(components)


def _ends_with(pattern: Sequence[str | None], path: Sequence[str]) -> bool:
    """Whether the components of a path match those of a pattern.

    Only the last None is ever extended: what stands before it has matched as early as it can, so no other way could succeed.
    """
    i = k = 0
    retry: tuple[int, int] | None = None
    while k < len(path):
        component = pattern[i] if i < len(pattern) else None
        if i < len(pattern) and component is None:
            retry = i, k
            i += 1
        elif component is not None and matches_text(component, path[k]):
            i, k = i + 1, k + 1
        elif retry is not None:
            i, k = retry[0] + 1, retry[1] + 1
            retry = retry[0], k
        else:
            return False
    return len(pattern) > 1 and all(part is None for part in pattern[i:])


@functools.lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    """A regular expression that keeps the first place of each part between stars: an atomic group is not entered a second time."""
    first, *parts = ("".join("." if letter == "?" else re.escape(letter) for letter in part) for part in re.split(r"\*+", pattern))
    if not parts:
        return re.compile(first, re.DOTALL)
    middle = "".join(f"(?>.*?{part})" for part in parts[:-1])
    return re.compile(f"{first}{middle}.*{parts[-1]}", re.DOTALL)
