"""ShardedValue: a value of the global program inside a region, in all layouts of which this device has its part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardy_py.backends.local.local_rule import bits_of
from shardy_py.backends.local.moved_values import MovementRecorder
from shardy_py.backends.local.reshard import reshard
from shardy_py.dialect import Mesh
from shardy_py.ir import Value
from shardy_py.partition.region.layouts import Layout, replicated
from shardy_py.partition.region.reshard_steps import COLLECTIVE_LAUNCH_BYTES, reshard_cost

Array = Any


class RegionContext:
    """The mesh and platform of a region, and, in a dry run, the tally of its costs.

    Attributes:
        spent: Bytes that a device receives, and `COLLECTIVE_LAUNCH_BYTES` for each collective; dry runs only.
        work: Cost of computing, in bytes that could be sent meanwhile; dry runs only.
    """

    __slots__ = ("dry", "mesh", "movements", "platform", "spent", "trips", "work")

    def __init__(self, mesh: Mesh, platform: str, *, dry: bool = False, movements: MovementRecorder | None = None) -> None:
        self.mesh = mesh
        self.platform = platform
        self.dry = dry
        self.movements = movements or MovementRecorder()
        self.trips = 1
        self.spent = 0
        self.work = 0.0

    @property
    def cost(self) -> float:
        """Communication and work together."""
        return self.spent + self.work

    def spend(self, count: int, trips: float | None = None) -> None:
        """Adds bytes received per trip; `trips` defaults to the trips of the current equation."""
        self.spent += int(count * (self.trips if trips is None else trips))


class ShardedValue:
    """A value with this device's part of it in one or more layouts.

    Args:
        at: The layout of `array`; None for a value that has no part yet.

    Attributes:
        rematerialize: Computes this device's part in any layout without communication; None where that is impossible.
        trips: Executions of what moves it: of the equation that computes it; once for a value from outside of a loop, which is moved in
            front of the loop, and for partial sums that are added up behind it.
    """

    __slots__ = ("copies", "dtype", "planned", "region", "rematerialize", "requested", "shape", "trips", "uses")

    def __init__(
        self, region: RegionContext, shape: tuple[int, ...], dtype: Any, at: Layout | None = None, array: Array = None, *, uses: int = 0
    ) -> None:
        self.region = region
        self.shape = shape
        self.dtype = dtype
        self.copies: dict[Layout, Array] = {} if at is None else {at: array}
        self.rematerialize: Callable[[Layout], Array] | None = None
        self.uses = uses
        self.requested: dict[Layout, None] = {}
        self.trips: float = region.trips
        self.planned: Value | None = None

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return bits_of(self.dtype)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def moves_per_trip(self) -> float:
        """Reshards of this value per execution of the current equation."""
        return self.trips / self.region.trips

    @property
    def layout_key(self) -> tuple[tuple[Layout, ...] | None, bool, float]:
        """All that the strategy of a user depends on: layouts of the copies, whether sums stay partial, reshards per execution.

        The layouts are None where any layout is free. Partial sums may pass through the user where it is the only one and no copy
        has them reduced.
        """
        if self.rematerialize is not None:
            return None, False, self.moves_per_trip
        layouts = tuple(self.copies)
        keeps_partial = self.uses == 1 and len(layouts) == 1 and bool(layouts[0].unreduced)
        trips = self.region.trips
        return layouts, keeps_partial, 1.0 if trips == self.trips else self.trips / trips

    def price(self, target: Layout) -> int:
        """Bytes that a device receives to get its part in a layout."""
        if target in self.copies or self.rematerialize is not None:
            return 0
        return min(self._price(source, target, 0) for source in self.copies)

    def get(self, target: Layout) -> Array:
        """This device's part in a layout, moved there if needed and kept for later uses."""
        self.requested[target] = None
        copies = self.copies
        if target in copies:
            return copies[target]
        region = self.region
        best = min([(self._price(source, target), i, source) for i, source in enumerate(copies)], default=None)
        if self.rematerialize is not None and (best is None or best[0] > 0):
            part = self.rematerialize(target)
        else:
            assert best is not None
            if region.dry:
                region.spend(best[0], self.trips)
                part = None
            else:
                with region.movements.moving([self.planned]):
                    part = reshard(self.copies[best[2]], best[2], target, self.shape, region.mesh, region.platform)
        self.copies[target] = part
        return part

    def whole(self) -> Array:
        """The whole value, on this device."""
        return self.get(replicated(self.rank))

    def _price(self, source: Layout, target: Layout, launch_bytes: int = COLLECTIVE_LAUNCH_BYTES) -> int:
        if any(axis not in source.unreduced for axis in target.unreduced):
            return 1 << 60
        return reshard_cost(source, target, self.shape, self.bits, self.region.mesh, launch_bytes)


Values = list[ShardedValue]
"""Operands or results of an equation."""
