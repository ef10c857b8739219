"""Merges paths that differ only in the numbers of layers."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"\d+")


def paths_as_one(paths: Sequence[str]) -> str:
    """Merges paths that differ only in numbers: `layers[0..23]['w']` if they differ in one number, without gaps.

    Example:
        >>> paths_as_one([f"layers[{i}]['w']" for i in range(3)]), paths_as_one(["a[0]", "a[7]"])
        ("layers[0..2]['w']", 'a[0] and 1 more')
    """
    first, count = paths[0], len(paths)
    if count == 1:
        return first
    texts, numbers = _NUMBER.split(first), [list(map(int, _NUMBER.findall(path))) for path in paths]
    differing = [k for k, column in enumerate(zip(*numbers)) if len(set(column)) > 1]
    if len(differing) != 1 or sorted(row[differing[0]] for row in numbers) != list(
        range(numbers[0][differing[0]], numbers[0][differing[0]] + count)
    ):
        return f"{first} and {count - 1} more"
    k = differing[0]
    indices = [str(n) for n in numbers[0]]
    indices[k] = f"{numbers[0][k]}..{numbers[0][k] + count - 1}"
    return "".join(text + number for text, number in zip(texts, [*indices, ""]))


def without_numbers(path: str) -> str:
    """A path with a mark in place of each number.

    Example:
        >>> without_numbers("layers[12]['w']")
        "layers[#]['w']"
    """
    return _NUMBER.sub("#", path)
