"""Functions with a sharding rule of the user's around a kernel, or a call of compiled code: both run on parts of a batch.

A rule says how shardings propagate, which does not say that the function can be run on parts: Shardy's own rule of a Cholesky factorization
lets rows and columns pass. Along a batch it can be, by anything that takes one: a factor without a type of its own, at the front of all
results and all operands, but for operands of fewer dimensions that are without it, such as weights. Where all dimensions are like that, the
first one is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend.core import Jaxpr, JaxprEqn

from shardy_py.backends.local.calls import run_body
from shardy_py.backends.local.interpreter import Handler, Interpreter
from shardy_py.backends.local.local_rule import LocalContext, LocalRule
from shardy_py.backends.local.sharded_value import Values
from shardy_py.dialect import OpShardingRule
from shardy_py.dialect.rule import FactorType
from shardy_py.frontends.importer import Scope
from shardy_py.frontends.jaxprs import bodies, open_jaxpr
from shardy_py.frontends.mesh_context import no_mesh
from shardy_py.frontends.transforms import abstract_argument
from shardy_py.ir.jax_calls import CALLS

Array = Any

KERNELS = frozenset({"ffi_call", "mosaic_gpu_p", "pallas_call", "tpu_custom_call"})
"""Primitives with code for arrays of the shapes that they are called with."""


def ruled_call(
    interpreter: Interpreter, eqn: JaxprEqn, index: int, operands: Values, scope: Scope | None, kernels: frozenset[str] = KERNELS
) -> Values:
    """Runs a function with a user's rule on parts of a batch, if it calls one of `kernels`, or what is in it, with planned results."""
    equation = interpreter.analysis.equation(eqn)
    if "on_parts" not in equation.cache:
        with interpreter.analysis.settings_of(eqn):
            rule = batched_rule(eqn, kernels)
        equation.cache["on_parts"] = None if rule is None else LocalRule(rule, _on_parts)
    on_parts = equation.cache["on_parts"]
    if on_parts is not None:
        return interpreter.run_rule(equation, operands, scope, on_parts)
    outputs = run_body(interpreter, eqn.params["call_jaxpr"], operands, None)
    results = []
    for value, v in zip(outputs, eqn.outvars, strict=True):
        planned = interpreter.planned(v, scope)
        if planned is None or not value.shape:
            results.append(value)
            continue
        results.append(interpreter.new_value(value.get(planned), planned, value.shape, value.dtype))
    return results


def _on_parts(local: LocalContext, arrays: list[Array]) -> list[Array]:
    return [jnp.asarray(x) for x in local.params["fun"](*arrays)]


def batched_rule(eqn: JaxprEqn, names: frozenset[str] = KERNELS) -> OpShardingRule | None:
    """The rule by which a function runs on parts of its batch; None where there is no batch, or where it need not be run so."""
    fun, rule = eqn.params["fun"], eqn.params["rule"]
    jaxpr = eqn.params["call_jaxpr"].jaxpr
    kernels = list(_kernels(jaxpr, names))
    if fun is None or rule is None or eqn.effects or not kernels:
        return None
    batch = _batch(rule, [len(shape) for kernel in _kernels(jaxpr, names, in_loops=False) for shape in _shapes(kernel.outvars)])
    sizes = [n // _smallest_divisor(n) if f in batch else n for f, n in enumerate(rule.factor_sizes)]
    if not batch or not _runs_on_parts(eqn, kernels, names, sizes, len(batch)):
        return None
    whole = [f for f in range(rule.num_factors) if f not in batch]
    return OpShardingRule(rule.factor_sizes, rule.operand_mappings, rule.result_mappings, (), whole)


def _kernels(jaxpr: Jaxpr, names: frozenset[str], *, in_loops: bool = True) -> Iterator[JaxprEqn]:
    """The kernels of a function; those in loops, such as the loop over a batch, and in branches as well or not."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in names:
            if not eqn.params.get("interpret"):
                yield eqn
        elif in_loops or eqn.primitive.name in CALLS:
            for _, _, body in bodies(eqn):
                yield from _kernels(open_jaxpr(body), names, in_loops=in_loops)


def _batch(rule: OpShardingRule, ranks: Sequence[int]) -> list[int]:
    """The factors of a batch."""
    operands = [mapping for mapping in rule.operand_mappings if mapping]
    rank = max(map(len, (*operands, *rule.result_mappings)))
    most = min((*map(len, rule.result_mappings), *ranks))
    batch: list[int] = []
    for d, dim in enumerate(rule.result_mappings[0][:most]):
        with_it = [m for m in operands if any(dim[0] in factors for factors in m)] if len(dim) == 1 else []
        is_free = with_it and rule.factor_types[dim[0]] is FactorType.PASS_THROUGH and dim[0] not in rule.blocked_propagation
        others = [m for m in operands if m not in with_it]
        if not is_free or any(m[d : d + 1] != (dim,) for m in (*with_it, *rule.result_mappings)) or any(len(m) == rank for m in others):
            break
        batch += dim
    return batch[:1] if len(batch) == rank else batch


def _runs_on_parts(eqn: JaxprEqn, kernels: Sequence[JaxprEqn], names: frozenset[str], sizes: Sequence[int], count: int) -> bool:
    """Whether parts of operands give parts of results, with kernels that differ in their first dimensions only."""
    rule = eqn.params["rule"]

    def part(aval: Any, mapping: Sequence[Sequence[int]]) -> Any:
        return aval.update(shape=tuple(sizes[dim[0]] if len(dim) == 1 else n for n, dim in zip(aval.shape, mapping, strict=True)))

    operands, results = (
        [part(v.aval, mapping) for v, mapping in zip(variables, mappings, strict=True)]
        for variables, mappings in ((eqn.invars, rule.operand_mappings), (eqn.outvars, rule.result_mappings))
    )
    try:
        with no_mesh():
            traced: Any = jax.make_jaxpr(eqn.params["fun"])(*map(abstract_argument, operands))
    except Exception:  # whatever the user's function raises
        return False
    inside = [[[s[count:] for s in _shapes([*k.invars, *k.outvars])] for k in each] for each in (kernels, _kernels(traced.jaxpr, names))]
    return inside[0] == inside[1] and [(a.shape, a.dtype) for a in traced.out_avals] == [(a.shape, a.dtype) for a in results]


def _shapes(variables: Sequence[Any]) -> list[tuple[int, ...]]:
    return [v.aval.shape for v in variables]


def _smallest_divisor(n: int) -> int:
    return next((p for p in range(2, math.isqrt(n) + 1) if n % p == 0), max(n, 1))


HANDLERS: dict[str, Handler] = {"sdy_ruled_call": ruled_call}
"""Primitive -> handler."""
