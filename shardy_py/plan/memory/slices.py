"""What a device fetches from others for a slice of a dimension that is cut (`ExchangeHaloCompact` of XLA's partitioner)."""

from __future__ import annotations

from collections.abc import Iterator

from shardy_py.cost.liveness.graph import Kind, Region
from shardy_py.ir import Op
from shardy_py.plan.memory.offsets import cuts, offset
from shardy_py.plan.memory.reader import Reader

Parcel = tuple[int, int, int, int]
"""Sender, receiver, the first element of the sender's piece that the receiver needs, and the one behind the last."""


def parcels(piece: int, made: int, start: int, limit: int, stride: int) -> Iterator[Parcel]:
    """What pieces of a slice are made of that lies elsewhere, by receiver.

    Args:
        piece: Elements of a piece of what is sliced.
        made: Elements of a piece of the slice.
        start: The first element of the slice.
        limit: The one behind its last.
        stride: The step between its elements.

    Example:
        >>> list(parcels(2, 1, 2, 4, 1))
        [(1, 0, 0, 1)]
    """
    receiver = 0
    for first in range(start, limit, made * stride):
        last = min(first + (made - 1) * stride + 1, limit)
        for sender in range(first // piece, (last - 1) // piece + 1):
            if sender != receiver:
                yield sender, receiver, max(first - sender * piece, 0), min(last - sender * piece, piece)
        receiver += 1


def rounds(sent: Iterator[Parcel]) -> list[list[Parcel]]:
    """Parcels that are sent at once: of each device at most one, and to each at most one.

    Args:
        sent: All of them.

    Example:
        >>> [len(r) for r in rounds(parcels(8, 2, 16, 32, 1))]
        [2, 2, 2, 1]
    """
    found: list[list[Parcel]] = []
    for parcel in sent:
        free = (r for r in found if all(parcel[0] != other[0] and parcel[1] != other[1] for other in r))
        taken = next(free, None)
        if taken is None:
            found.append([parcel])
        else:
            taken.append(parcel)
    return found


def sliced(reader: Reader, op: Op, region: Region) -> None:
    """Parts of pieces are sent in rounds, each as long as all parts of it, and the device picks what it needs of what arrives."""
    value, x = op.operands[0], reader.numbers[op.operands[0]]
    shape, made = list(reader.local_shape(value)), reader.local_shape(op.result)
    a = op.attributes
    maker = value.defining_op
    repeats = maker is not None and maker.name == "stablehlo.broadcast_in_dim"
    picks: list[int] = []
    arrived: list[int] = []
    for d, axes, piece in cuts(reader, value):
        if made[d] == op.result.type.shape[d] or value.type.shape[d] == op.result.type.shape[d]:
            continue
        if repeats and maker is not None and d not in maker.attributes["broadcast_dimensions"]:
            continue  # less is repeated
        unit = reader.graph.bytes[x] // piece
        mixed = False
        along = made[d], a["start_indices"][d], a["limit_indices"][d], a["strides"][d]
        for i, sent in enumerate(rounds(parcels(piece, *along))):
            low, high = min(p[2] for p in sent), max(p[3] for p in sent)
            part = x
            if high - low < piece:
                shape[d] = high - low
                part = reader.made(op, region, Kind.SHAPE, [x], unit * (high - low), form=(tuple(shape), value.type.dtype))
                region.nodes[-1].key = "part", d, low, high, shape[d]
                shape[d] = piece
            arrived.append(reader.made(op, region, Kind.COLLECTIVE, [part], unit * (high - low), ("round", d, i)))
            picks.append(offset(reader, op, region, axes, piece, f"slice {along} {i}"))
            mixed |= len({p[2] for p in sent}) > 1
        if mixed:
            picks.append(offset(reader, op, region, axes, piece, f"slice {along}"))
    node = reader.node(op)
    node.operands += [*arrived, *picks]
    region.nodes.append(node)
