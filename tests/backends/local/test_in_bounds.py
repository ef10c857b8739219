"""Windows at places out of range, read and written where the operand is whole and the result is cut, or the other way round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import shardy_py as sp

ROWS, COLUMNS = 24, 8
X = np.arange(ROWS * COLUMNS, dtype=np.int32).reshape(ROWS, COLUMNS)
ROW = -np.arange(1, COLUMNS + 1, dtype=np.int32)
STARTS = (-25, -3, 0, 11, 16, 21, 23, 24, 500)
CUTS = [(P(), P("x")), (P(), P("y")), (P("x"), P()), (P("y"), P("y")), (P(), P(("x", "y"))), (P(None, "y"), P("x"))]
WINDOWS = lax.GatherDimensionNumbers(offset_dims=(0, 1), collapsed_slice_dims=(), start_index_map=(0,))
ONE_ROW = lax.ScatterDimensionNumbers(update_window_dims=(0,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
FOUR_ROWS = lax.ScatterDimensionNumbers(update_window_dims=(0, 1), inserted_window_dims=(), scatter_dims_to_operand_dims=(0,))


def clipped(i: int, size: int) -> int:
    return min(max(i, 0), ROWS - size)


def every_start(read: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The elements read from each start, one by one, side by side."""
    return lambda x, starts: jnp.concatenate([read(x, starts[i]) for i in range(len(STARTS))], axis=1)


READS: dict[str, Callable[[Any, Any], Any]] = {
    "slice": lambda x, i: lax.dynamic_slice(x, (i, 0), (8, COLUMNS), allow_negative_indices=False),
    "slice of a slice": lambda x, i: lax.dynamic_slice_in_dim(READS["slice"](x, i), 0, 8),
    "gather that clips": lambda x, i: lax.gather(x, i[None], WINDOWS, (8, COLUMNS), mode="clip"),
    "gather that promises": lambda x, i: lax.gather(x, i[None], WINDOWS, (8, COLUMNS), mode="promise_in_bounds"),
}


@pytest.mark.parametrize(("given", "wanted"), CUTS, ids=str)
def test_windows_read_out_of_range(given: P, wanted: P) -> None:
    def function(x: Any, starts: Any) -> dict[str, Any]:
        return {kind: every_start(read)(x, starts) for kind, read in READS.items()}

    step = sp.auto_shard(function, mesh={"x": 2, "y": 4}, in_shardings=(given, P()), out_shardings=wanted, lowering="shard_map")
    want = np.concatenate([X[clipped(i, 8) :][:8] for i in STARTS], axis=1)
    for kind, got in step(X, np.array(STARTS, np.int32)).items():
        np.testing.assert_array_equal(got, want, err_msg=kind)


def test_windows_that_fill() -> None:
    read = every_start(lambda x, i: lax.gather(x, i[None], WINDOWS, (8, COLUMNS), mode="fill", fill_value=-7))
    step = sp.auto_shard(read, mesh={"x": 2, "y": 4}, in_shardings=(P(), P()), out_shardings=P("y"), lowering="shard_map")
    want = np.concatenate([X[i : i + 8] if 0 <= i <= ROWS - 8 else np.full((8, COLUMNS), -7) for i in STARTS], axis=1)
    np.testing.assert_array_equal(step(X, np.array(STARTS, np.int32)), want)


SCATTERS: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any]]] = {
    "set": (lax.scatter, lambda old, new: new),
    "add": (lax.scatter_add, lambda old, new: old + new),
    "sub": (lax.scatter_sub, lambda old, new: old - new),
    "mul": (lax.scatter_mul, lambda old, new: old * new),
    "max": (lax.scatter_max, np.maximum),
    "min": (lax.scatter_min, np.minimum),
}


WRITTEN = (-3, 11, 22, 24)


