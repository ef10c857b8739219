"""Comparisons between processes, and their times, in one process whose peers are played; tests/test_multi_process.py has real ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.api import agreement
from shardy_py.api.trees import Leaf
from shardy_py.errors import PeerMissingError, PlanMismatchError

LOWERINGS = ["jit", "shard_map"]
X = np.arange(256.0, dtype="float32").reshape(16, 16) / 99


class Peers:
    """Stands for the other processes, which come with the same program unless an error is raised instead."""

    def __init__(self) -> None:
        self.agreed: set[str] = set()
        self.asked: list[dict[str, Any]] = []
        self.is_missing = False
        self.error: Exception | None = None

    def agree(
        self, text: str, place: str, values: Sequence[tuple[Leaf, str | None]] = (), *, timeout: float | None = None, ahead: bool = False
    ) -> bool:
        if text in self.agreed:
            return False
        self.asked.append({"values": [value for _, value in values], "timeout": timeout, "ahead": ahead, "place": place})
        if self.error is not None:
            raise self.error
        self.agreed |= set() if self.is_missing else {text}
        return True

    @property
    def ahead(self) -> list[bool]:
        return [asked["ahead"] for asked in self.asked]


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Peers:
    made = Peers()
    monkeypatch.setattr(agreement, "peers_of", lambda devices: made)
    return made


@functools.cache
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def scaled(x: Any) -> Any:
    return jnp.sum(jnp.tanh(x) * 2.0)


def linear(x: Any) -> Any:
    """Its gradient needs nothing of a call."""
    return jnp.sum(x * 2.0)


ROWS = P("data")


def decorated(fun: Callable[..., Any] = scaled, specs: Any = ROWS, lowering: str = "jit", **keywords: Any) -> Any:
    return sp.auto_shard(fun, mesh=mesh(), in_shardings=specs, lowering=lowering, **keywords)


# When.


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_the_first_call_of_a_signature_asks(peers: Peers, lowering: str) -> None:
    """Once before the program is compiled and once behind, so that nobody runs before all can; later calls ask nothing."""
    f = decorated(lowering=lowering)
    for _ in range(3):
        np.testing.assert_allclose(f(jnp.asarray(X)), scaled(X), rtol=1e-5)
    assert len(peers.asked) == 2
    f(jnp.ones((32, 16)))
    assert len(peers.asked) == 4
    f.clear_cache()
    f(jnp.asarray(X))  # agreed on before
    assert len(peers.asked) == 4
    assert peers.ahead == [False] * 4


@pytest.mark.parametrize("arrangement", ["plain", "donated", "reordered"])
def test_the_program_is_compiled_once(peers: Peers, arrangement: str) -> None:
    """A program that was compiled before the second question runs."""
    compiled: list[str] = []

    def listen(event: str, *_: Any, **__: Any) -> None:
        compiled.extend([event] * event.endswith("backend_compile_duration"))

    def step(params: Any, x: Any) -> Any:
        new = {name: p - 0.1 * jnp.mean(x) for name, p in params.items()}
        return (jnp.sum(x), new) if arrangement == "reordered" else new

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        f = decorated(step, (None, P("data")), **({} if arrangement == "plain" else {"donate_argnums": 0}))
        sharding = NamedSharding(mesh(), P())
        params = jax.device_put({"b": jnp.ones(8), "w": jnp.ones(8)}, sharding)
        x = jax.device_put(X, NamedSharding(mesh(), P("data")))
        compiled.clear()
        f(params, x)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == 1
    assert len(peers.asked) == 2


@pytest.mark.parametrize("look", ["plan", "trace", "eval_shape", "lower", "compile", "make_jaxpr", "jax.eval_shape", "grad's jaxpr"])
def test_looking_asks_nobody(peers: Peers, look: str) -> None:
    """One process may print a plan, or count what a program costs."""
    f = decorated()
    looks: dict[str, Callable[[], Any]] = {
        "plan": lambda: f.plan(X),
        "trace": lambda: f.trace(X),
        "eval_shape": lambda: f.eval_shape(X),
        "lower": lambda: f.lower(X).as_text(),
        "compile": lambda: f.lower(X).compile().cost_analysis(),
        "make_jaxpr": lambda: jax.make_jaxpr(f)(X),
        "jax.eval_shape": lambda: jax.eval_shape(f, X),
        "grad's jaxpr": lambda: jax.make_jaxpr(jax.grad(f))(X),
    }
    looks[look]()
    assert not peers.asked


def scanned(f: Any) -> Callable[..., Any]:
    return lambda x: jax.lax.scan(lambda carry, _: (carry + f(x), None), 0.0, length=2)[0]


TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "jit of jit": lambda f: jax.jit(lambda x: jax.jit(f)(x) + 1),
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "vmap": lambda f: jax.vmap(f, in_axes=0),
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "value_and_grad": jax.value_and_grad,
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[0],
    "hessian": lambda f: jax.jit(lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1]),
    "scan": scanned,
    "cond": lambda f: jax.jit(lambda x: jax.lax.cond(x.sum() > 0, f, lambda x: 0.0, x)),
    "custom_vjp": lambda f: custom(f),
}


def custom(f: Any) -> Callable[..., Any]:
    made = jax.custom_vjp(f)
    made.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * jnp.cos(x),))
    return jax.grad(made)


@pytest.mark.parametrize(("fun", "lowering"), [(scaled, "shard_map"), (linear, "jit")])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed_calls_ask_before_they_run(peers: Peers, name: str, fun: Any, lowering: str) -> None:
    """Each in both ways to be called: at once, and written down; also where only a derivative is left of the call."""
    if (name, fun) == ("hessian", linear):
        pytest.skip("nothing is left of the call")
    transform, f = TRANSFORMED[name], decorated(fun, lowering=lowering)
    x = jnp.asarray(np.stack([X, X])) if "vmap" in name else jnp.asarray(X)
    run = transform(f)
    questions = 2 if name == "custom_vjp" else 1  # its forward rule is a plain call
    for got, expected in zip(jax.tree.leaves(run(x)), jax.tree.leaves(transform(fun)(x)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert peers.ahead == [False] * questions
    run(x)
    transform(f)(x)
    jax.jit(lambda x: transform(f)(x))(x)
    assert len(peers.asked) == questions


def test_a_signature_that_was_written_down_asks_when_it_runs(peers: Peers) -> None:
    f = decorated()
    jax.make_jaxpr(f)(X)
    jax.make_jaxpr(lambda x: f(x) + 1)(X)
    assert not peers.asked
    jax.jit(lambda x: f(x) + 2)(jnp.asarray(X))
    assert len(peers.asked) == 1


@pytest.mark.parametrize(
    "look", [lambda f: jax.jit(f).lower(X), lambda f: jax.jit(jax.grad(f)).lower(X), lambda f: jax.export.export(jax.jit(f))(X)]
)
def test_what_is_lowered_ahead_is_not_waited_for_long(peers: Peers, look: Callable[[Any], Any]) -> None:
    f = decorated()
    peers.is_missing = True
    look(f)
    assert peers.ahead == [True]
    assert peers.asked[0]["timeout"] == agreement.AHEAD
    peers.is_missing = False
    f(jnp.asarray(X))  # and asks again before it runs
    assert peers.ahead == [True, False, False]


def test_a_compiled_stage_asks_when_it_runs(peers: Peers) -> None:
    for keywords in ({}, {"donate_argnums": 0}):
        peers.asked.clear()
        peers.agreed.clear()
        f = decorated(lambda params, x: (jnp.sum(x), {"w": params["w"] - jnp.mean(x)}), (None, P("data")), **keywords)
        args = {"w": jnp.ones(8)}, jax.device_put(X, NamedSharding(mesh(), P("data")))
        compiled = f.lower(*args).compile()
        assert not peers.asked
        for _ in range(2):
            args = jax.device_put({"w": jnp.ones(8)}, NamedSharding(mesh(), P())), args[1]
            np.testing.assert_allclose(compiled(*args)[0], X.sum(), rtol=1e-5)
        assert len(peers.asked) == 2
        f({"w": jnp.ones(8)}, args[1])
        assert len(peers.asked) == 2
        assert compiled.input_shardings[0][1].spec == P("data")


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_function_in_another_asks_with_it(peers: Peers, lowering: str) -> None:
    """Also where the inner one was traced before, behind a gate that the outer one reads as an identity."""
    inner = jax.jit(decorated(lambda x: jnp.tanh(x) * 2.0, lowering=lowering))

    def fun(x: Any) -> Any:
        return jnp.sum(inner(x) + inner(x * 2))

    with jax.set_mesh(mesh()):
        jax.make_jaxpr(inner)(X)
        outer = decorated(fun, lowering=lowering)
        np.testing.assert_allclose(outer(X), jnp.sum(jnp.tanh(X) * 2 + jnp.tanh(X * 2) * 2), rtol=1e-5)
        assert len(peers.asked) == 2
        np.testing.assert_allclose(jax.grad(outer)(X)[0, 0], 6.0, rtol=1e-5)
    assert outer.verify(X).agrees


# What.


@pytest.mark.parametrize(
    ("given", "same"),
    [(X, X.copy()), (0.1, 0.1), (3, 3), (True, True), (np.float32(2), np.float32(2)), (jnp.asarray(X), jnp.asarray(X)),
     (jnp.asarray(X, jnp.bfloat16), jnp.asarray(X, jnp.bfloat16)), (np.zeros((0, 3)), np.zeros((0, 3))),
     (jax.random.key(3), jax.random.key(3)), (X.T, np.ascontiguousarray(X.T)), (1j, 1j)],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_values_that_a_process_has_are_compared(given: Any, same: Any) -> None:
    one, other = agreement.passed_value(given), agreement.passed_value(same)
    assert one == other
    assert one is not None
    if np.size(given) and not (isinstance(given, jax.Array) and jax.dtypes.issubdtype(given.dtype, jax.dtypes.prng_key)):
        assert agreement.passed_value(given + 1) != one


def test_the_first_call_compares_values(peers: Peers) -> None:
    def fun(params: Any, x: Any, *, rate: float) -> Any:
        return params["w"] - rate * jnp.mean(x), params["b"]

    f = decorated(fun)
    f = sp.auto_shard(fun, mesh=mesh(), in_shardings=({"w": None, "b": None}, P("data"), None), donate_argnums=0)
    f({"w": jnp.ones(8), "b": np.zeros(8)}, jax.device_put(X, NamedSharding(mesh(), P("data"))), rate=0.1)
    expected = list(map(agreement.passed_value, [np.zeros(8), jnp.ones(8), X, 0.1]))
    assert expected[2].endswith(" 0, 0.010101, 0.020202, 0.030303, ...")
    assert peers.asked[0]["values"] == expected  # in the order of the leaves
    assert not any(peers.asked[1]["values"])
    peers.asked.clear()
    jax.grad(lambda p, x: jnp.sum(f(p, x, rate=0.2)[0]))({"w": jnp.full(8, 2.0), "b": jnp.zeros(4)}, X)
    (asked,) = peers.asked
    assert asked["values"] == list(map(agreement.passed_value, [jnp.zeros(4), jnp.full(8, 2.0), X, 0.2]))


def test_a_call_that_is_not_agreed_on_does_not_run(peers: Peers) -> None:
    """However the function is called, and however often."""
    f = decorated()
    peers.error = PlanMismatchError("they differ", where="here")
    for call in (
        lambda: f(X),
        lambda: jax.jit(f)(jnp.asarray(X)),
        lambda: jax.grad(f)(jnp.asarray(X)),
        lambda: f.lower(X).compile()(X),
    ) * 2:
        with pytest.raises(PlanMismatchError, match="they differ"):
            call()
    peers.error = PeerMissingError("late", where="here")
    with pytest.raises(PeerMissingError):
        decorated(options=sp.Options(peer_timeout=7))(X)
    assert peers.asked[-1]["timeout"] == 7
    assert peers.asked[-1]["place"].startswith(__file__)


@pytest.mark.parametrize("timeout", [-1, "30", float("nan")])
def test_a_timeout_is_a_number(timeout: Any) -> None:
    with pytest.raises(ValueError, match="peer_timeout is"):
        sp.Options(peer_timeout=timeout)


# Statements.


def stated(fun: Callable[..., Any], *spec: str | None, **keywords: Any) -> str:
    planned = sp.auto_shard(fun, mesh=mesh(), in_shardings=P(*spec or ("data",)), **keywords).trace(jnp.ones((16, 16)))._planned
    return agreement.statement(planned.plan, planned.traced, list(mesh().devices.flat))


def test_a_statement_holds_what_is_run() -> None:
    def plain(x: Any) -> Any:
        return 2.0 * x

    def same(x: Any) -> Any:
        return jax.pure_callback(lambda x: x, x, x)

    assert stated(plain) == stated(plain)
    assert "0x" not in stated(same)
    others = [stated(plain, None, "data"), stated(plain, donate_argnums=0), stated(plain, lowering="jit")]
    others += [stated(lambda x: 2.0 * x), stated(lambda x: 3.0 * x)]
    with jax.default_matmul_precision("highest"):
        others.append(stated(plain))
    assert len({stated(plain), *others}) == 7


@pytest.mark.parametrize("size", [16, 1 << 23])
def test_closed_over_arrays_are_part_of_a_statement(size: int) -> None:
    def with_value(value: int) -> str:
        key, shift = jax.random.key(value), jnp.full((16,), value)
        table, spread = np.full(size, value, "float32"), jax.device_put(jnp.full(8, value), NamedSharding(mesh(), P("data")))
        return stated(lambda x: x + jax.random.normal(key, (16, 16)) + shift + jnp.mean(jnp.asarray(table)) + jnp.mean(spread))

    assert with_value(0) == with_value(0)
    one, other = with_value(0).splitlines(), with_value(1).splitlines()
    different = [a for a, b in zip(one, other, strict=True) if a != b]
    assert sum(line.startswith("closed over") for line in different) == 4


def test_one_process_compares_nothing() -> None:
    function = decorated(lambda x: x + 1)
    function(jnp.ones((8, 8)))
    assert function._last is not None
    assert function._last.agreement is None
    assert function._last.run == function._last.jitted.run
    assert "agreed" not in str(jax.make_jaxpr(function)(jnp.ones((8, 8))))
