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
from shardy_py.dialect.axis import AxisRef
from shardy_py.dialect.collectives import AllToAllParam, AllToAllParamList, AxisRefList, ListOfAxisRefLists, ManualAxes
from shardy_py.dialect.mesh import Mesh, MeshAxis
from shardy_py.dialect.rule import OpShardingRule
from shardy_py.dialect.sharding import DimensionSharding, TensorSharding, TensorShardingPerValue

_KINDS: tuple[type[Interned], ...] = (
    Mesh,
    MeshAxis,
    AxisRef,
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

    Raises ParseError if there is no attribute of that name, or the text is not one.
    """
    scanner = Scanner(text)
    mnemonic = mnemonic_of(scanner)
    if mnemonic is None:
        scanner.fail("expected '#sdy.'")
    kind = _ATTRIBUTES.get(mnemonic)
    if kind is None:
        scanner.fail(f"unknown attribute `{mnemonic}` in dialect `sdy`", fix=f"one of {', '.join(_ATTRIBUTES)}")
    return kind.parse(text)
