"""from_jaxpr: arguments, scopes, locations, findings and rules; what ops it makes is in test_native and test_readers."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive, jaxprs_in_params, primitives
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.frontends.jaxpr import EquationImporter, Scope, from_jaxpr
from shardy_py.frontends.meshes import Meshes
from shardy_py.ir import Op, Value
from shardy_py.rules.einsum import parse_einsum_rule
from tests.frontends.lowering import MESH, imported, traced

X = jax.ShapeDtypeStruct((8, 16), np.float32)
KEY = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)


def names(got: Any) -> list[str]:
    return [op.name for op in got.program.main.body.ops]


def test_arguments_and_results_get_names_and_shardings() -> None:
    rows, columns = TensorSharding.parse('#sdy.sharding<@mesh, [{"x"}, {}]>'), TensorSharding.parse('#sdy.sharding<@mesh, [{}, {"y", ?}]>')
    got = from_jaxpr(
        traced(lambda x, y: (x + y, x), X, X),
        mesh=MESH,
        in_shardings=[rows, None],
        out_shardings=[None, columns],
        argument_names=["x", "y"],
    )
    main = got.program.main
    assert got.program.meshes == {"mesh": MESH}
    assert [(v.name, v.sharding) for v in main.arguments] == [("x", rows), ("y", None)]
    assert main.result_shardings == [None, columns]
    assert got.findings == []


def test_a_list_of_another_length_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        from_jaxpr(traced(jnp.sin, X), mesh=MESH, in_shardings=[None, None])


def test_every_variable_of_every_call_site_has_a_value() -> None:
    block = jax.jit(lambda x: jnp.where(x > 0, x, 0) * 2)

    def body(c: Any, y: Any) -> Any:
        return c + block(y).sum(), y

    got = imported(lambda x: (block(x), block(x + 1), lax.scan(body, 0.0, x), lax.cond(x[0, 0] > 0, block, jnp.sin, x)), (X,))
    scopes = list(_all(got.scope))
    assert len({id(s.env) for s in scopes}) == len(scopes)
    blocks = [got.program.main.body, *(r for op in got.program.walk() for r in op.regions)]
    values = {v for b in blocks for v in b.arguments} | {v for op in got.program.walk() for v in op.results}
    for scope in scopes:
        for eqn in scope.jaxpr.eqns:
            assert {scope.env[v] for v in eqn.outvars} <= values
    first, second = (got.scope.children[i][0] for i, e in enumerate(got.scope.jaxpr.eqns) if e.primitive.name == "jit")
    assert first.jaxpr is second.jaxpr
    (scan,) = (i for i, e in enumerate(got.scope.jaxpr.eqns) if e.primitive.name == "scan")
    assert [s.jaxpr for s in got.scope.children[scan]] == [got.scope.jaxpr.eqns[scan].params["jaxpr"].jaxpr]


def _all(scope: Scope) -> Any:
    yield scope
    for index, children in scope.children.items():
        assert list(jaxprs_in_params(scope.jaxpr.eqns[index].params))
        for child in children:
            yield from _all(child)


def test_a_scan_that_is_unrolled_has_one_scope_per_copy() -> None:
    got = imported(lambda x: lax.scan(lambda c, y: (c + y, y), x[0], x, unroll=4), (X,))
    (children,) = got.scope.children.values()
    assert len(children) == 4


def test_uses_are_in_the_order_of_the_ops() -> None:
    got = imported(lambda x: (x @ x.T, jax.jit(jnp.sin)(x), lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), x + 1), (X,))
    position = {op: i for i, op in enumerate(got.program.walk())}
    values: list[Value] = [*got.program.main.arguments, *(v for op in got.program.walk() for v in op.results)]
    for value in values:
        places = [(position[op], i) for op, i in value.uses]
        assert places == sorted(places)
        assert all(op.operands[i] is value for op, i in value.uses)


def test_ops_are_located_in_the_callers_code() -> None:
    line = inspect.currentframe().f_lineno + 4  # pyright: ignore[reportOptionalMemberAccess]

    def f(x: Any) -> Any:
        with jax.named_scope("layer"):
            y = jnp.sin(x)
        return lax.scan(lambda c, z: (c + z, None), y[0], y)[0]

    got = imported(f, (X,))
    sine = next(op for op in got.program.walk() if op.name == "stablehlo.sine")
    place = got.program.locate(sine.location)
    assert place is not None
    assert (place.file, place.line, place.scope) == (__file__, line, "layer")
    loop = next(op for op in got.program.walk() if op.name == "stablehlo.while")
    places = {str(got.program.locate(op.location)) for op in loop.walk() if op.location is not None}
    assert places == {f"{__file__}:{line + 1} ({f.__qualname__})", f"{__file__}:{line + 1} ({f.__qualname__}.<locals>.<lambda>)"}


def test_a_rule_for_a_primitive_replaces_its_ops() -> None:
    rules = {"logistic": parse_einsum_rule("i j -> i j")}
    got = imported(lambda x: jax.nn.sigmoid(x) + 1, (X,), rules=rules)
    call = next(op for op in got.program.walk() if op.name == "stablehlo.custom_call")
    assert (call.attributes["call_target_name"], str(call.rule)) == ("logistic", str(rules["logistic"].bind([(8, 16)], [(8, 16)])))
    assert got.findings == []


def test_a_rule_for_the_target_of_a_foreign_call() -> None:
    def f(x: Any) -> Any:
        return jax.ffi.ffi_call("transpose_kernel", jax.ShapeDtypeStruct((16, 8), np.float32))(x)

    (finding,) = imported(f, (X,)).findings
    assert (finding.kind, finding.severity) == ("no-rule", "info")
    both = imported(lambda x, y: (f(x), f(x), jax.ffi.ffi_call("copy", y)(y)), (X, np.zeros((512, 512), np.float32))).findings
    assert [(each.kind, each.severity) for each in both] == [("no-rule", "info"), ("no-rule", "warning")]
    assert "transpose_kernel" in finding.message
    assert __file__ in finding.location
    got = imported(f, (X,), rules={"transpose_kernel": parse_einsum_rule("i j -> j i")})
    assert got.findings == []
    assert got.program.main.body.ops[0].rule is not None


def test_a_primitive_that_nobody_can_lower_is_one_op_and_a_finding() -> None:
    unknown = Primitive("unknown_of_this_test")
    unknown.def_abstract_eval(lambda x: x)
    got = imported(unknown.bind, (X,))
    assert names(got) == ["stablehlo.custom_call", "func.return"]
    assert [f.kind for f in got.findings] == ["no-rule"]
    assert "cannot be lowered" in got.findings[0].message


def test_a_primitive_of_the_users_is_read_through_its_lowering() -> None:
    doubled = Primitive("doubled_of_this_test")
    doubled.def_abstract_eval(lambda x: x)
    mlir.register_lowering(doubled, mlir.lower_fun(lambda x: x * 2, multiple_results=False))
    try:
        got = imported(doubled.bind, (X,))
    finally:
        del mlir._lowerings[doubled]
    assert names(got) == ["sdy.constant", "stablehlo.multiply", "func.return"]
    assert got.program.main.body.ops[1].primitive == "mul"


def test_rules_are_made_once_per_signature() -> None:
    got = imported(lambda x: jnp.sin(x) + jnp.sin(x * 2), (X,))
    sines = [op for op in got.program.walk() if op.name == "stablehlo.sine"]
    assert sines[0].rule is sines[1].rule is not None
    assert all(op.rule_decided for op in got.program.walk())


def test_rules_that_depend_on_neighbours_are_left_open() -> None:
    got = imported(lambda x: jnp.concatenate([x, x]), (X,))
    (join,) = (op for op in got.program.walk() if op.name == "stablehlo.concatenate")
    assert join.rule_decided is False


def test_keys_without_a_sharding_are_constrained_on_the_empty_mesh() -> None:
    got = imported(lambda key: key, (KEY,))
    assert names(got) == ["sdy.sharding_constraint"] * 2 + ["func.return"]
    assert got.program.meshes == {"mesh": MESH, "empty_mesh": Mesh(())}
    assert str(got.program.main.body.ops[0].result.sharding) == "#sdy.sharding<@empty_mesh, [{}]>"
    known = TensorSharding.parse("#sdy.sharding<@mesh, [{}]>")
    assert names(imported(lambda key: key, (KEY,), in_shardings=[known], out_shardings=[known])) == ["func.return"]


def test_a_captured_array_is_one_named_constant() -> None:
    row = np.arange(16, dtype=np.float32)
    got = imported(lambda x: x + jnp.asarray(row) * jnp.asarray(row), (X,))
    constants = [op for op in got.program.walk() if op.name == "sdy.constant"]
    assert {(str(op.result.type), op.result.name) for op in constants} == {("float32[16]", "const")}


def test_functions_are_named_as_jax_names_them() -> None:
    def f(x: Any) -> Any:
        relu = jax.jit(lambda x: jnp.maximum(x, 0))
        return relu(x) + relu(x * 2) + jax.jit(lambda x: x + 1)(x)

    got = imported(f, (X,))
    calls = [op for op in got.program.walk() if op.name == "sdy.named_computation"]
    assert [op.attributes["name"] for op in calls] == ["<lambda>", "<lambda>", "<lambda>_0"]


@pytest.mark.skipif(primitives.call_p.name != "call", reason="later versions of JAX evaluate such calls where they are")
@pytest.mark.parametrize(("primitive", "name"), [(primitives.call_p, "core_call"), (primitives.closed_call_p, "closed_call")])
def test_calls_without_a_name_are_named_after_their_primitive(primitive: Primitive, name: str) -> None:
    sine, outer = jax.make_jaxpr(jnp.sin)(X), jax.make_jaxpr(jax.jit(jnp.sin))(X)
    called = sine if name == "closed_call" else sine.jaxpr
    (eqn,) = outer.eqns
    calling = outer.replace(jaxpr=outer.jaxpr.replace(eqns=[eqn.replace(primitive=primitive, params={"call_jaxpr": called})]))
    (call,) = [op for op in from_jaxpr(calling, mesh=MESH).program.walk() if op.name == "sdy.named_computation"]
    assert call.attributes["name"] == name


def test_a_second_mesh_gets_a_name_of_its_own() -> None:
    other = AbstractMesh((8,), ("z",), axis_types=(AxisType.Auto,))
    got = imported(lambda x: jax.shard_map(jnp.sin, mesh=other, in_specs=P("z"), out_specs=P("z"))(x), (X,))
    assert got.program.meshes == {"mesh": MESH, "mesh_0": Mesh((("z", 8),))}
    (region,) = (op for op in got.program.walk() if op.name == "sdy.manual_computation")
    assert region.attributes["manual_axes"] == ("z",)
    assert region.attributes["in_shardings"] == (TensorSharding.parse('#sdy.sharding<@mesh_0, [{"z"}, {}]>'),)


def test_meshes_of_one_device_are_named_after_it() -> None:
    meshes = Meshes("mesh", MESH)
    assert meshes.one_device() == TensorSharding("maximal_mesh_0", ())
    assert meshes.name(Mesh((("z", 2),))) == "mesh_0"


def test_sharding_groups_are_numbered() -> None:
    importer = EquationImporter(Meshes("mesh", MESH), {}, "cpu")
    assert [importer.group_number(name) for name in ("a", None, "a", None, "b")] == [0, 1, 0, 2, 3]


def test_an_import_leaves_the_jaxpr_alone_and_repeats() -> None:
    jaxpr = traced(lambda x: lax.scan(lambda c, y: (c + y, jnp.argmax(y)), x[0], x), X)
    before = str(jaxpr)
    first, second = (from_jaxpr(jaxpr, mesh=MESH) for _ in range(2))
    assert str(jaxpr) == before
    assert [_text(op) for op in first.program.walk()] == [_text(op) for op in second.program.walk()]


def _text(op: Op) -> str:
    return f"{op.name} {[str(v.type) for v in op.operands]} {op.attributes.get('name')}"
