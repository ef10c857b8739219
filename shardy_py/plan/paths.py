"""Paths of values: their parts, patterns, and several as one."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Sequence

from shardy_py.errors import ShardyError

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
    components = _split(path)
    ends = set(range(len(components)))  # where what has been read of the pattern may end
    for part in _split(pattern):
        if part == "**":
            ends = set(range(min(ends, default=len(components)) + 1, len(components) + 1))
        else:
            ends = {k + 1 for k in ends if k < len(components) and matches_text(part, components[k])}
    return len(components) in ends


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
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


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


_OF_JAX = frozenset(("rematted_computation", "checkpoint"))

_WRAPPED = re.compile(r"[\w-]+\((.*)\)", re.DOTALL)


def is_backward(scope: str) -> bool:
    """Whether an op is of a backward pass: of the transposition of a derivative, what is computed again for it included.

    Example:
        >>> is_backward("transpose(jvp(Model))/up"), is_backward("jvp(Model)/up")
        (True, False)
    """
    return any(part.startswith("transpose(") for part in scope.split("/"))


@functools.lru_cache(maxsize=1 << 16)
def module_path(scope: str, around: str = "") -> str:
    """The name stack of an op as a path of modules: without the transformations that JAX wraps around names, and without einsum strings.

    Flax opens a scope per module, `jax.named_scope` and `shardy_py.named_computation` open others. Names inside of a body (`scan`, `jit`)
    begin at the body, so that those of the op around it come first.

    Example:
        >>> module_path("transpose(jvp(Transformer))/block_0/attention/bqhd,bkhd->bhqk")
        'Transformer/block_0/attention'
        >>> module_path("jvp()/softmax", "Transformer/block_0")
        'Transformer/block_0/softmax'
        >>> module_path("transpose(jvp(Model))/up/jvp(Model)/up/rematted_computation/gelu")
        'Model/up/gelu'
    """
    names = [around] if around else []
    repeats = scope.startswith("transpose(")
    for i, part in enumerate(scope.split("/")):
        name = part
        if repeats and i and part.startswith("jvp("):  # what is computed again says where it was computed first
            names = [around] if around else []
        if name in _OF_JAX:
            continue
        while (match := _WRAPPED.fullmatch(name)) is not None:
            name = match[1]
        if name and "->" not in name and "(" not in name and ")" not in name:
            names.append(name)
    return "/".join(names)
