r"""Reads SDY text; each value reads itself with `parse` and writes itself with `str`.

Accepts what MLIR's parser accepts for these attributes, with or without the `#sdy.name` before it, and for sharding
lists the short form that stands in ops. Grammar, with names and numbers as in MLIR:

    mesh        ::= "<" "[" ( string "=" int ),* "]" ( "," "device_ids" "=" "[" int,+ "]" )? ">"
    axis        ::= string ( ":" "(" int ")" int )?
    dimension   ::= "{" axis,* ","? "?"? "}" ( "p" digits )?
    sharding    ::= "<" ( "@" name | "mesh" mesh ) "," "[" dimension,* "]" named_axes* ">"
    named_axes  ::= "," ( "replicated" | "unreduced" ) "=" "{" axis,+ "}"
    rule        ::= "<" tensors "->" tensors ( "{" ( factor "=" int ),* "}" )? factors* ( "," "custom" )? ">"
    tensors     ::= "(" ( "[" factor*,* "]" ),+ ")"
    factors     ::= ( "reduction" | "need_replication" | "permutation" | "blocked_propagation" ) "=" "{" factor,* "}"
"""

from __future__ import annotations

from shardy_py.dialect._intern import Interned, mnemonic_of
from shardy_py.dialect._scan import Scanner
from shardy_py.dialect.axis import AxisRef, SubAxis
from shardy_py.dialect.collectives import AllToAllParam, AllToAllParamList, AxisRefList, ListOfAxisRefLists, ManualAxes
from shardy_py.dialect.mesh import Mesh, MeshAxis
from shardy_py.dialect.rule import OpShardingRule
from shardy_py.dialect.sharding import DimensionSharding, TensorSharding, TensorShardingPerValue

_KINDS: tuple[type[Interned], ...] = (
    Mesh,
    MeshAxis,
    AxisRef,
    SubAxis,
    DimensionSharding,
    TensorSharding,
    TensorShardingPerValue,
    OpShardingRule,
    AxisRefList,
    ListOfAxisRefLists,
    AllToAllParam,
    AllToAllParamList,
    ManualAxes,
)
_ATTRIBUTES = {kind.mnemonic: kind for kind in _KINDS}


def parse_attribute(text: str) -> Interned:
    """Reads any SDY attribute that begins with `#sdy.name` or, as MLIR writes those without angle brackets, `#sdy<name`.

    Raises:
        ParseError: There is no attribute of that name, or the text is not one.
    """
    scanner = Scanner(text)
    mnemonic = mnemonic_of(scanner)
    if mnemonic is None:
        scanner.fail("expected '#sdy.'")
    kind = _ATTRIBUTES.get(mnemonic)
    if kind is None:
        scanner.fail(f"unknown attribute `{mnemonic}` in dialect `sdy`", fix=f"one of {', '.join(_ATTRIBUTES)}")
    return kind.parse(text)


def parse_mesh(text: str) -> Mesh:
    """Reads `<["x"=2, "y"=4], device_ids=[...]>`."""
    return Mesh.parse(text)


def parse_axis_ref(text: str) -> AxisRef:
    """Reads `"x"` or `"x":(1)2`."""
    return AxisRef.parse(text)


def parse_dimension_sharding(text: str) -> DimensionSharding:
    """Reads `{"x", ?}p1`."""
    return DimensionSharding.parse(text)


def parse_sharding(text: str) -> TensorSharding:
    """Reads `<@mesh, [{"x"}, {?}], replicated={"y"}>`."""
    return TensorSharding.parse(text)


def parse_sharding_per_value(text: str) -> TensorShardingPerValue:
    """Reads `[<@mesh, [{"x"}]>, <@mesh, []>]`."""
    return TensorShardingPerValue.parse(text)


def parse_rule(text: str) -> OpShardingRule:
    """Reads `<([i, k], [k, j])->([i, j]) {i=8, j=4, k=2} reduction={k}>`."""
    return OpShardingRule.parse(text)


def parse_axis_ref_list(text: str) -> AxisRefList:
    """Reads `{"x", "y":(1)2}`."""
    return AxisRefList.parse(text)


def parse_list_of_axis_ref_lists(text: str) -> ListOfAxisRefLists:
    """Reads `[{"x"}, {}]`."""
    return ListOfAxisRefLists.parse(text)


def parse_all_to_all_param_list(text: str) -> AllToAllParamList:
    """Reads `[{"x"}: 0->1, {"y"}: 2->3]`."""
    return AllToAllParamList.parse(text)


def parse_manual_axes(text: str) -> ManualAxes:
    """Reads `{"x", "y"}`."""
    return ManualAxes.parse(text)
