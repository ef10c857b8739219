"""Held: a value of the global program inside a region, in the layouts it is at hand in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardy_py.backends.local.emit import moved
from shardy_py.backends.local.form import bits_of
from shardy_py.backends.local.layouts import Layout, replicated
from shardy_py.backends.local.moves import STARTING, cost
from shardy_py.dialect import Mesh

Array = Any


class Region:
    """What all values of a region share.

    Args:
        mesh: The axes that are manual in it.
        platform: What is compiled for.
        dry: Whether nothing runs, and only what would move is counted.

    Attributes:
        trips: How often what is looked at runs.
        spent: Bytes that a device receives, and `STARTING` for each collective, counted in a dry run.
        work: What computing costs, in bytes that could be sent meanwhile, counted in a dry run.
    """

    __slots__ = ("dry", "mesh", "platform", "spent", "trips", "work")

    def __init__(self, mesh: Mesh, platform: str, *, dry: bool = False) -> None:
        self.mesh = mesh
        self.platform = platform
        self.dry = dry
        self.trips = 1
        self.spent = 0
        self.work = 0.0

    @property
    def cost(self) -> float:
        """What was counted in all."""
        return self.spent + self.work

    def spend(self, count: int, trips: int | None = None) -> None:
        """Counts bytes that are received so often; as often as what is looked at runs where nothing is said."""
        self.spent += count * (self.trips if trips is None else trips)


class Held:
    """A value in one or more layouts.

    Args:
        region: Where it lives.
        shape: Its global shape.
        dtype: Its element type.
        at: The layout it is at hand in; None where it is yet in none.
        array: This device's part in that layout.
        uses: How many uses it has.

    Attributes:
        region: Where it lives.
        shape: Its global shape.
        dtype: Its element type.
        versions: Layout -> this device's part.
        remake: Gives this device's part in any layout without communication; None where that is not possible.
        uses: How many uses the value has in its jaxpr.
        asked: The layouts it was asked for in, in order.
        cut_from: What it is a slice of, along which dimension and from where on; None where it is none.
        trips: How often it is made; a value from outside of a loop is moved once, in front of the loop.
    """

    __slots__ = ("asked", "cut_from", "dtype", "region", "remake", "shape", "trips", "uses", "versions")

    def __init__(
        self, region: Region, shape: tuple[int, ...], dtype: Any, at: Layout | None = None, array: Array = None, *, uses: int = 0
    ) -> None:
        self.region = region
        self.shape = shape
        self.dtype = dtype
        self.versions: dict[Layout, Array] = {} if at is None else {at: array}
        self.remake: Callable[[Layout], Array] | None = None
        self.uses = uses
        self.asked: dict[Layout, None] = {}
        self.trips = region.trips
        self.cut_from: tuple[Held, int, int] | None = None

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return bits_of(self.dtype)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def often(self) -> float:
        """How often it is moved each time that what is looked at runs."""
        return self.trips / self.region.trips

    @property
    def state(self) -> tuple[tuple[Layout, ...] | None, bool, float]:
        """What an equation goes by that uses it.

        The layouts it is at hand in, None where any can be had; whether its sums may go on waiting behind its user, which is the only one
        and finds them not added up; how often it is moved.
        """
        if self.remake is not None:
            return None, False, self.often
        versions = tuple(self.versions)
        passes = self.uses == 1 and len(versions) == 1 and bool(versions[0].unreduced)
        trips = self.region.trips
        return versions, passes, 1.0 if trips == self.trips else self.trips / trips

    def price(self, target: Layout) -> int:
        """Bytes a device would receive to have it in a layout."""
        if target in self.versions or self.remake is not None:
            return 0
        return min(self._price(version, target, 0) for version in self.versions)

    def get(self, target: Layout) -> Array:
        """This device's part in a layout; what is moved is kept for the next use."""
        self.asked[target] = None
        versions = self.versions
        if target in versions:
            return versions[target]
        region = self.region
        best = min([(self._price(version, target), i, version) for i, version in enumerate(versions)], default=None)
        if self.remake is not None and (best is None or best[0] > 0):
            made = self.remake(target)
        else:
            assert best is not None
            if region.dry:
                region.spend(best[0], self.trips)
                made = None
            else:
                made = moved(self.versions[best[2]], best[2], target, self.shape, region.mesh, region.platform)
        self.versions[target] = made
        return made

    def whole(self) -> Array:
        """All of it, on this device."""
        return self.get(replicated(self.rank))

    def _price(self, version: Layout, target: Layout, starting: int = STARTING) -> int:
        if any(axis not in version.unreduced for axis in target.unreduced):
            return 1 << 60
        return cost(version, target, self.shape, self.bits, self.region.mesh, starting)
