"""One step through one op: what each strategy does with agreeing, conflicting, closed, uneven and partial shardings."""

from __future__ import annotations

import pytest

from shardy_py.dialect import Mesh
from shardy_py.ir import TensorType
from shardy_py.passes.propagation.step import common_mesh, propagate_step, step_table
from tests.passes.oracle import jaxlib_program
from tests.passes.propagation.modules import (
    BACKWARD,
    BOTH,
    FORWARD,
    MESH,
    MESH_TEXT,
    NONE,
    dims,
    rule,
    sharding,
    step,
)

PRODUCT = "([i, k], [k, j])->([i, j]) {i=8, j=8, k=8} reduction={k}"
SUM = "([i, j], [i, j])->([i, j]) {i=8, j=8}"
SPLIT = "([ij])->([i, j]) {i=2, j=4}"
UNEVEN_SPLIT = "([ij])->([i, j]) {i=6, j=4}"
Case = tuple[str, tuple[str | None, ...], list[str]]

CASES: tuple[Case, ...] = (
    # to the result, to the other operand, and along the factor that the result lacks
    (PRODUCT, ('[{"a"}, {?}]', None, None), ['[{"a"}, {?}]', "-", '[{"a", ?}, {?}]']),
    (PRODUCT, ('[{"a"}, {"b"}]', None, None), ['[{"a"}, {"b"}]', '[{"b", ?}, {?}]', '[{"a", ?}, {?}]']),
    (PRODUCT, ("[{?}, {?}]", "[{?}, {?}]", '[{"a"}, {}]'), ['[{"a", ?}, {?}]', "[{?}, {?}]", '[{"a"}, {}]']),
    # one axis cannot shard two dimensions of the result: the first operand's comes first
    (PRODUCT, ('[{"a"}, {?}]', '[{?}, {"a"}]', None), ['[{"a"}, {?}]', '[{?}, {"a"}]', '[{"a", ?}, {?}]']),
    # closed dimensions and replicated axes take nothing
    (PRODUCT, ("[{}, {?}]", None, '[{"a"}, {?}]'), ["[{}, {?}]", "-", '[{"a"}, {?}]']),
    (PRODUCT, ('[{?}, {?}], replicated={"a"}', None, '[{"a"}, {?}]'), ['[{?}, {?}], replicated={"a"}', "-", '[{"a"}, {?}]']),
    (SUM, ('[{"a"}, {?}]', '[{"b"}, {?}]', None), ['[{"a"}, {?}]', '[{"b"}, {?}]', "-"]),
    (SUM, ('[{"a"}, {?}]', '[{"a", "b"}, {?}]', '[{"a", "b", "c"}, {?}]'), ['[{"a"}, {?}]', '[{"a", "b"}, {?}]', '[{"a", "b", "c"}, {?}]']),
    (SUM, ('[{"a", ?}, {?}]', '[{"a", "b", ?}, {?}]', None), ['[{"a", "b", ?}, {?}]'] * 3),
    # sub-axes: the longer one wins, and what is left of an axis may go elsewhere
    (SUM, ('[{"c":(1)2}, {?}]', None, None), ['[{"c":(1)2}, {?}]', '[{"c":(1)2, ?}, {?}]', '[{"c":(1)2, ?}, {?}]']),
    (SUM, ('[{"c":(1)2}, {?}]', '[{"c"}, {?}]', None), ['[{"c":(1)2}, {?}]', '[{"c"}, {?}]', '[{"c", ?}, {?}]']),
    # a dimension that the axis does not divide
    (SUM, ('[{"d"}, {?}]', None, None), ['[{"d"}, {?}]', '[{"d", ?}, {?}]', '[{"d", ?}, {?}]']),
    # a dimension of two factors: major axes first, an axis is cut where a factor ends
    (SPLIT, ('[{"a", "b"}]', None), ['[{"a", "b"}]', '[{"a", ?}, {"b", ?}]']),
    (SPLIT, ('[{"c"}]', None), ['[{"c"}]', '[{"c":(1)2, ?}, {"c":(2)2, ?}]']),
    (SPLIT, (None, '[{"a"}, {"b"}]'), ['[{"a", "b", ?}]', '[{"a"}, {"b"}]']),
    # a minor factor alone would need strides; an uneven one is only possible at the end
    (SPLIT, (None, '[{?}, {"b"}]'), ["-", '[{?}, {"b"}]']),
    (SPLIT, (None, '[{"a"}, {"d"}]'), ['[{"a", "d", ?}]', '[{"a"}, {"d"}]']),
    (SPLIT, ('[{"d"}]', None), ['[{"d"}]', "-"]),
    (SPLIT, (None, '[{"b", "a"}, {?}]'), ['[{"b", ?}]', '[{"b", "a"}, {?}]']),
    (UNEVEN_SPLIT, ('[{"c"}]', None), ['[{"c"}]', '[{"c":(1)2, ?}, {?}]']),
    (UNEVEN_SPLIT, ('[{"a", "c"}]', None), ['[{"a", "c"}]', '[{"a", ?}, {?}]']),
)


