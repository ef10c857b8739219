"""Lowering single equations through JAX, and what CHLO ops become."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn
from jax.extend.core import primitives as jp
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardy_py.frontends.lowered import expand, legalize_chlo, lower_fragment
from shardy_py.ir import Block, Op, TensorType, Value
from shardy_py.opt.from_mlir import from_mlir
from tests.reference import LEGALIZE_CHLO, lower, programs_equal, run_pipeline


def shaped(*shape: int, dtype: str = "float32") -> Any:
    return ShapedArray(shape, np.dtype(dtype))


def equations(fun: Callable[..., Any], *args: Any) -> list[JaxprEqn]:
    """The equations of a function, those of inner jits included."""
    found: list[JaxprEqn] = []

    def walk(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "jit":
                walk(eqn.params["jaxpr"].jaxpr)
            else:
                found.append(eqn)

    walk(jax.make_jaxpr(fun)(*args).jaxpr)
    return found


X = jax.ShapeDtypeStruct((4, 4), "float32")
V = jax.ShapeDtypeStruct((8,), "float32")
KEY = jax.eval_shape(lambda: jax.random.key(0))

CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
    ("argmax", lambda x: jnp.argmax(x, 1), (X,)),
    ("cumsum", lambda x: jnp.cumsum(x, 0), (X,)),
    ("cumlogsumexp", lambda x: jax.lax.cumlogsumexp(x, 0), (X,)),
    ("fft", lambda x: jnp.fft.fft(x), (X,)),
    ("cholesky", jax.lax.linalg.cholesky, (X,)),
    ("lu", jax.lax.linalg.lu, (X,)),
    ("qr", lambda x: jax.lax.linalg.qr(x), (X,)),
    ("eigh", lambda x: jax.lax.linalg.eigh(x), (X,)),
    ("svd", lambda x: jax.lax.linalg.svd(x), (X,)),
    ("triangular_solve", lambda x: jax.lax.linalg.triangular_solve(x, x), (X,)),
    ("igamma", jax.lax.igamma, (V, V)),
    ("random_bits", lambda k: jax.random.bits(k, (8,)), (KEY,)),
    ("random_split", lambda k: jax.random.split(k), (KEY,)),
    ("random_fold_in", lambda k: jax.random.fold_in(k, 3), (KEY,)),
    ("random_gamma", lambda k: jax.random.gamma(k, 2.0, (4,)), (KEY,)),
    ("approx_top_k", lambda x: jax.lax.approx_max_k(x, 2), (X,)),
    ("ragged_dot_general", lambda x, g: jax.lax.ragged_dot(x, jnp.zeros((2, 4, 4)), g), (X, jax.ShapeDtypeStruct((2,), "int32"))),
    ("rng_bit_generator", lambda k: jax.lax.rng_bit_generator(k, (8,)), (jax.ShapeDtypeStruct((4,), "uint32"),)),
]


@pytest.mark.parametrize(("name", "fun", "args"), CASES, ids=[name for name, _, _ in CASES])
def test_a_fragment_is_what_jit_lowers_the_equation_to(name: str, fun: Callable[..., Any], args: tuple[Any, ...]) -> None:
    eqn = next(eqn for eqn in equations(fun, *args) if eqn.primitive.name == name)
    avals = [v.aval for v in eqn.invars]
    fragment = lower_fragment(eqn.primitive, eqn.params, avals)
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False)) for a in avals]  # pyright: ignore
    if not any(jax.dtypes.issubdtype(s.dtype, jax.dtypes.extended) for s in structs):
        expected = from_mlir(lower(lambda *xs: eqn.primitive.bind(*xs, **eqn.params), *structs))
        legalize_chlo(expected)
        assert programs_equal(fragment, expected) == ""
    assert len(fragment.main.result_types) == len(eqn.outvars)
    assert all(isinstance(v.type, TensorType) for v in fragment.main.arguments)


def test_keys_have_their_physical_type() -> None:
    fragment = lower_fragment(jp.random_bits_p, {"bit_width": 32, "shape": (4,)}, [ShapedArray((), KEY.dtype)])
    assert [str(a.type) for a in fragment.main.arguments] == ["uint32[2]"]
    assert not any(op.name.startswith("sdy.") for op in fragment.walk())


def test_fragments_are_memoised() -> None:
    one = lower_fragment(jp.cumsum_p, {"axis": 0, "reverse": False}, [shaped(8)])
    assert lower_fragment(jp.cumsum_p, {"reverse": False, "axis": 0}, [shaped(8)]) is one
    assert lower_fragment(jp.cumsum_p, {"axis": 0, "reverse": True}, [shaped(8)]) is not one
    assert lower_fragment(jp.cumsum_p, {"axis": 0, "reverse": False}, [shaped(9)]) is not one
    assert lower_fragment(jp.cumsum_p, {"axis": 0, "reverse": False}, [shaped(8)], "tpu") is not one


def test_collectives_are_lowered_inside_their_mesh() -> None:
    def body(x: Any) -> Any:
        return jax.lax.psum(x, "x"), jax.lax.all_gather(x, "x"), jax.lax.axis_index("x"), jax.lax.ppermute(x, "y", [(0, 1)])

    mesh = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=P("x", "y"), out_specs=P(), check_vma=False)
    (outer,) = equations(mapped, jax.ShapeDtypeStruct((4, 8), "float32"))
    names = {}
    for eqn in outer.params["jaxpr"].eqns:
        fragment = lower_fragment(eqn.primitive, eqn.params, [v.aval for v in eqn.invars], mesh=eqn.ctx.cur_abstract_mesh)
        names[eqn.primitive.name] = [op.name for op in fragment.main.body.ops]
        assert fragment.main.body.terminator.name == "func.return"
    assert names["psum"] == ["stablehlo.all_reduce", "func.return"]
    assert names["all_gather"] == ["stablehlo.broadcast_in_dim", "stablehlo.all_gather", "func.return"]
    assert "stablehlo.partition_id" in names["axis_index"]
    assert names["ppermute"] == ["stablehlo.collective_permute", "func.return"]


def test_no_backend_is_asked_for() -> None:
    code = (
        "import numpy as np, jax\n"
        "from jax.extend.core.primitives import igamma_p\n"
        "from shardy_py.frontends.lowered import lower_fragment\n"
        "aval = jax.core.ShapedArray((8,), np.dtype('float32'))\n"
        "assert lower_fragment(igamma_p, {}, [aval, aval], 'tpu').main.arguments\n"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize("shape", [(8,), (8, 4), (2, 3, 5)])
def test_top_k_is_legalised_as_in_jaxlib(shape: tuple[int, ...]) -> None:
    module = lower(lambda x: jax.lax.top_k(x, 2), jax.ShapeDtypeStruct(shape, "float32"))
    program = from_mlir(module)
    legalize_chlo(program)
    assert programs_equal(program, from_mlir(run_pipeline(module, LEGALIZE_CHLO))) == ""


def test_operands_are_repeated_where_they_are_used_again() -> None:
    program = from_mlir(lower(lambda x: (jax.lax.tan(x), jax.lax.atan(x), jax.lax.erf(x)), V))
    legalize_chlo(program)
    assert [(op.name, len(op.operands)) for op in program.main.body.ops[:-1]] == [("stablehlo.tan", 1), ("chlo.atan", 1), ("chlo.erf", 2)]


TENSOR = "tensor<8x8xf32>"
SHARDINGS = ('[{"x"}, {?}]', '[{?}, {"x"}]', '[{"x"}, {"y"}]', '[{"y", ?}, {?}]', '[{?}, {"y", ?}]', '[{?}, {"x", "y"}]', '[{"y"}, {}]', "")


def stand_in(name: str, result: str, operands: Sequence[str]) -> str:
    """The stand-in of a CHLO op as elementwise ops that the passes in jaxlib know."""
    type_ = TensorType((8, 8), "float32")
    arguments = Block([type_] * len(operands)).arguments
    names: dict[Value, str] = dict(zip(arguments, operands, strict=True))
    ops, _ = expand(name, arguments, [type_], {}) or ([Op(name, arguments, [type_])], [])
    lines = []
    for i, op in enumerate(ops):
        names[op.result] = result if op is ops[-1] else f"{result}_{i}"
        known = {1: "tanh", 2: "add", 3: "clamp"}[len(op.operands)]
        lines.append(f"{names[op.result]} = stablehlo.{known} {', '.join(names[v] for v in op.operands)} : {TENSOR}")
    return "\n".join(lines)


def random_module(seed: int, special: Callable[[str, str], str]) -> str:
    """A function of random ops on 8x8 values with random shardings; `special` writes the ops under test."""
    rng = random.Random(seed)
    values, arguments, lines = [], [], []
    for i in range(rng.randint(2, 4)):
        sharding = rng.choice(SHARDINGS)
        values.append(f"%a{i}")
        arguments.append(f"%a{i}: {TENSOR}" + (f" {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}" if sharding else ""))
    for i in range(rng.randint(4, 12)):
        result, kind = f"%v{i}", rng.choice(("special", "special", "add", "transpose", "dot", "constraint"))
        one, other = rng.choice(values[-4:]), rng.choice(values)
        if kind == "special":
            lines.append(special(result, one))
        elif kind == "add":
            lines.append(f"{result} = stablehlo.add {one}, {other} : {TENSOR}")
        elif kind == "transpose":
            lines.append(f"{result} = stablehlo.transpose {one}, dims = [1, 0] : ({TENSOR}) -> {TENSOR}")
        elif kind == "dot":
            lines.append(
                f"{result} = stablehlo.dot_general {one}, {other}, contracting_dims = [1] x [0] : ({TENSOR}, {TENSOR}) -> {TENSOR}"
            )
        else:
            lines.append(f"{result} = sdy.sharding_constraint {one} <@mesh, {rng.choice(SHARDINGS) or '[{?}, {?}]'}> : {TENSOR}")
        values.append(result)
    outputs = [values[-1], rng.choice(values)]
    body = "\n".join(lines)
    return (
        f'sdy.mesh @mesh = <["x"=2, "y"=4]>\nfunc.func public @main({", ".join(arguments)}) -> ({TENSOR}, {TENSOR}) {{\n{body}\n'
        f"return {', '.join(outputs)} : {TENSOR}, {TENSOR}\n}}"
    )


@pytest.mark.parametrize("name", ["chlo.asin", "chlo.atan", "chlo.erf", "chlo.lgamma", "chlo.square", "chlo.tan"])
def test_stand_ins_propagate_like_what_they_stand_for(name: str) -> None:
    def op(result: str, operand: str) -> str:
        return f'{result} = "{name}"({operand}) : ({TENSOR}) -> {TENSOR}'

    for seed in range(30):
        expected = from_mlir(run_pipeline(random_module(seed, op))).main
        got = from_mlir(run_pipeline(random_module(seed, lambda result, operand: stand_in(name, result, [operand])))).main
        assert [a.sharding for a in got.arguments] == [a.sharding for a in expected.arguments], seed
        assert got.result_shardings == expected.result_shardings, seed
