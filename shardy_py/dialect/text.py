r"""Reads SDY text; each value's `str` writes it.

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

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar, cast

from shardy_py.dialect._intern import Interned
from shardy_py.dialect._scan import Scanner
from shardy_py.dialect.axis import AxisRef, SubAxis
from shardy_py.dialect.collectives import AllToAllParam, AllToAllParamList, AxisRefList, ListOfAxisRefLists, ManualAxes
from shardy_py.dialect.mesh import Mesh, MeshAxis
from shardy_py.dialect.rule import LETTERS, OpShardingRule, factor_symbol
from shardy_py.dialect.sharding import DimensionSharding, TensorSharding, TensorShardingPerValue

V = TypeVar("V", bound=Interned)

_ATTRIBUTE = re.compile(r"#sdy([.<])([a-z_]+)")
_PRIORITY = re.compile(r"p([0-9]+)\Z")
_FACTOR_NUMBER = re.compile(r"z_([0-9]*)")
_SPECIAL_FACTORS = ("reduction", "need_replication", "permutation", "blocked_propagation")


@lru_cache(maxsize=8192)
def parse(kind: type[V], text: str) -> V:
    """Reads a value of the given class; see the grammar above.

    Raises:
        ParseError: The text is not such a value.
    """
    name, read = _KINDS[kind]
    scanner = Scanner(text)
    found = _ATTRIBUTE.match(text, scanner.position)
    if found is None:
        value = read(scanner)
    else:
        if found.group(2) != name:
            scanner.fail(f"expected '#sdy.{name}', found '{found.group()}'")
        scanner.accept(found.group())
        value = read(scanner)
        if found.group(1) == "<":
            scanner.expect(">")
    scanner.end()
    return cast("V", value)


def parse_attribute(text: str) -> Interned:
    """Reads any SDY attribute that begins with `#sdy.name` or, as MLIR writes those without angle brackets, `#sdy<name`.

    Raises:
        ParseError: There is no attribute of that name, or the text is not one.
    """
    scanner = Scanner(text)
    found = _ATTRIBUTE.match(text, scanner.position)
    if found is None:
        scanner.fail("expected '#sdy.'")
    kind = _ATTRIBUTES.get(found.group(2))
    if kind is None:
        scanner.fail(f"unknown attribute `{found.group(2)}` in dialect `sdy`", fix=f"one of {', '.join(_ATTRIBUTES)}")
    return parse(kind, text)


def parse_mesh(text: str) -> Mesh:
    """Reads `<["x"=2, "y"=4], device_ids=[...]>`."""
    return parse(Mesh, text)


def parse_axis_ref(text: str) -> AxisRef:
    """Reads `"x"` or `"x":(1)2`."""
    return parse(AxisRef, text)


def parse_dimension_sharding(text: str) -> DimensionSharding:
    """Reads `{"x", ?}p1`."""
    return parse(DimensionSharding, text)


def parse_sharding(text: str) -> TensorSharding:
    """Reads `<@mesh, [{"x"}, {?}], replicated={"y"}>`."""
    return parse(TensorSharding, text)


def parse_sharding_per_value(text: str) -> TensorShardingPerValue:
    """Reads `[<@mesh, [{"x"}]>, <@mesh, []>]`."""
    return parse(TensorShardingPerValue, text)


def parse_rule(text: str) -> OpShardingRule:
    """Reads `<([i, k], [k, j])->([i, j]) {i=8, j=4, k=2} reduction={k}>`."""
    return parse(OpShardingRule, text)


def parse_axis_ref_list(text: str) -> AxisRefList:
    """Reads `{"x", "y":(1)2}`."""
    return parse(AxisRefList, text)


def parse_list_of_axis_ref_lists(text: str) -> ListOfAxisRefLists:
    """Reads `[{"x"}, {}]`."""
    return parse(ListOfAxisRefLists, text)


def parse_all_to_all_param_list(text: str) -> AllToAllParamList:
    """Reads `[{"x"}: 0->1, {"y"}: 2->3]`."""
    return parse(AllToAllParamList, text)


def parse_manual_axes(text: str) -> ManualAxes:
    """Reads `{"x", "y"}`."""
    return parse(ManualAxes, text)


def read_mesh(scanner: Scanner) -> Mesh:
    """A mesh, at the cursor."""
    scanner.accept_keyword("mesh")
    scanner.expect("<")
    start = scanner.position
    axes = scanner.listed("[", "]", lambda: read_mesh_axis(scanner))
    device_ids: tuple[int, ...] = ()
    if scanner.accept(","):
        if not scanner.accept_keyword("device_ids"):
            scanner.fail("expected 'device_ids'")
        scanner.expect("=")
        device_ids = scanner.listed("[", "]", scanner.integer, may_be_empty=False)
    scanner.expect(">")
    return scanner.make(start, lambda: Mesh(axes, device_ids))


def read_mesh_axis(scanner: Scanner) -> MeshAxis:
    """`"x"=2`, at the cursor."""
    start = scanner.position
    name = scanner.string()
    scanner.expect("=")
    size = scanner.integer()
    return scanner.make(start, lambda: MeshAxis(name, size))


def read_axis(scanner: Scanner) -> AxisRef:
    """An axis or a sub-axis, at the cursor."""
    name = scanner.string()
    if not scanner.accept(":"):
        return AxisRef(name)
    part = read_sub_axis(scanner)
    return AxisRef(name, part.pre_size, part.size)


def read_sub_axis(scanner: Scanner) -> SubAxis:
    """`(1)2`, at the cursor."""
    scanner.expect("(")
    pre_size = scanner.integer()
    scanner.expect(")")
    return SubAxis(pre_size, scanner.integer())


def read_axes(scanner: Scanner, *, may_be_empty: bool) -> tuple[AxisRef, ...]:
    """`{"x", "y":(1)2}`, at the cursor."""
    return scanner.listed("{", "}", lambda: read_axis(scanner), may_be_empty=may_be_empty)


def read_dimension(scanner: Scanner) -> DimensionSharding:
    """The sharding of one dimension, at the cursor."""
    scanner.expect("{")
    axes: list[AxisRef] = []
    is_open = scanner.accept("?")
    while not is_open and not scanner.at("}"):
        axes.append(read_axis(scanner))
        if scanner.at("}"):
            break
        scanner.expect(",")
        is_open = scanner.accept("?")
        if not is_open and scanner.at("}"):
            scanner.fail("expected string", fix="leave out the comma, or write '?' after it for an open dimension")
    scanner.expect("}")
    start = scanner.position
    word = scanner.keyword()
    return DimensionSharding(tuple(axes), not is_open, None if word is None else _priority(scanner, word, start))


def read_sharding(scanner: Scanner) -> TensorSharding:
    """The sharding of a tensor, at the cursor."""
    scanner.expect("<")
    if scanner.at("@"):
        mesh: str | Mesh = scanner.symbol()
    elif scanner.accept_keyword("mesh"):
        mesh = read_mesh(scanner)
    else:
        scanner.fail("expected a mesh", fix="""write a mesh's name, '@mesh', or the mesh itself, 'mesh<["x"=2]>'""")
    scanner.expect(",")
    dims = scanner.listed("[", "]", lambda: read_dimension(scanner))
    named: dict[str, tuple[AxisRef, ...]] = {}
    while scanner.accept(","):
        start = scanner.position
        word = scanner.keyword()
        if word not in ("replicated", "unreduced") or word in named:
            scanner.fail("expected valid named axis list after comma", start, fix="use 'replicated={...}' and 'unreduced={...}', once each")
        scanner.expect("=")
        named[word] = read_axes(scanner, may_be_empty=False)
    scanner.expect(">")
    return TensorSharding(mesh, dims, named.get("replicated", ()), named.get("unreduced", ()))


