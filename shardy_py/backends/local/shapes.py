"""Local rules of primitives that rearrange dimensions."""

from __future__ import annotations

from jax import lax

from shardy_py.backends.local.local_rule import Builder, Equation, Factors, LocalContext, LocalRule, as_is, make_rule
from shardy_py.dialect import Semantics
from shardy_py.ir import Block, Op, TensorType
from shardy_py.rules import rule_for


def broadcast_in_dim(equation: Equation) -> LocalRule | None:
    """Dimensions of the operand pass through; new ones are made at their local size."""
    (shape, *dynamic), (out,) = equation.shapes, equation.result_shapes
    if dynamic:
        return None
    factors, rank = Factors(out), range(len(out))
    dims = factors.matching(shape, equation.params["broadcast_dimensions"])

    def run(local: LocalContext, arrays: list) -> list:
        return local.bind(*arrays, shape=local.result_shape(0))

    rule = make_rule(factors.sizes, [dims], [rank], whole=factors.whole)
    return LocalRule(rule, run, uneven=frozenset(rank), linear=((0,),))


def leading(equation: Equation) -> LocalRule:
    """The leading dimensions that operand and result share pass through; further ones, which only one of them has, are whole."""
    (shape,), (out,) = equation.shapes, equation.result_shapes
    longer = max(shape, out, key=len)
    common = min(len(shape), len(out))
    rule = make_rule(longer, [range(len(shape))], [range(len(out))], whole=range(common, len(longer)))
    return LocalRule(rule, as_is, uneven=frozenset(range(common)))


def transpose(equation: Equation) -> LocalRule | None:
    """Every dimension passes through."""
    (shape,) = equation.shapes
    out = equation.params["permutation"]
    rank = range(len(shape))
    return LocalRule(make_rule(shape, [rank], [out]), as_is, uneven=frozenset(rank), linear=((0,),))


def squeeze(equation: Equation) -> LocalRule | None:
    """Dimensions that stay pass through."""
    (shape,) = equation.shapes
    dropped = {d % len(shape) for d in equation.params["dimensions"]}
    rank = range(len(shape))
    rule = make_rule(shape, [rank], [[d for d in rank if d not in dropped]], whole=sorted(dropped))
    return LocalRule(rule, as_is, uneven=frozenset(rank) - dropped, linear=((0,),))


def reshape(equation: Equation) -> LocalRule | None:
    """Runs of dimensions with equal products share factors, as in the rule of `stablehlo.reshape`."""
    (shape, *dynamic), (out,) = equation.shapes, equation.result_shapes
    if dynamic:
        return None
    order = tuple(equation.params.get("dimensions") or range(len(shape)))
    shape = tuple(shape[d] for d in order)
    op = Op("stablehlo.reshape", Block([TensorType(shape, "float32")]).arguments, (TensorType(out, "float32"),))
    rule = rule_for(op, semantics=Semantics("0.10"))  # whose factors are parts of both shapes; a later one shares permutations
    if rule is None:
        return None
    (mapping,), (result_mapping,) = rule.operand_mappings, rule.result_mappings
    before, after = ({f for dim in dims for f in dim} for dims in (mapping, result_mapping))
    back = [mapping[order.index(d)] for d in range(len(shape))]
    rule = make_rule(rule.factor_sizes, [back], [result_mapping], whole=sorted({*rule.need_replication, *(before ^ after)}))

    def run(local: LocalContext, arrays: list) -> list:
        (x,), shape = arrays, local.result_shape(0)
        x = lax.transpose(x, order)
        return [x] if x.shape == shape else local.bind(x, new_sizes=shape, dimensions=None)

    alone = [dim[0] for mapping in rule.mappings for dim in mapping if len(dim) == 1]
    shared = {f for mapping in rule.mappings for dim in mapping if len(dim) > 1 for f in dim}
    same = [f for f in alone if f not in shared and alone.count(f) == 2]
    return LocalRule(rule, run, uneven=frozenset(same), linear=((0,),))


LOCAL_RULES: dict[str, Builder] = {
    "broadcast_in_dim": broadcast_in_dim,
    "reshape": reshape,
    "squeeze": squeeze,
    "transpose": transpose,
}
"""Primitive -> builder of its local rule."""
