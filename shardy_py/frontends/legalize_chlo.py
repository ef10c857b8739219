"""Gives CHLO ops the operands and steps that decide how shardings pass through what they are legalised to.

XLA legalises CHLO before it propagates: `chlo.lgamma` becomes 84 elementwise ops. All of them have one rule, so the
shardings of the values around them come out the same from a short stand-in with the same uses of the operands:

* Whether a value has a single use decides when an op propagates. An op that is legalised to several uses of its operand
  therefore takes it twice; one that is legalised to a straight chain takes it once.
* With two operands the order of the first uses counts too. `STEPS` has these, with chains on one value cut short.

Tests run the legalisation of jaxlib beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardy_py.ir import Block, Op, Program, TensorType, Type, Value

Expansion = tuple[list[Op], list[Value]]
"""Ops and the values that stand for the results of the op they are made from."""

STRAIGHT = frozenset(("chlo.is_inf", "chlo.is_neg_inf", "chlo.is_pos_inf", "chlo.mulhi"))
"""Legalised to a chain in which every value has one use."""

STEPS: Mapping[str, str] = {
    "chlo.next_after": "a=x b=y c=x,x d=y,y e=c,d f=a g=b h=x,y i=f j=g k=b l=f,g m=a,l n=j,b,k o=i,n,m p=h,b,o q=e,p",
    "chlo.polygamma": "a=x b=x c=b,b d=b e=y,d f=y g=f,d h=e,g j=y,h k=x l=y,y m=k,j n=m,l o=a,c p=o,n q=x r=x,q s=r,p",
    "chlo.zeta": (
        "a=x b=y,a c=y d=c,a e=b,d f=c g=f,a h=e,g i=g,f j=x k=i,j l=f,f m=l n=x o=x p=n,o q=m,p r=x,f s=r,q t=g,s u=h,k v=u,t"
        " w=g z=h A=z,w B=A,h,v C=x D=C,B E=y F=x G=x,F H=E,G I=H,D J=y K=y,J L=E,K M=x N=x,M O=x P=N,O Q=L,P,I R=x S=R,Q"
    ),
}
"""`e=c,d` is an op on the results of steps c and d; x and y are the operands."""


def legalize_chlo(program: Program) -> None:
    """Replaces the CHLO ops of a program by their stand-ins; see the module.

    `chlo.top_k` becomes iota, sort and two slices, `chlo.square` a product and `chlo.tan` `stablehlo.tan`, as they do in XLA.
    """
    for function in program.functions:
        _legalize_block(function.body)


def expand(
    name: str, operands: Sequence[Value], result_types: Sequence[Type], attributes: Mapping[str, int], location: object = None
) -> Expansion | None:
    """The stand-in for one CHLO op, not yet in a block; None for an op that stands as it is."""
    if name == "chlo.top_k":
        return _top_k(operands[0], result_types, attributes["k"], location)
    if name in STEPS:
        return _steps(name, STEPS[name], operands, result_types[0], location)
    if name == "chlo.tan":
        return _one("stablehlo.tan", operands, result_types, location)
    if not name.startswith("chlo.") or len(operands) != 1 or name in STRAIGHT:
        return None
    is_complex = operands[0].type.dtype.startswith("complex")
    if name == "chlo.conj" and not is_complex:
        return [], list(operands)
    if name == "chlo.atan" and not is_complex:
        return None
    if name == "chlo.square" and not is_complex:
        name = "stablehlo.multiply"
    return _one(name, (*operands, *operands), result_types, location)


def _one(name: str, operands: Sequence[Value], result_types: Sequence[Type], location: object) -> Expansion:
    op = Op(name, operands, result_types, location=location)
    return [op], op.results


def _steps(name: str, steps: str, operands: Sequence[Value], result_type: Type, location: object) -> Expansion:
    values = dict(zip("xy", operands, strict=True))
    ops = []
    for step in steps.split():
        target, sources = step.split("=")
        op = Op(name, [values[source] for source in sources.split(",")], [result_type], location=location)
        values[target] = op.result
        ops.append(op)
    return ops, ops[-1].results


def _top_k(operand: Value, result_types: Sequence[Type], k: int, location: object) -> Expansion:
    shape = operand.type.shape
    last = len(shape) - 1
    iota = Op("stablehlo.iota", [], [TensorType(shape, result_types[1].dtype)], {"iota_dimension": last}, location=location)
    sort = Op("stablehlo.sort", [operand, iota.result], [operand.type, iota.result.type], {"dimension": last}, location=location)
    attributes = {"start_indices": (0,) * len(shape), "limit_indices": (*shape[:-1], k), "strides": (1,) * len(shape)}
    slices = [
        Op("stablehlo.slice", [result], [type_], attributes, location=location)
        for result, type_ in zip(sort.results, result_types, strict=True)
    ]
    return [iota, sort, *slices], [op.result for op in slices]


def _legalize_block(block: Block) -> None:
    ops: list[Op] = []
    changed = False
    for op in block.ops:
        for region in op.regions:
            _legalize_block(region)
        if not op.name.startswith("chlo."):
            ops.append(op)
            continue
        operands = list(op.operands)
        expansion = expand(op.name, operands, [result.type for result in op.results], op.attributes, op.location)
        if expansion is None:
            ops.append(op)
            continue
        changed = True
        new, results = expansion
        op.drop_uses()
        op.block = None
        for old, value in zip(op.results, results, strict=True):
            value.sharding = old.sharding if value.sharding is None else value.sharding
            old.replace_uses(value)
        ops.extend(new)
    if changed:
        block.set_ops(ops)