def read_shardings(scanner: Scanner) -> TensorShardingPerValue:
    """A list of shardings, at the cursor, in angle brackets or not."""
    bracketed = scanner.accept("<")
    shardings = scanner.listed("[", "]", lambda: _listed_sharding(scanner))
    if bracketed:
        scanner.expect(">")
    return TensorShardingPerValue(shardings)


def read_rule(scanner: Scanner) -> OpShardingRule:
    """A sharding rule, at the cursor."""

    def tensors() -> tuple[tuple[tuple[int, ...], ...], ...]:
        return scanner.listed("(", ")", lambda: scanner.listed("[", "]", lambda: _factors(scanner)), may_be_empty=False)

    scanner.expect("<")
    operands = tensors()
    scanner.expect("->")
    results = tensors()
    sizes: list[int] = []
    if scanner.at("{"):
        scanner.listed("{", "}", lambda: sizes.append(_factor_size(scanner, len(sizes))))
    special: dict[str, tuple[int, ...]] = {}
    for name in _SPECIAL_FACTORS:
        if scanner.accept_keyword(name):
            scanner.expect("=")
            special[name] = scanner.listed("{", "}", lambda: _factor(scanner))
    is_custom = scanner.accept(",")
    if is_custom and not scanner.accept_keyword("custom"):
        scanner.fail("expected 'custom'")
    if not scanner.accept(">"):
        scanner.fail("expected '>'", fix=f"what may follow is, in this order: {', '.join(_SPECIAL_FACTORS)}, then ', custom'")
    return OpShardingRule(tuple(sizes), operands, results, **special, is_custom=is_custom)


