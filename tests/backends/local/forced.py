"""Runs single forms under given axes, with garbage behind the ends of dimensions, and compares with the whole equation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from shardy_py.backends.local.local_rule import Equation, LocalContext, LocalRule, is_key
from shardy_py.backends.local.reshard import all_reduce
from shardy_py.backends.local.table import LOCAL_RULES
from shardy_py.dialect import AxisRef, FactorType

SIZES = {"x": 2, "y": 2, "z": 2}
Axes = tuple[tuple[str, ...], ...]
"""The axes of each factor."""


def mesh() -> Any:
    return jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 3)


def equation_of(f: Callable[..., Any], args: Sequence[Any], name: str, *, run: bool = True) -> tuple[Equation, list[Any]]:
    """The first equation of a primitive in the trace of a function, calls looked into, and its operands."""
    closed = jax.make_jaxpr(f)(*args)
    if not run:
        return next(Equation(eqn) for eqn in closed.eqns if eqn.primitive.name == name), []
    found = _find(closed.jaxpr, list(closed.consts), list(args), name)
    assert found is not None, f"no {name} in {closed}"
    return found


def _find(jaxpr: Any, consts: list[Any], args: list[Any], name: str) -> Any:
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *jax.tree.leaves(args)), strict=True))

    def read(v: Any) -> Any:
        return v.val if hasattr(v, "val") else env[v]

    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        if eqn.primitive.name == name:
            return Equation(eqn), operands
        if eqn.primitive.name == "jit":
            found = _find(eqn.params["jaxpr"].jaxpr, list(eqn.params["jaxpr"].consts), operands, name)
            if found is not None:
                return found
        made = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
        env.update(zip(eqn.outvars, made if eqn.primitive.multiple_results else [made], strict=True))
    return None


def choices(local_rule: LocalRule, count: int, seed: int) -> list[Axes]:
    """Some ways of sharding the factors of a form: each alone, and several at once."""
    rule = local_rule.rule
    free = []
    for f, kind in enumerate(rule.factor_types):
        if (
            kind is FactorType.NEED_REPLICATION
            or (kind is FactorType.PERMUTATION and local_rule.bytes_inside is None)
            or rule.factor_sizes[f] == 1
        ):
            continue
        free.append(f)
    made: list[Axes] = []

    def add(assigned: dict[int, tuple[str, ...]]) -> None:
        axes = tuple(assigned.get(f, ()) for f in range(rule.num_factors))
        for f, names in enumerate(axes):
            if rule.factor_sizes[f] % (2 ** len(names)) and f not in local_rule.uneven:
                return
        for mapping in rule.mappings:
            for dim in mapping:
                if len(dim) > 1 and any(axes[f] for f in dim[1:]):
                    return
        if any(axes) and axes not in made:
            made.append(axes)

    rng = random.Random(seed)
    for f in free:
        add({f: ("x",)})
        add({f: ("y", "z")})
    for _ in range(count):
        names = list(SIZES)
        rng.shuffle(names)
        assigned: dict[int, tuple[str, ...]] = {}
        for name in names:
            if free:
                f = rng.choice(free)
                assigned[f] = (*assigned.get(f, ()), name)
        add(assigned)
    return made


def spread(ways: Sequence[Axes]) -> list[Axes]:
    """Without those that cut one factor alone over one axis, where another cuts it alone over two."""

    def alone(axes: Axes) -> tuple[int, int]:
        """The factor that is cut, if it is only one, and over how many axes."""
        cut = [f for f, names in enumerate(axes) if names]
        return (cut[0], len(axes[cut[0]])) if len(cut) == 1 else (-1, 0)

    twice = {factor for factor, count in map(alone, ways) if count > 1}
    return [axes for axes in ways if alone(axes)[1] != 1 or alone(axes)[0] not in twice]


def run_forced(
    equation: Equation, local_rule: LocalRule, tried_axes: Sequence[Sequence[tuple[str, ...]]], operands: Sequence[Any]
) -> list[list[Any]]:
    """The results of a form under each of several axes, put together on every device."""
    rule = local_rule.rule

    def under(axes: Sequence[tuple[str, ...]], arrays: Sequence[Any]) -> list[Any]:
        local = LocalContext(equation, local_rule, axes, SIZES, "cpu")
        cut = [_cut(x, mapping, axes, local.operand_shape(i)) for i, (x, mapping) in enumerate(zip(arrays, rule.operand_mappings))]
        out = []
        for i, made in enumerate(local_rule.run(local, cut)):
            assert made.shape == local.result_shape(i), (made.shape, local.result_shape(i))
            assert made.dtype == equation.result_dtypes[i]
            summed = tuple(AxisRef(n) for f in rule.reduction for n in axes[f])
            if summed:
                made = all_reduce(made, summed, local_rule.combine, "cpu")
            for d, dim in enumerate(rule.result_mappings[i]):
                names = tuple(n for f in dim for n in axes[f])
                if names and made.size:
                    made = lax.all_gather(made, names, axis=d, tiled=True)
                    made = lax.slice_in_dim(made, 0, equation.result_shapes[i][d], axis=d)
            out.append(made if made.size else jnp.zeros(equation.result_shapes[i], made.dtype))
        return out

    def inside(*arrays: Any) -> list[list[Any]]:
        return [under(axes, arrays) for axes in tried_axes]

    region = jax.shard_map(inside, mesh=mesh(), in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    return jax.jit(region)(*operands)


def _cut(x: Any, mapping: Sequence[Sequence[int]], axes: Sequence[tuple[str, ...]], shape: Sequence[int]) -> Any:
    for d, dim in enumerate(mapping):
        names = tuple(n for f in dim for n in axes[f])
        if not names:
            continue
        missing = shape[d] * 2 ** len(names) - x.shape[d]
        if missing:
            tail = lax.slice_in_dim(x, 0, 1, axis=d)
            tail = tail if is_key(x.dtype) else jnp.full_like(tail, _garbage(x.dtype))
            x = jnp.concatenate([x, *[tail] * missing], axis=d)
        x = lax.dynamic_slice_in_dim(x, lax.axis_index(names) * shape[d], shape[d], axis=d)
    return x


def _garbage(dtype: Any) -> Any:
    if dtype == jnp.bool_:
        return True
    return jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).max - 1


def check(
    f: Callable[..., Any], *args: Any, name: str, count: int = 3, seed: int = 0, tolerance: float = 0.0, cuts: int | None = None
) -> LocalRule:
    """Compares a form under several ways of sharding with the equation run whole.

    Args:
        f: Makes the equation.
        args: Its arguments.
        name: Its primitive.
        count: How many random ways of sharding to try besides each factor alone.
        seed: Of the random ways.
        tolerance: Relative and absolute; 0 where results have to be equal bit for bit.
        cuts: How many ways of sharding are to be found at least.
    """
    equation, operands = equation_of(f, args, name)
    local_rule = LOCAL_RULES[name](equation)
    assert local_rule is not None, f"{name} has no form"
    params = equation.eqn.primitive.get_bind_params(equation.params)
    want = jax.jit(lambda *xs: equation.eqn.primitive.bind(*xs, **params))(*operands)
    want = want if equation.eqn.primitive.multiple_results else [want]
    tried = choices(local_rule, count, seed)
    assert len(tried) >= (1 if cuts is None else cuts), tried
    tried = spread(tried)
    for axes, got in zip(tried, run_forced(equation, local_rule, tried, operands), strict=True):
        for g, w in zip(got, want, strict=True):
            same(g, w, tolerance, f"{name} under {axes}")
    return local_rule


def same(got: Any, want: Any, tolerance: float, message: str) -> None:
    if is_key(want.dtype):
        got, want = jax.random.key_data(got), jax.random.key_data(want)
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, message
    if got.dtype.kind == "V":
        got, want = got.astype(np.float32), want.astype(np.float32)
    if tolerance:
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=message)
    else:
        np.testing.assert_array_equal(got, want, err_msg=message)
