"""`sharding_rule`: how an opaque function propagates, in one line."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax
from jax.core import Tracer

from shardy_py.api.errors import SpecError
from shardy_py.api.trees import location_of
from shardy_py.errors import ShardyError
from shardy_py.frontends.annotation_primitives import ruled_call_p
from shardy_py.frontends.context import api_boundary
from shardy_py.frontends.leaves import Leaves, trace_leaves
from shardy_py.rules.einsum import RuleSpec, parse_einsum_rule

P = ParamSpec("P")
R = TypeVar("R")


@api_boundary
def sharding_rule(
    rule: str | None = None,
    *,
    reduction: str | Iterable[str] = (),
    need_replication: str | Iterable[str] = (),
    permutation: str | Iterable[str] = (),
    blocked_propagation: str | Iterable[str] = (),
    like: Callable[..., Any] | None = None,
    **factor_sizes: int,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function that propagation should not look into: a kernel, a callback, a foreign call.

    As the `sharding_rule` of `jax.experimental.custom_partitioning`, without a partition callback, and differentiable and
    vmappable as the function itself is. A kernel of Pallas or a `jax.ffi.ffi_call` in it runs on parts of a batch: the function is traced
    with their sizes where the rule has dimensions at the front of all results and operands (weights aside) that are free.
    Positional arguments are pytrees of arrays, one factor pattern per leaf; keyword arguments are static.

    Args:
        rule: Factors of operands and results: `"i k, k j -> i j"`, `"... i -> ..."`, `"(h d) -> h d"`.
        reduction: Factors that the function sums over.
        need_replication: Factors that must not be sharded.
        permutation: Factors along which neighbours exchange data.
        blocked_propagation: Factors along which shardings do not pass.
        like: Instead of a rule, a function of plain JAX ops with the same signature; the plan treats the call as its ops.
        factor_sizes: Sizes of factors that stand in compound dimensions only.

    Raises:
        ShardingRuleError: The rule cannot be read; a caret shows where.

    Example:
        >>> import jax, numpy as np, shardy_py as sp
        >>> from jax.sharding import PartitionSpec as P
        >>> @sp.sharding_rule("i k, k j -> i j", reduction="k")
        ... def matmul(x, y):
        ...     return jax.pure_callback(np.matmul, jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype), x, y)
        >>> step = sp.auto_shard(matmul, mesh={"data": 4}, in_shardings=(P("data"), None))
        >>> print(step.plan(np.ones((8, 4), "float32"), np.ones((4, 2), "float32")).outputs[0])
        result: float32[8@data,2]
    """
    if (rule is None) == (like is None):
        raise SpecError(
            "sharding_rule takes a rule or like=, one of them",
            where="sharding_rule",
            why="a call propagates by a rule or as another function does",
            fix='write sharding_rule("i k, k j -> i j", reduction="k") or sharding_rule(like=fn)',
        )
    spec = None
    if rule is not None:
        spec = parse_einsum_rule(
            rule,
            reduction=reduction,
            need_replication=need_replication,
            permutation=permutation,
            blocked_propagation=blocked_propagation,
            factor_sizes=factor_sizes,
        )

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @api_boundary
        @functools.wraps(fn)
        def ruled(*args: Any, **static: Any) -> Any:
            leaves, tree = jax.tree.flatten(args)
            if not any(isinstance(leaf, Tracer) for leaf in leaves):
                return fn(*args, **static)
            return _bind(fn, spec, like, leaves, tree, static)

        return ruled

    return decorate


def _bind(
    fn: Callable[..., Any], spec: RuleSpec | None, like: Callable[..., Any] | None, leaves: list[Any], tree: Any, static: dict[str, Any]
) -> Any:
    name = getattr(fn, "__name__", "function")
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in map(jax.typeof, leaves)]

    def trace(call: Callable[..., Any]) -> tuple[Any, Leaves]:
        closed, out = trace_leaves(lambda *flat: call(*jax.tree.unflatten(tree, flat), **static), *avals)
        if any(isinstance(const, Tracer) for const in closed.consts):
            raise SpecError(
                f"{name} closes over a traced array",
                where=location_of(call),
                why="the operands of a function with a sharding rule are its arguments",
                fix="pass the array as an argument",
            )
        return closed, out

    closed, out = trace(fn)
    like_closed = None if like is None else trace(like)[0]
    if like_closed is not None and [(a.shape, a.dtype) for a in like_closed.out_avals] != [(a.shape, a.dtype) for a in closed.out_avals]:
        raise SpecError(
            f"like= gives other results than {name}",
            where=location_of(fn),
            why=f"{name} gives {list(map(str, closed.out_avals))}, like= gives {list(map(str, like_closed.out_avals))}",
            fix="pass a function with the same results",
        )
    try:
        rule = None if spec is None else spec.bind([a.shape for a in avals], [a.shape for a in closed.out_avals])
    except ShardyError as error:
        raise error.at(f"sharding_rule of {location_of(fn)}") from None

    def on_leaves(*flat: Any) -> list[Any]:
        return jax.tree.leaves(fn(*jax.tree.unflatten(tree, flat), **static))

    results = ruled_call_p.bind(*leaves, call_jaxpr=closed, like_jaxpr=like_closed, rule=rule, name=name, fun=on_leaves)
    return out.outline.filled(results).tree()
