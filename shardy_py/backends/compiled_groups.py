"""Reads which devices take part in a collective of a compiled program, in each of XLA's spellings."""

from __future__ import annotations

import math
import re

import numpy as np

from shardy_py.dialect import AxisRef, Mesh
from shardy_py.dialect.devices import device_groups

Groups = tuple[tuple[int, ...], ...]

_LISTED = re.compile(r"\breplica_groups=\{((?:\s*\{[\d,\s]*\}\s*,?)*)\s*\}")
_COUNTED = re.compile(r"\breplica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"\breplica_groups=@?mesh\[([^\]]*)\](?:,\s*device_ids=\(([^()]*(?:\([\d,\s]*\))?)\))?\s*\{([^}]*)\}")
_MESH_AXIS = re.compile(r"(?:'([^']*)'|\"([^\"]*)\"|(\w+))=(\d+)")
_AXIS = re.compile(r"(?:'([^']*)'|\"([^\"]*)\"|([A-Za-z_]\w*))(?::\((\d+)\)(\d+))?")
_PAIRS = re.compile(r"\bsource_target_pairs=\{((?:\s*\{[\d,\s]*\}\s*,?)*)\s*\}")
_INNER = re.compile(r"\{([^}]*)\}")


def groups_in(attributes: str, partitions: int) -> Groups:
    """The groups of devices that exchange data with each other. Raises ValueError if groups are written in another way.

    Args:
        attributes: Those of the op: `replica_groups={{0,1},{2,3}}`, `replica_groups=[2,4]<=[4,2]T(1,0)` or
            `replica_groups=mesh['x'=2,'y'=4] {'y'}`, the mesh with `, device_ids=([4,2]T(1,0))` where its devices are in another order,
            and an axis with `:(2)2` where it is a part of one.

    Example:
        >>> groups_in("replica_groups=mesh['x'=2,'y'=4] {'y'}", 8)
        ((0, 1, 2, 3), (4, 5, 6, 7))
        >>> groups_in("replica_groups=[2,2]<=[2,2]T(1,0)", 4)
        ((0, 2), (1, 3))
    """
    return _groups(attributes) or (tuple(range(partitions)),)


def pairs_in(attributes: str) -> Groups:
    """The (source, target) pairs of a collective-permute.

    Example:
        >>> pairs_in("channel_id=1, source_target_pairs={{0,1},{1,0}}")
        ((0, 1), (1, 0))
    """
    match = _PAIRS.search(attributes)
    return () if match is None else tuple(map(_numbers, _INNER.findall(match[1])))


def _groups(attributes: str) -> Groups:
    if match := _LISTED.search(attributes):
        return tuple(map(_numbers, _INNER.findall(match[1])))
    if match := _COUNTED.search(attributes):
        ids = _iota(_numbers(match[2]), _numbers(match[3] or ""))
        return _rows(ids.reshape(_numbers(match[1])))
    if match := _MESH.search(attributes):
        return _mesh_groups(match[1], match[2] or "", match[3])
    if "replica_groups=" in attributes:
        raise ValueError(f"cannot read replica groups: {attributes[attributes.index('replica_groups=') :][:120]}")
    return ()


def _mesh_groups(mesh: str, devices: str, axes: str) -> Groups:
    sizes = {quoted or double or bare: int(size) for quoted, double, bare, size in _MESH_AXIS.findall(mesh)}
    if counted := re.match(r"\s*\[([\d,]+)\](?:<=\[[\d,]+\])?(?:T\(([\d,]+)\))?", devices):
        ids = _iota(_numbers(counted[1]), _numbers(counted[2] or ""))
    else:
        ids = np.array(_numbers(devices)) if devices else np.arange(math.prod(sizes.values()))
    refs = (AxisRef(a or b or c, *((int(before), int(size)) if size else ())) for a, b, c, before, size in _AXIS.findall(axes))
    return device_groups(tuple(refs), Mesh(sizes, ids))


def _iota(dims: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    ids = np.arange(math.prod(dims)).reshape(dims)
    return (ids.transpose(order) if order else ids).reshape(-1)


def _rows(ids: np.ndarray) -> Groups:
    return tuple(tuple(int(i) for i in row) for row in ids)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