@pytest.mark.parametrize(("given", "wanted"), [CUTS[1], CUTS[2], CUTS[4]], ids=str)
def test_a_window_written_out_of_range(given: P, wanted: P) -> None:
    """Scatters of every kind, of one row and of four."""

    def function(x: Any, row: Any, starts: Any) -> dict[Any, Any]:
        rows = jnp.stack([row, row + 1, row + 2, row + 3])
        out = {}
        for kind, (scatter, _) in SCATTERS.items():
            for i, start in enumerate(WRITTEN):
                for mode in ("clip", "drop"):
                    out[kind, start, mode, 1] = scatter(x, starts[i][None], row, ONE_ROW, mode=mode)
                    out[kind, start, mode, 4] = scatter(2 * x, starts[i][None], rows, FOUR_ROWS, mode=mode)
        return out

    step = sp.auto_shard(function, mesh={"x": 2, "y": 4}, in_shardings=(given, P(), P()), out_shardings=wanted, lowering="shard_map")
    for (kind, start, mode, count), got in step(X, ROW, np.array(WRITTEN, np.int32)).items():
        rows = ROW + np.arange(count, dtype=np.int32)[:, None]
        at, want = clipped(start, count), X.copy() if count == 1 else 2 * X
        if mode == "clip" or at == start:
            want[at : at + count] = SCATTERS[kind][1](want[at : at + count], rows)
        np.testing.assert_array_equal(got, want, err_msg=f"{kind} of {count} rows at {start}, mode {mode}")


@pytest.mark.parametrize("spec", [P("x"), P("y"), P(("x", "y"))], ids=str)
def test_a_window_to_which_a_function_is_applied(spec: P) -> None:
    def function(x: Any, i: Any) -> Any:
        return x.at[i].apply(lambda v: v * v - 3)

    step = sp.auto_shard(function, mesh={"x": 2, "y": 4}, in_shardings=(P(), P()), out_shardings=spec, lowering="shard_map")
    for i in (0, 7, 12, 23, 24):
        want = X.copy()
        if i < ROWS:
            want[i] = want[i] * want[i] - 3
        np.testing.assert_array_equal(step(X, np.int32(i)), want)


@pytest.mark.parametrize("loop", ["none", "fori", "scan"])
@pytest.mark.parametrize("spec", [P("x"), P("y"), P(("x", "y"))], ids=str)
def test_a_buffer_that_is_pushed_on(spec: P, loop: str) -> None:
    """Each update of an array that is read for it, and one window written behind it: what is read lies on other devices."""

    def push(b: Any, row: Any) -> Any:
        return b.at[:-1].set(b[1:]).at[-1].set(row)

    def function(b: Any, row: Any) -> Any:
        if loop == "none":
            return push(b, row)
        if loop == "fori":
            return lax.fori_loop(0, 3, lambda i, b: push(b, row + i), b)
        return lax.scan(lambda b, k: (push(b, row + k), None), b, jnp.arange(3))[0]

    count = 1 if loop == "none" else 3
    want = np.concatenate([X[count:], *[ROW[None] + k for k in range(count)]])
    step = sp.auto_shard(function, mesh={"x": 2, "y": 4}, in_shardings=(spec, P()), out_shardings=spec, lowering="shard_map")
    np.testing.assert_array_equal(step(X, ROW), want)


@pytest.mark.parametrize(("given", "wanted"), [(P(), P("x")), (P("x"), P("y"))], ids=str)
def test_keys(given: P, wanted: P) -> None:
    keys = jax.random.split(jax.random.key(0), 16)
    step = sp.auto_shard(
        lambda keys, i: (lax.dynamic_slice_in_dim(keys, i, 8), keys.at[i].set(keys[0])),
        mesh={"x": 2, "y": 4},
        in_shardings=(given, P()),
        out_shardings=wanted,
        lowering="shard_map",
    )
    data = np.asarray(jax.random.key_data(keys))
    for i in (3, 13, 20):
        part, written = step(keys, np.int32(i))
        first, want = min(i, 8), data.copy()
        want[i : i + 1] = data[0]
        np.testing.assert_array_equal(jax.random.key_data(part), data[first : first + 8])
        np.testing.assert_array_equal(jax.random.key_data(written), want)


def test_starts_of_every_type() -> None:
    """A type may not reach the end of the dimension, or have no sign."""
    x = np.arange(600, dtype=np.int32)
    for dtype, start in (("uint8", 255), ("int8", -1), ("int8", 127), ("int16", 590)):
        step = sp.auto_shard(
            lambda x, i: lax.dynamic_slice(x, (i,), (40,)),
            mesh={"x": 8},
            in_shardings=(P(), P()),
            out_shardings=P("x"),
            lowering="shard_map",
        )
        i = np.array(start, dtype)
        np.testing.assert_array_equal(step(x, i), jax.jit(lambda x, i: lax.dynamic_slice(x, (i,), (40,)))(x, i), err_msg=dtype)
