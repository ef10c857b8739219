"""Which version of Shardy rules, passes and texts follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

CHANGES: Mapping[str, str] = {
    "reshape: shared permutation": "where two shapes have no common divisor, their dimensions share a permutation factor",
    "reshape: factors of one side replicate": "what only the operand or only the result has, sizes of 1 included, needs replication",
    "convolution: factors of one side": "windows, and results, of which no part fits into the input are permutations",
    "pad: equal sizes permute": "a dimension that is padded, and cut to its old size, is a permutation",
    "dynamic_update_slice: updates permute": "a dimension that is updated in part is a permutation in operand and update",
    "constraints: fully open shardings yield": "`sdy-apply-sharding-constraints` replaces shardings that are fully open and have no axes",
    "debug: every edge has an entry": "lists of sharding origins have an empty entry for an edge without any",
    "calls: unreduced axes stay": "`sdy-insert-func-call-reshards` leaves calls whose callee has other unreduced axes",
    "results: main has shardings": "results of main without a sharding get the sharding of the value returned",
    "reshards: reductions by kind": "all-reduces that `sdy-insert-explicit-reshards` inserts for a maximum or minimum say so",
    "export: unreduced axes are verified": "`sdy-verify-unreduced-axes` runs before reshards are inserted",
    "text: single-device shardings": "a sharding on a mesh of one device is called single-device, not maximal, in errors",
    "export: meshes are inlined": "`sdy-export-pipeline` writes meshes into shardings",
}
"""What changed between the versions that are followed: name -> what holds in the later one; tests/opt/test_semantics.py shows each."""

VERSIONS = ("0.10", "0.12")


@dataclass(frozen=True)
class Semantics:
    """The Shardy of a release of jaxlib: rules and passes do what it does.

    Args:
        version: The release, "0.10" or "0.12".

    Raises:
        ValueError: If the version is another.

    Example:
        >>> Semantics("0.12").has("pad: equal sizes permute")
        True
    """

    version: str

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise ValueError(f"no semantics of jaxlib {self.version!r} are known; write one of {', '.join(map(repr, VERSIONS))}")

    def has(self, change: str) -> bool:
        """Whether a change of `CHANGES` holds."""
        if change not in CHANGES:
            raise KeyError(change)
        return self.version == "0.12"

    def __str__(self) -> str:
        return self.version


def _installed() -> Semantics:
    try:
        major, minor = metadata.version("jaxlib").split(".")[:2]
    except metadata.PackageNotFoundError:
        return Semantics(VERSIONS[-1])
    return Semantics(VERSIONS[(int(major), int(minor)) > (0, 10)])


INSTALLED = _installed()
"""The semantics of the jaxlib that is installed, the default everywhere."""