@pytest.mark.parametrize(("text", "shardings", "expected"), CASES)
def test_aggressive(text: str, shardings: tuple[str | None, ...], expected: list[str]) -> None:
    assert step(text, *shardings) == expected
    assert reference_step(text, shardings) == expected


def reference_step(text: str, shardings: tuple[str | None, ...]) -> list[str]:
    """The step as jaxlib's aggressive propagation of a function that is one custom call with the rule."""
    bound = rule(text)
    types = [TensorType(tuple(_size(bound.factor_sizes, d) for d in mapping), "float32") for mapping in bound.mappings]
    written = [f"tensor<{'x'.join(map(str, t.shape))}xf32>" for t in types]
    given = [None if s is None else f"#sdy.sharding<@mesh, {s}>" for s in shardings]
    arguments = ", ".join(f"%x{i}: {t}" + (f" {{sdy.sharding = {s}}}" if s else "") for i, (t, s) in enumerate(zip(written[:-1], given)))
    stated = f", sdy.sharding = #sdy.sharding_per_value<[{given[-1].removeprefix('#sdy.sharding')}]>" if given[-1] else ""
    operands = ", ".join(f"%x{i}" for i in range(len(types) - 1))
    module = f"""{MESH_TEXT}
      func.func @main({arguments}) -> {written[-1]} {{
        %y = stablehlo.custom_call @known({operands}) {{has_side_effect = true, sdy.sharding_rule = {bound}{stated}}}
          : ({", ".join(written[:-1])}) -> {written[-1]}
        return %y : {written[-1]}
      }}"""
    main = jaxlib_program(module, "sdy-aggressive-propagate").main
    return [dims(v.sharding) for v in (*main.arguments, main.body.ops[0].result)]


def _size(sizes: tuple[int, ...], factors: tuple[int, ...]) -> int:
    size = 1
    for f in factors:
        size *= sizes[f]
    return size


def test_basic_gives_all_tensors_the_same_axes() -> None:
    """Where one tensor cannot take an axis, no tensor gets it."""
    conflict = ('[{"a"}, {?}]', '[{?}, {"a"}]', None)
    assert step(PRODUCT, *conflict, strategy="basic") == [*conflict[:2], "-"]
    assert step(PRODUCT, '[{"a"}, {"b"}]', None, None, strategy="basic") == ['[{"a"}, {"b"}]', '[{"b", ?}, {?}]', '[{"a", ?}, {?}]']
    assert step(SUM, '[{"a"}, {?}]', "[{}, {?}]", None, strategy="basic") == ['[{"a"}, {?}]', "[{}, {?}]", "-"]
    assert step(SUM, '[{"a"}, {?}]', "[{}, {?}]", None) == ['[{"a"}, {?}]', "[{}, {?}]", '[{"a", ?}, {?}]']


def test_conservative_propagates_no_sub_axes() -> None:
    assert step(SUM, '[{"c":(1)2}, {?}]', None, None, conservative=True) == ['[{"c":(1)2}, {?}]', "-", "-"]
    assert step(SPLIT, '[{"c"}]', None, conservative=True) == ['[{"c"}]', "-"]
    assert step(SPLIT, '[{"a", "c"}]', None, conservative=True) == ['[{"a", "c"}]', '[{"a", ?}, {"c", ?}]']
    assert step(SUM, '[{"c":(1)2}, {?}]', None, None, conservative=True, strategy="basic") == ['[{"c":(1)2}, {?}]', "-", "-"]


