"""Processes as threads that share a store in memory; tests/test_multi_process.py has real ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api import agreement
from shardy_py.api.errors import PeerMissingError, PlanMismatchError


class Memory:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.changed = threading.Condition()

    def key_value_set(self, key: str, value: Any, allow_overwrite: bool = False) -> None:
        with self.changed:
            if key in self.values and not allow_overwrite:
                raise RuntimeError("ALREADY_EXISTS")
            self.values[key] = value
            self.changed.notify_all()

    key_value_set_bytes = key_value_set

    def key_value_try_get(self, key: str) -> Any:
        if key not in self.values:
            raise RuntimeError("NOT_FOUND")
        return self.values[key]

    def key_value_delete(self, key: str) -> None:
        with self.changed:
            self.values = {name: value for name, value in self.values.items() if not name.startswith(key + "/")}

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> Any:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED")
            return self.values[key]

    blocking_key_value_get_bytes = blocking_key_value_get


def together(
    store: Memory, texts: dict[int, str], *, number: int = 1, timeout: float = 20.0, late: dict[int, float] | None = None
) -> list[Any]:
    """What each process of 0, 1, ... gets; those that are not in `texts` never come."""
    processes = tuple(range(max(texts) + 1))

    def one(own: int) -> Exception | None:
        time.sleep((late or {}).get(own, 0.0))
        try:
            agreement.compare(store, number, processes, own, texts[own], what="f.py:1 (f)", timeout=timeout)
        except Exception as error:
            return error
        return None

    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(one, texts))


def test_equal_statements_agree_and_the_round_before_is_forgotten() -> None:
    store = Memory()
    assert together(store, dict.fromkeys(range(4), "same")) == [None] * 4
    assert together(store, dict.fromkeys(range(4), "other"), number=2) == [None] * 4
    assert store.values
    assert all("/2/" in key for key in store.values)


def test_a_difference_is_an_error_everywhere_with_its_line() -> None:
    found = together(Memory(), {0: "a\nx 1\nc", 1: "a\nx 1\nc", 2: "a\nx 2\nc", 3: "a\nx 1\nc\nd"})
    assert all(isinstance(error, PlanMismatchError) and isinstance(error, RuntimeError) for error in found)
    for own, error in enumerate(found):
        assert f"in process {own}" in error.where
    for own in (0, 1, 2):
        assert found[own].what == "processes 0, 1 and process 2 are about to run different programs"
        assert "processes 0, 1: `x 1`, process 2: `x 2`" in found[own].why
    assert "only process 3: `d`" in found[3].why


def test_long_statements_travel_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_CHUNK", 16)
    lines = [f"line {i}" for i in range(200)]
    found = together(Memory(), {0: "\n".join(lines), 1: "\n".join([*lines[:150], "another", *lines[151:]])})
    assert all("process 0: `line 150`, process 1: `another`" in error.why for error in found)


@pytest.mark.parametrize("there", [{0: "a", 2: "a"}, {1: "a", 2: "a"}])
def test_who_is_missing_is_named(there: dict[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_GRACE", 0.2)
    (missing,) = {0, 1, 2} - set(there)
    for error in together(Memory(), there, timeout=0.3):
        assert isinstance(error, PeerMissingError)
        assert error.what == f"process {missing} did not come within 0.3 s"


@pytest.mark.parametrize("late", [0, 1])
def test_who_comes_too_late_hears_so(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_GRACE", 0.2)
    store = Memory()
    found = together(store, {0: "a", 1: "a"}, timeout=0.3, late={late: 1.2})
    assert f"process {late} did not come" in str(found[1 - late])
    assert "given up waiting for this one" in str(found[late])
    assert together(store, {0: "a", 1: "a"}, number=2) == [None, None]


def statement(fun: Callable[..., Any], *spec: str | None, **keywords: Any) -> str:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    planned = sp.auto_shard(fun, mesh=mesh, in_shardings=P(*spec or ("data",)), **keywords).trace(jnp.ones((16, 16)))._planned
    return agreement.statement(planned, list(mesh.devices.flat))


def test_a_statement_holds_what_is_run() -> None:
    def plain(x: Any) -> Any:
        return 2.0 * x

    def same(x: Any) -> Any:
        return jax.pure_callback(lambda x: x, x, x)

    assert statement(plain) == statement(plain)
    assert "0x" not in statement(same)
    others = [statement(plain, None, "data"), statement(plain, donate_argnums=0), statement(plain, lowering="shard_map")]
    others += [statement(lambda x: 2.0 * x), statement(lambda x: 3.0 * x)]
    assert len({statement(plain), *others}) == 6


def test_closed_over_arrays_are_part_of_a_statement() -> None:
    def with_seed(seed: int) -> str:
        key, shift = jax.random.key(seed), jnp.full((16,), seed)
        return statement(lambda x: x + jax.random.normal(key, (16, 16)) + shift)

    assert with_seed(0) == with_seed(0)
    assert with_seed(0) != with_seed(1)
    assert with_seed(1).count("closed over") == 2


def test_one_process_compares_nothing() -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    function = sp.auto_shard(lambda x: x + 1, mesh=mesh, in_shardings=P("data"))
    function(jnp.ones(8))
    assert function._last is not None
    assert function._last.dispatch.agreement is None
    assert function._last.dispatch.run == function._last.jitted.run
