"""Runs random programs on eight devices, under both lowerings, and without shardings on one."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from shardy_py.cost.hardware import Hardware
from shardy_py.cost.links import Fabric
from tests import comparing
from tests.random_programs import load, program_of_seed

LOWERINGS = ("jit", "shard_map")
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Most of the time goes into compiling, so the code need not be fast."""

SUMS = ("conv_general_dilated", "cumsum", "dot_general", "reduce_sum", "reduce_window_sum", "scatter-add")
"""Primitives that add up in an order that devices change."""

LOOP = """def loop(body, x):
    def go_on(state):
        return jnp.logical_and(state[0] < 4, jnp.sum(state[1]) < 10.0)

    return lax.while_loop(go_on, lambda state: (state[0] + 1, body(state[1])), (0, x))[1]


"""
QUICK_LINKS = Fabric("switch", 1e12, latency=0.0)
SLOW_CHIPS = (
    Hardware("slow arithmetic", {"float32": 1e6}, 1e5, 1 << 34, 1e9, QUICK_LINKS, QUICK_LINKS),
    Hardware("slow memory", {"float32": 1e9}, 1e9, 1 << 34, 1e5, QUICK_LINKS, QUICK_LINKS),
)
"""On a real chip a planner leaves arrays of a few elements whole; on these it cuts whatever it can."""

TYPES = {3: "bfloat16", 6: "int32"}
"""Last digit of a seed -> the type of the arguments, where the program can do with it; else float32."""


def text_of_seed(seed: int) -> str:
    """A random program whose loops all end."""
    text = (
        program_of_seed(seed)
        .replace("lax.while_loop(lambda c: jnp.sum(c) < 10.0, ", "loop(")
        .replace("def constrain", LOOP + "def constrain")
    )
    dtype = TYPES.get(seed % 10)
    if dtype is not None:
        other = re.sub(r"(ShapeDtypeStruct\([^)]*\)?, )'float32'", rf"\1{dtype!r}", text)
        if _lowers(other):
            return other
    return text


def planner_of_seed(seed: int) -> Any:
    """The planner of a random program."""
    from shardy_py import Planner

    return Planner(hardware=SLOW_CHIPS[seed % len(SLOW_CHIPS)])


def without_shardings(text: str) -> str:
    """The same program, without annotations in its body."""
    text = text.replace("return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))", "return x")
    return re.sub(r"(= jax\.jit\(f\d+), in_shardings=\(.*\)\)$", r"\1)", text, flags=re.MULTILINE)


def _lowers(text: str) -> bool:

    try:
        loaded = load(without_shardings(text))
        _called(loaded.program, loaded.outside).lower(*loaded.arguments)
    except (OverflowError, TypeError, ValueError):
        return False
    return True