def test_elementwise_ops_prefer_the_factor_that_is_sharded_more() -> None:
    conflict = ('[{"a"}, {?}]', '[{?}, {"a", "b"}]', None)
    assert step(SUM, *conflict) == [*conflict[:2], '[{"a", ?}, {?}]']
    assert step(SUM, *conflict, elementwise=True) == [*conflict[:2], '[{?}, {"a", "b", ?}]']


def test_elementwise_ops_push_nothing_sideways_that_the_result_did_not_take() -> None:
    shardings = ('[{"a"}, {?}]', "[{?}, {?}]", "[{}, {?}]")
    assert step(SUM, *shardings) == ['[{"a"}, {?}]', '[{"a", ?}, {?}]', "[{}, {?}]"]
    assert step(SUM, *shardings, elementwise=True) == list(shardings)


def test_larger_tensors_decide() -> None:
    """The axis is wanted for i by the smaller operand and for j by the larger one."""
    text = "([i], [i, j])->([i, j]) {i=8, j=8}"
    assert step(text, '[{"a"}]', '[{?}, {"a"}]', None) == ['[{"a"}]', '[{?}, {"a"}]', '[{?}, {"a", ?}]']


def test_directions() -> None:
    before = ("[{?}, {?}]", "[{?}, {?}]", '[{"a"}, {"b"}]')
    assert step(PRODUCT, *before, directions=FORWARD) == list(before)
    assert step(PRODUCT, *before, directions=BACKWARD) == ['[{"a", ?}, {?}]', '[{?}, {"b", ?}]', '[{"a"}, {"b"}]']
    assert step(PRODUCT, *before, directions=(NONE, BOTH, BOTH)) == ["[{?}, {?}]", '[{?}, {"b", ?}]', '[{"a"}, {"b"}]']
    assert step(PRODUCT, *before, directions=NONE) == list(before)
    assert step(PRODUCT, '[{"a"}, {?}]', None, None, directions=BACKWARD) == ['[{"a"}, {?}]', "-", "-"]
    # with FORWARD, operands exchange nothing that the result contradicts
    assert step(SUM, '[{"a"}, {?}]', None, '[{"b"}, {?}]', directions=FORWARD) == ['[{"a"}, {?}]', "-", '[{"b"}, {?}]']


def test_unreduced_axes_are_not_used_again() -> None:
    assert step("([i])->([i]) {i=8}", '[{"a"}]', '[{?}], unreduced={"a"}') == ['[{"a"}]', '[{?}], unreduced={"a"}']


def test_common_mesh() -> None:
    meshes = {"mesh": MESH, "twin": MESH, "other": Mesh((("a", 2),)), "empty": Mesh(()), "one": Mesh((), (3,))}
    on = {name: sharding("[{?}]").parse(f"#sdy.sharding<@{name}, [{{?}}]>") for name in meshes}
    assert common_mesh([None, None], meshes) is None
    assert common_mesh([None, on["mesh"], on["empty"]], meshes) == ("mesh", MESH)
    assert common_mesh([on["twin"], on["mesh"]], meshes) == ("twin", MESH)
    assert common_mesh([on["mesh"], on["other"]], meshes) is None


def test_no_step_without_a_common_mesh_or_on_one_device() -> None:
    meshes = {"mesh": MESH, "other": Mesh((("a", 2),)), "one": Mesh((), (3,))}
    identity = rule("([i])->([i]) {i=8}")
    on_other = sharding("[{?}]").parse("#sdy.sharding<@other, [{?}]>")
    on_one = sharding("[]").parse("#sdy.sharding<@one, []>")
    assert propagate_step(identity, (BOTH,), [sharding('[{"a"}]'), on_other], meshes) == ()
    assert propagate_step(identity, (BOTH,), [on_one, None], meshes) == ()


def test_tables_are_shared_by_equal_meshes_and_remember_steps() -> None:
    table = step_table((("mesh", MESH),), "aggressive", False)
    assert step_table((("mesh", Mesh(MESH.axes)),), "aggressive", False) is table
    assert step_table((("mesh", MESH),), "basic", False) is not table
    assert step_table((("mesh", MESH),), "aggressive", True) is not table
