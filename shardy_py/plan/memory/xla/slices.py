"""Parts that devices fetch from each other for a slice of a sharded dimension (`ExchangeHaloCompact` of XLA's partitioner)."""

from __future__ import annotations

from collections.abc import Iterator

from shardy_py.cost.liveness.graph import Kind, Region
from shardy_py.ir import Op
from shardy_py.plan.memory.xla.offsets import cuts, offset
from shardy_py.plan.memory.xla.reader import XlaReader

Parcel = tuple[int, int, int, int]
"""Sender, receiver, the first element of the sender's piece that the receiver needs, and the one behind the last."""


def parcels(piece: int, result: int, start: int, limit: int, stride: int) -> Iterator[Parcel]:
    """The parcels that devices receive for their pieces of a slice, by receiver.

    Example:
        >>> list(parcels(2, 1, 2, 4, 1))
        [(1, 0, 0, 1)]
    """
    receiver = 0
    for first in range(start, limit, result * stride):
        last = min(first + (result - 1) * stride + 1, limit)
        for sender in range(first // piece, (last - 1) // piece + 1):
            if sender != receiver:
                yield sender, receiver, max(first - sender * piece, 0), min(last - sender * piece, piece)
        receiver += 1


def rounds(sent: Iterator[Parcel]) -> list[list[Parcel]]:
    """Batches of parcels that are sent at once: at most one from each device, and at most one to each.

    Example:
        >>> [len(r) for r in rounds(parcels(8, 2, 16, 32, 1))]
        [2, 2, 2, 1]
    """
    batches: list[list[Parcel]] = []
    for parcel in sent:
        free = (r for r in batches if all(parcel[0] != other[0] and parcel[1] != other[1] for other in r))
        taken = next(free, None)
        if taken is None:
            batches.append([parcel])
        else:
            taken.append(parcel)
    return batches


def sliced(reader: XlaReader, op: Op, region: Region) -> None:
    """Sends parts of pieces in rounds, each as long as all parts of it; the device selects from the received parts."""
    value, x = op.operands[0], reader.numbers[op.operands[0]]
    shape, result = list(reader.local_shape(value)), reader.local_shape(op.result)
    a = op.attributes
    maker = value.defining_op
    repeats = maker is not None and maker.name == "stablehlo.broadcast_in_dim"
    picks: list[int] = []
    arrived: list[int] = []
    for d, axes, piece in cuts(reader, value):
        if result[d] == op.result.type.shape[d] or value.type.shape[d] == op.result.type.shape[d]:
            continue
        if repeats and maker is not None and d not in maker.attributes["broadcast_dimensions"]:
            continue  # less is repeated
        unit = reader.graph.bytes[x] // piece
        mixed = False
        along = result[d], a["start_indices"][d], a["limit_indices"][d], a["strides"][d]
        for i, sent in enumerate(rounds(parcels(piece, *along))):
            low, high = min(p[2] for p in sent), max(p[3] for p in sent)
            part = x
            if high - low < piece:
                shape[d] = high - low
                part = reader.emit(op, region, Kind.SHAPE, [x], unit * (high - low), array_type=(tuple(shape), value.type.dtype))
                region.nodes[-1].key = "part", d, low, high, shape[d]
                shape[d] = piece
            arrived.append(reader.emit(op, region, Kind.COLLECTIVE, [part], unit * (high - low), ("round", d, i)))
            picks.append(offset(reader, op, region, axes, piece, f"slice {along} {i}"))
            mixed |= len({p[2] for p in sent}) > 1
        if mixed:
            picks.append(offset(reader, op, region, axes, piece, f"slice {along}"))
    node = reader.node(op)
    node.operands += [*arrived, *picks]
    region.nodes.append(node)
