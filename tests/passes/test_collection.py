"""Garbage while many objects are made: Python's settings stay the user's, and cycles go, those of other threads too."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from shardy_py.opt.from_mlir import from_mlir
from shardy_py.passes import collection
from shardy_py.passes.collection import YOUNG, no_collection


class Cycle:
    def __init__(self, size: int = 0) -> None:
        self.own = self
        self.content = bytearray(size)


def many() -> list[list[object]]:
    return [[] for _ in range(2 * YOUNG)]


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before, enabled = gc.get_threshold(), gc.isenabled()
    yield
    gc.set_threshold(*before)
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("thresholds", [(700, 10, 10), (123, 4, 5), (0, 10, 10)])
@pytest.mark.parametrize("enabled", [True, False])
def test_settings_are_as_before(thresholds: tuple[int, int, int], enabled: bool) -> None:
    gc.set_threshold(*thresholds)
    (gc.enable if enabled else gc.disable)()

    def fails() -> None:
        with no_collection():
            with no_collection():
                many()
            if enabled and thresholds[0]:
                assert not gc.isenabled() or gc.get_threshold()[0] > thresholds[0]  # the inner one ends nothing
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert (gc.get_threshold(), gc.isenabled()) == (thresholds, enabled)


def test_a_users_cycle_does_not_grow_old() -> None:
    """Objects dropped shortly before go, though all that are there then become old."""
    gone = weakref.ref(Cycle())
    with no_collection():
        many()
    assert gone() is None


@pytest.fixture
def _alone() -> Iterator[None]:
    """Collections do not look at what other tests of the process left: there may be millions of objects."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("_alone")
def test_a_loop_of_calls_sees_full_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = collection._Regions()
    monkeypatch.setattr(collection, "_REGIONS", regions)
    monkeypatch.setattr(collection, "_GROWTH", -len(gc.get_objects()))  # so that garbage need not be as much as all else

    def call() -> weakref.ref[Cycle]:
        with no_collection():
            cycle = Cycle()
            cycle.content = [[cycle] for _ in range(4 * YOUNG)]  # type: ignore[assignment]
        return weakref.ref(cycle)

    made = [call() for _ in range(40)]
    assert made[0]() is None
    assert sum(ref() is not None for ref in made) < 20


def test_garbage_of_other_threads_goes() -> None:
    alive: list[weakref.ref[Cycle]] = []
    stop = threading.Event()

    def drop() -> None:
        while not stop.wait(0.0001):
            alive.append(weakref.ref(Cycle(1000)))

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    try:
        with no_collection():
            end, kept = time.monotonic() + 2, []
            while time.monotonic() < end and len(kept) < 60 * YOUNG:
                kept.append([])
            left = sum(ref() is not None for ref in alive)
    finally:
        stop.set()
        thread.join()
    assert len(alive) > 20
    assert left < len(alive) / 2


def test_a_program_does_not_keep_the_context_of_its_module() -> None:
    program = from_mlir("func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }", keep=True)
    assert all("jaxlib" not in type(held).__module__ for op in program.walk() for held in gc.get_referents(op))
    assert [program.locate(op.location).place for op in program.walk()] == ["-:1"]  # type: ignore[union-attr]
