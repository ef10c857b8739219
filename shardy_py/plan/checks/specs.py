"""Shardings as code to paste, and the axes that a value could have besides."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.dialect import AxisRef, DimensionSharding, Mesh, TensorSharding


def spec_text(sharding: TensorSharding) -> str | None:
    """The `PartitionSpec` of a sharding as code; None where parts of axes are used, which a spec cannot name.

    Example:
        >>> spec_text(TensorSharding("mesh", [[], ["data", "model"], []]))
        "P(None, ('data', 'model'))"
    """
    return sharding_text(sharding.closed_like()) if all(axis.is_full for axis in sharding.dim_axes()) else None


def sharding_text(sharding: TensorSharding) -> str:
    """A sharding as a `PartitionSpec` for messages; parts of axes are written as Shardy writes them.

    Example:
        >>> sharding_text(TensorSharding("mesh", [DimensionSharding(is_closed=False), ["data", AxisRef("model", 1, 2)]]))
        "P(P.UNCONSTRAINED, ('data', 'model:(1)2'))"
    """
    entries = []
    for dim in sharding.dims:
        names = [axis.name if axis.is_full else f"{axis.name}:{axis.sub_axis}" for axis in dim.axes]
        whole = "None" if dim.is_closed else "P.UNCONSTRAINED"
        entries.append(whole if not names else repr(names[0]) if len(names) == 1 else repr(tuple(names)))
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


def with_axes_on(sharding: TensorSharding, names: Sequence[str], to: int) -> TensorSharding:
    """A sharding with whole axes only, some of them on dimension `to`, wherever they and parts of them have been.

    Example:
        >>> with_axes_on(TensorSharding("mesh", [[AxisRef("data", 1, 4)], [AxisRef("data", 4, 2)], ["model"]]), ["data"], 1)
        #sdy.sharding<@mesh, [{}, {"data"}, {"model"}]>
    """
    placed, dims = set(names), list[list[str]]()
    for d, dim in enumerate(sharding.dims):
        others = [name for name in dict.fromkeys(axis.name for axis in dim.axes) if name not in placed]
        placed.update(others)
        dims.append([*others, *names] if d == to else others)
    return TensorSharding(sharding.mesh, dims)


def unused_axes(sharding: TensorSharding | None, mesh: Mesh) -> list[str]:
    """Axes of the mesh, larger than one, that cut no dimension and are not being summed over, in the order of the mesh."""
    used = set() if sharding is None else {axis.name for dim in sharding.dims for axis in dim.axes}
    if sharding is not None:
        used.update(axis.name for axis in (*sharding.unreduced, *sharding.replicated))
    return [name for name, size in mesh.shape.items() if size > 1 and name not in used]


def extended(shape: Sequence[int], sharding: TensorSharding | None, mesh: Mesh, name: str = "mesh") -> TensorSharding | None:
    """A sharding with all axes added that divide a dimension, the larger first, each to the longest dimension by then; None if none does.

    Example:
        >>> extended((1024, 512), None, Mesh([("data", 2), ("model", 4)]))
        #sdy.sharding<@mesh, [{"model"}, {"data"}]>
    """
    axes = [list(dim.axes) for dim in sharding.dims[: len(shape)]] if sharding is not None else [[] for _ in shape]
    shards = [DimensionSharding(dim).shards(mesh) for dim in axes]
    local = [size // n if size % n == 0 else 1 for size, n in zip(shape, shards, strict=True)]
    is_extended = False
    for axis in sorted(unused_axes(sharding, mesh), key=lambda axis: -mesh.shape[axis]):
        size = mesh.shape[axis]
        fitting = [d for d, n in enumerate(local) if n > 1 and n % size == 0]
        if not fitting:
            continue
        best = max(fitting, key=lambda d: (local[d], -d))
        axes[best].append(AxisRef(axis))
        local[best] //= size
        is_extended = True
    return TensorSharding(name if sharding is None else sharding.mesh, axes) if is_extended else None


def nearest(size: int, shards: int) -> str:
    """The sizes next to one that divide evenly, in words.

    Example:
        >>> nearest(50257, 8), nearest(3, 4)
        ('50256 or 50264', '4')
    """
    below = size - size % shards
    return f"{below} or {below + shards}" if below else str(shards)
