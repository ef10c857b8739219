"""Garbage while many objects are made: Python's settings stay the user's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from shardy_py.opt.from_mlir import from_mlir
from shardy_py.passes import collection
from shardy_py.passes.collection import no_collection


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
                pass
            assert not gc.isenabled()  # the inner one ends nothing
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert (gc.get_threshold(), gc.isenabled()) == (thresholds, enabled)


class Cycle:
    def __init__(self) -> None:
        self.content = [[self] for _ in range(40_000)]


@pytest.mark.slow
def test_a_loop_of_calls_sees_full_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "_GROWTH", 300_000)

    def call() -> weakref.ref[Cycle]:
        with no_collection():
            return weakref.ref(Cycle())

    made = [call() for _ in range(20)]
    assert made[0]() is None
    assert sum(ref() is not None for ref in made) < 12


def test_a_program_does_not_keep_the_context_of_its_module() -> None:
    program = from_mlir("func.func @f(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }", keep=True)
    assert all("jaxlib" not in type(held).__module__ for op in program.walk() for held in gc.get_referents(op))
    assert [program.locate(op.location).place for op in program.walk()] == ["-:1"]  # type: ignore[union-attr]