def read_axis_list(scanner: Scanner) -> AxisRefList:
    """`{"x"}`, at the cursor."""
    return AxisRefList(read_axes(scanner, may_be_empty=True))


def read_axis_lists(scanner: Scanner) -> ListOfAxisRefLists:
    """`[{"x"}, {}]`, at the cursor."""
    return ListOfAxisRefLists(scanner.listed("[", "]", lambda: read_axis_list(scanner)))


def read_all_to_all_param(scanner: Scanner) -> AllToAllParam:
    """`{"x"}: 0->1`, at the cursor."""
    axes = read_axes(scanner, may_be_empty=False)
    scanner.expect(":")
    source = scanner.integer()
    scanner.expect("->")
    return AllToAllParam(axes, source, scanner.integer())


def read_all_to_all_params(scanner: Scanner) -> AllToAllParamList:
    """`[{"x"}: 0->1]`, at the cursor."""
    return AllToAllParamList(scanner.listed("[", "]", lambda: read_all_to_all_param(scanner)))


def read_manual_axes(scanner: Scanner) -> ManualAxes:
    """`{"x", "y"}`, at the cursor."""
    return ManualAxes(scanner.listed("{", "}", scanner.string))


def _listed_sharding(scanner: Scanner) -> TensorSharding:
    scanner.accept("#sdy.sharding")
    return read_sharding(scanner)


def _priority(scanner: Scanner, word: str, start: int) -> int:
    match = _PRIORITY.match(word)
    if match is None:
        scanner.fail(f"expecting priority in format 'p<number>', got: {word}", start)
    digits = match.group(1)
    if len(digits) > 1 and digits[0] == "0":
        scanner.fail(f"priorities with leading zeros are not allowed, got: {word}", start)
    if int(digits) >= 1 << 63:
        scanner.fail(f"expecting integer priority, got: {word}", start)
    return int(digits)


def _factor_size(scanner: Scanner, expected: int) -> int:
    start = scanner.position
    factor = _factor(scanner)
    if factor != expected:
        scanner.fail(
            "expecting factor indices to be ordered like an iota ([0,1,2,...], e.g. {i=#, j=#, ...}). "
            f"Expecting factor index symbol '{factor_symbol(expected)}', received: '{factor_symbol(factor)}'",
            start,
        )
    scanner.expect("=")
    return scanner.integer()


def _factor(scanner: Scanner) -> int:
    start = scanner.position
    first, *rest = _factors(scanner) or (-1,)
    if first < 0:
        scanner.fail("expected valid keyword", fix="write a factor: 'i' to 'z', or 'z_1', 'z_2', ...")
    if rest:
        scanner.fail(f"expecting single factor symbol: {''.join(map(factor_symbol, rest))}", start + len(factor_symbol(first)))
    return first


def _factors(scanner: Scanner) -> tuple[int, ...]:
    """The factors of one dimension, such as `ijz_1`; none if no identifier comes next."""
    start = scanner.position
    word = scanner.keyword() or ""
    factors: list[int] = []
    at = 0
    while at < len(word):
        number = _FACTOR_NUMBER.match(word, at)
        if number is not None:
            digits = number.group(1)
            if not digits:
                scanner.fail(f"expecting integer after 'z_'. Received: '{word[at:]}'", start + at)
            if digits[0] == "0":
                scanner.fail(f"expecting positive integer without leading zeros. Received: '{digits}'", start + at + 2)
            factors.append(len(LETTERS) + int(digits) - 1)
            at = number.end()
        else:
            letter = LETTERS.find(word[at])
            if letter < 0:
                scanner.fail(f"expecting symbol from 'i' to 'z'. Received: '{word[at]}'", start + at)
            factors.append(letter)
            at += 1
    return tuple(factors)


_KINDS: dict[type[Interned], tuple[str, Callable[[Scanner], Any]]] = {
    Mesh: ("mesh", read_mesh),
    MeshAxis: ("mesh_axis", read_mesh_axis),
    AxisRef: ("axis_ref", read_axis),
    SubAxis: ("sub_axis_info", read_sub_axis),
    DimensionSharding: ("dimension_sharding", read_dimension),
    TensorSharding: ("sharding", read_sharding),
    TensorShardingPerValue: ("sharding_per_value", read_shardings),
    OpShardingRule: ("op_sharding_rule", read_rule),
    AxisRefList: ("axis_ref_list", read_axis_list),
    ListOfAxisRefLists: ("list_of_axis_ref_lists", read_axis_lists),
    AllToAllParam: ("all_to_all_param", read_all_to_all_param),
    AllToAllParamList: ("all_to_all_param_list", read_all_to_all_params),
    ManualAxes: ("manual_axes", read_manual_axes),
}

_ATTRIBUTES = {name: kind for kind, (name, _) in _KINDS.items()}