def difference(text: str, lowerings: tuple[str, ...] = LOWERINGS, planner: Any = None) -> str:
    """The difference on devices in words; "" where there is none.

    With a planner, shardings of arguments and results are its choice; those of the body stay.

    Floats may differ by the rounding of the arguments' type, and by what tiny changes of the arguments, or of what is summed up, make of
    that; everything else has to be equal.
    """
    import jax
    import numpy as np

    import shardy_py

    loaded = load(text)
    arguments = [_values(a.shape, a.dtype, i) for i, a in enumerate(loaded.arguments)]
    whole = _called(load(without_shardings(text)).program, loaded.outside).lower(*arguments).compile(compiler_options=QUICK)
    run = lambda args: [np.asarray(x) for x in jax.tree.leaves(whole(*args))]  # noqa: E731
    wanted = run(arguments)
    coarsest = min((x.dtype.itemsize for x in arguments if x.dtype.kind != "i"), default=8)
    nearby = [run([_changed(x, i) for x in arguments]) for i in range(3)]

    @functools.cache
    def otherwise_rounded() -> list[list[Any]]:
        whole = _called(load(without_shardings(text)).program, loaded.outside)
        return [[np.asarray(x) for x in jax.tree.leaves(_summed_otherwise(whole, arguments, i))] for i in range(3)]

    @functools.cache
    def op_by_op() -> list[Any]:
        """The results of one op at a time: XLA partitions a `shard_map` over some of the axes, without shardings too, and may err there."""
        with jax.disable_jit():
            whole = _called(load(without_shardings(text)).program, loaded.outside)
            return [np.asarray(x) for x in jax.tree.leaves(whole(*arguments))]

    for lowering in lowerings:
        sharded = shardy_py.auto_shard(
            loaded.program,
            mesh=loaded.mesh,
            in_shardings=None if planner else loaded.in_shardings,
            out_shardings=None if planner else loaded.out_shardings,
            lowering=lowering,
            planner=planner,
        )
        called = sharded if loaded.outside is None else _called(sharded, loaded.outside)
        got = jax.tree.leaves(called.lower(*arguments).compile(compiler_options=QUICK)(*arguments))
        for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
            g = np.asarray(g)
            if comparing.difference(g, w, [n[i] for n in nearby], coarsest):
                around = [n[i] for n in (*nearby, *otherwise_rounded())]
                differs = comparing.difference(g, w, around, coarsest)
                if differs and comparing.difference(g, op_by_op()[i], around, coarsest):
                    return f"{lowering}, result {i}: {differs}"
    return ""


def _called(program: Callable[..., Any], outside: tuple[int, ...] | None) -> Any:
    """A program as one function for `jax.jit`, with its gradient from outside where that is wanted."""
    import jax

    if outside is None:
        return jax.jit(program)
    return jax.jit(jax.value_and_grad(lambda *args: program(*args)[0].astype("float32"), outside))


def _summed_otherwise(function: Callable[..., Any], arguments: list[Any], seed: int) -> Any:
    """Results of a function where what is summed up is changed in its last digit, as if it had been added up in another order.

    Changes of the arguments do not show what depends on that: a sum of multiples of one number may be zero but for rounding, whatever the
    arguments are.
    """
    import jax
    from jax.extend.core import ClosedJaxpr, JaxprEqn, jaxpr_as_fun
    from jax.sharding import AbstractMesh

    from shardy_py.backends.named_shardings import NamedShardings
    from shardy_py.backends.rewriting import Copier, Pins

    def changed(x: Any) -> Any:
        if not jax.numpy.issubdtype(x.dtype, jax.numpy.floating) or not x.ndim:
            return x
        phase = jax.lax.iota("float32", x.size).reshape(x.shape) * (7.3 + seed)
        return (x * (1 + float(jax.numpy.finfo(x.dtype).eps) * jax.lax.sin(phase))).astype(x.dtype)

    def replacement(eqn: JaxprEqn, scope: Any) -> Any:
        if eqn.primitive.name not in SUMS:
            return None
        return lambda *xs: [eqn.primitive.bind(*map(changed, xs), **eqn.params)]

    whole = jax.make_jaxpr(function)(*arguments)
    copied = Copier(NamedShardings(AbstractMesh((), ())), replacement).copy(whole.jaxpr, Pins(), None)
    run = jax.jit(jaxpr_as_fun(ClosedJaxpr(copied.jaxpr, whole.consts)))
    return run.lower(*arguments).compile(compiler_options=QUICK)(*arguments)


def _values(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    import numpy as np

    generator = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "i":
        return generator.integers(0, 4, shape).astype(dtype)
    return (generator.standard_normal(shape) / 2).astype(dtype)


def _changed(x: Any, seed: int) -> Any:
    import numpy as np

    if x.dtype.kind == "i":
        return x
    step = 1e-2 if x.dtype.itemsize < 4 else 2e-6
    return (x * (1 + step * np.random.default_rng(seed).standard_normal(x.shape))).astype(x.dtype)
