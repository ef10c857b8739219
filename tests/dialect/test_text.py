"""Good and bad SDY text: what reads, what it prints as, and where an error points."""

from __future__ import annotations

import pytest

from shardy_py.dialect import (
    AllToAllParam,
    AllToAllParamList,
    AxisRef,
    AxisRefList,
    DimensionSharding,
    ListOfAxisRefLists,
    ManualAxes,
    Mesh,
    MeshAxis,
    OpShardingRule,
    TensorSharding,
    TensorShardingPerValue,
    parse_attribute,
)
from shardy_py.errors import ParseError

M, S, R = "#sdy.mesh", "#sdy.sharding", "#sdy.op_sharding_rule"

# (text, what it prints as; None for the same)
GOOD = [
    (f'{M}<["a"=2, "b"=4]>', None),
    (f"{M}<[]>", None),
    (f"{M}<[], device_ids=[5]>", None),
    (f'{M}<["a"=2, "b"=2], device_ids=[3, 2, 1, 0]>', None),
    (f'{M}<["a"=2,"b"=2],device_ids=[3,2,1,0]>', f'{M}<["a"=2, "b"=2], device_ids=[3, 2, 1, 0]>'),
    (f'{M}<["a"=2], device_ids=[0, 1]>', f'{M}<["a"=2]>'),
    (f'{M}<["a"=1], device_ids=[0]>', f'{M}<["a"=1]>'),
    (f'{M}<["a"=0x10]>', f'{M}<["a"=16]>'),
    (f'{M}<["a"=07]>', f'{M}<["a"=7]>'),
    (f'{M}<["a"=9223372036854775807]>', None),
    (f'{M}< [ "a" = 2 ] , device_ids = [ 1 , 0 ] >', f'{M}<["a"=2], device_ids=[1, 0]>'),
    (f'{M}<[""=2]>', None),
    (rf'{M}<["a\n\t\"\\\00\41"=7]>', rf'{M}<["a\0A\09\22\\\00A"=7]>'),
    (f'{M}<["é"=2]>', rf'{M}<["\C3\A9"=2]>'),
    (f'{M}<["tab\tx"=2]>', rf'{M}<["tab\09x"=2]>'),
    (f"{S}<@mesh, []>", None),
    (f'{S}<@mesh, [{{}}, {{?}}, {{"a"}}, {{"a", ?}}]>', None),
    (f'{S}<@mesh, [{{}}p0, {{?}}p3, {{"a"}}p12, {{"a", ?}}p1]>', None),
    (f"{S}<@mesh, [{{?}} p3]>", f"{S}<@mesh, [{{?}}p3]>"),
    (f'{S}<@mesh, [{{"a":(1)2, "a":(0)-1}}]>', None),
    (f'{S}<@mesh, [{{"a" : ( 1 ) 2}}]>', f'{S}<@mesh, [{{"a":(1)2}}]>'),
    (f'{S}<@mesh, [{{"a"}}], replicated={{"b"}}, unreduced={{"c", "d":(1)2}}>', None),
    (f'{S}<@mesh, [{{"a"}}], unreduced={{"c"}}, replicated={{"b"}}>', f'{S}<@mesh, [{{"a"}}], replicated={{"b"}}, unreduced={{"c"}}>'),
    (f'{S}<@mesh, [{{"a"}}], unreduced = {{"c"}}>', f'{S}<@mesh, [{{"a"}}], unreduced={{"c"}}>'),
    (f'{S}<@"my mesh", []>', None),
    (f'{S}<@"mesh-1", []>', None),
    (f'{S}<@"1a", []>', None),
    (f"{S}<@_m.1$, []>", None),
    (f'{S}<@"a.b$1", []>', f"{S}<@a.b$1, []>"),
    (rf'{S}<@"a\22b", []>', None),
    (f'{S}<@"é", []>', rf'{S}<@"\C3\A9", []>'),
    (f'{S}<mesh<["a"=2], device_ids=[1, 0]>, [{{"a"}}]>', None),
    (f"{S}<mesh<[], device_ids=[3]>, []>", None),
    (f'{S}< mesh < [ "a" = 2 ] > , [ {{ "a" , ? }} p1 ] >', f'{S}<mesh<["a"=2]>, [{{"a", ?}}p1]>'),
    (f"{S}<@mesh, // a comment\n []>", f"{S}<@mesh, []>"),
    (f"{S}_per_value<[]>", None),
    (f'{S}_per_value<[<@mesh, [{{"a"}}]>, <mesh<["a"=2]>, []>]>', None),
    (f"{R}<([i, k], [k, j])->([i, j]) {{i=8, j=16, k=8}} reduction={{k}}>", None),
    (f"{R}<([i,k],[k,j])->([i,j]){{i=8,j=16,k=8}}reduction={{k}}>", f"{R}<([i, k], [k, j])->([i, j]) {{i=8, j=16, k=8}} reduction={{k}}>"),
    (
        f"{R}<([i, j, k, l])->([i]) {{i=2, j=2, k=2, l=2}} reduction={{j}} need_replication={{k}} permutation={{l}} blocked_propagation={{i, l}}, custom>",  # noqa: E501
        None,
    ),
    (f"{R}<([ij, k])->([i, jk]) {{i=8, j=16, k=8}}, custom>", None),
    (f"{R}<([z_1z_10z])->([zz_1, z_2i]) {{i=8}}>", None),
    (f"{R}<([], [i])->([]) {{i=2}}>", None),
    (f"{R}<([])->([])>", None),
    (f"{R}<([])->([]) {{}}>", f"{R}<([])->([])>"),
    (f"{R}<([i])->([i]) reduction={{i}}>", None),
    (f"{R}<([i])->([i]) , custom>", f"{R}<([i])->([i]), custom>"),
    (f"{R}<([i])->([i]) {{i=8}} reduction={{}}>", f"{R}<([i])->([i]) {{i=8}}>"),
    (f"{R}<([i])->([i]) {{i=-3}} reduction={{z_2}}>", None),
    (f"{R}<([i, ])->([i]) {{i=8}}>", f"{R}<([i, #sdy.dim_mapping])->([i]) {{i=8}}>"),
    (f"{R}<([,])->([i]) {{i=8}}>", f"{R}<([#sdy.dim_mapping, #sdy.dim_mapping])->([i]) {{i=8}}>"),
    ('#sdy<manual_axes{"a", "b"}>', None),
    ("#sdy<manual_axes{}>", None),
    ('#sdy<axis_ref_list{"a", "b":(1)2}>', None),
    ("#sdy<axis_ref_list{}>", None),
    ('#sdy<list_of_axis_ref_lists[{"a", "b"}, {}]>', None),
    ("#sdy<list_of_axis_ref_lists[]>", None),
    ('#sdy<all_to_all_param{"a"}: 0->1>', None),
    ('#sdy<all_to_all_param {"a"} : 0 -> -1>', '#sdy<all_to_all_param{"a"}: 0->-1>'),
    ('#sdy<all_to_all_param_list[{"a"}: 0->1, {"b", "c"}: 2->3]>', None),
    ("#sdy<all_to_all_param_list[]>", None),
]

# (text with ¦ where the error points, error)
BAD = [
    ('#sdy.mesh<[¦"a"=0]>', "axis size must be at least 1, got: 0"),
    ('#sdy.mesh<[¦"a"=- 7]>', "axis size must be at least 1, got: -7"),
    ('#sdy.mesh<¦["a"=2, "a"=2]>', 'duplicate axis name: "a"'),
    ("#sdy.mesh<¦[], device_ids=[-5]>", "device id must be non-negative, got: -5"),
    ("#sdy.mesh<¦[], device_ids=[1, 2]>", "axes is empty and device_ids has more than one element"),
    ('#sdy.mesh<¦["a"=2], device_ids=[1]>', "total product of axis sizes must match total number of device ids, got: 2 != 1"),
    ('#sdy.mesh<¦["a"=2], device_ids=[1, 3]>', "sorted device ids must be iota(product(axes)), got: 1, 3"),
    ("#sdy.mesh<[], device_ids=[¦]>", "expected integer value"),
    ('#sdy.mesh<["a"=2], ¦ids=[1, 0]>', "expected 'device_ids'"),
    ('#sdy.mesh<["a"=2] ¦device_ids=[1, 0]>', "expected '>'"),
    ('#sdy.mesh<["a"=¦9223372036854775808]>', "integer value too large"),
    ('#sdy.mesh<["a"=¦1.5]>', "expected integer value"),
    ('#sdy.mesh<["a"=¦+2]>', "expected integer value"),
    ('#sdy.mesh<["a"=¦]>', "expected integer value"),
    ('#sdy.mesh<["a"=2¦x]>', "expected ']'"),
    ('#sdy.mesh<["a"¦]>', "expected '='"),
    ('#sdy.mesh<["a"=2,¦]>', "expected string"),
    ("#sdy.mesh<[¦a=2]>", "expected string"),
    ("#sdy.mesh<[¦'a'=2]>", "expected string"),
    ('#sdy.mesh<¦"a"=2>', "expected '['"),
    ("#sdy.mesh<¦>", "expected '['"),
    ("#sdy.mesh¦", "expected '<'"),
    ('#sdy.mesh<["a"=2]¦', "expected '>'"),
    ('#sdy.mesh<["a"=2]> ¦x', "found trailing characters: 'x'"),
    ('#sdy.mesh<["a¦', "expected '\"' in string literal"),
    ('#sdy.mesh<[¦"a\\x"=2]>', "unknown escape in string literal"),
    ('#sdy.mesh<[¦"a\\4"=2]>', "unknown escape in string literal"),
    ("#sdy.sharding<mesh¦, []>", "expected '<'"),
    ('#sdy.sharding<¦<["a"=2]>, []>', "expected a mesh"),
    ('#sdy.sharding<¦#sdy.mesh<["a"=2]>, []>', "expected a mesh"),
    ("#sdy.sharding<¦[]>", "expected a mesh"),
    ("#sdy.sharding<@¦ mesh, []>", "@ identifier expected to start with letter or '_'"),
    ("#sdy.sharding<@¦1mesh, []>", "@ identifier expected to start with letter or '_'"),
    ('#sdy.sharding<¦@"", []>', "expected a name in '@\"\"'"),
    ("#sdy.sharding<@a¦-b, []>", "expected ','"),
    ("#sdy.sharding<@mesh¦::@b, []>", "expected ','"),
    ("#sdy.sharding<@mesh ¦[]>", "expected ','"),
    ("#sdy.sharding<@mesh¦>", "expected ','"),
    ('#sdy.sharding<@mesh, ¦{"a"}>', "expected '['"),
    ('#sdy.sharding<@mesh, [{"a"} ¦{}]>', "expected ']'"),
    ('#sdy.sharding<@mesh, [{"a",¦}]>', "expected string"),
    ("#sdy.sharding<@mesh, [{¦a}]>", "expected string"),
    ('#sdy.sharding<@mesh, [{"a" ¦?}]>', "expected ','"),
    ('#sdy.sharding<@mesh, [{?¦, "a"}]>', "expected '}'"),
    ("#sdy.sharding<@mesh, [{?¦, ?}]>", "expected '}'"),
    ('#sdy.sharding<@mesh, [{"a":¦2}]>', "expected '('"),
    ('#sdy.sharding<@mesh, [{"a":(2¦}]>', "expected ')'"),
    ('#sdy.sharding<@mesh, [{"a":(2)¦}]>', "expected integer value"),
    ("#sdy.sharding<@mesh, [{?}¦p]>", "expecting priority in format 'p<number>', got: p"),
    ("#sdy.sharding<@mesh, [{?}¦p-1]>", "expecting priority in format 'p<number>', got: p"),
    ("#sdy.sharding<@mesh, [{?}¦q1]>", "expecting priority in format 'p<number>', got: q1"),
    ("#sdy.sharding<@mesh, [{?}¦p1a]>", "expecting priority in format 'p<number>', got: p1a"),
    ("#sdy.sharding<@mesh, [{?}¦p01]>", "priorities with leading zeros are not allowed, got: p01"),
    ("#sdy.sharding<@mesh, [{?}¦p00]>", "priorities with leading zeros are not allowed, got: p00"),
    ("#sdy.sharding<@mesh, [{?}¦p99999999999999999999]>", "expecting integer priority, got: p99999999999999999999"),
    ("#sdy.sharding<@mesh, [], replicated={¦}>", "expected string"),
    ('#sdy.sharding<@mesh, [], replicated ¦{"b"}>', "expected '='"),
    ('#sdy.sharding<@mesh, [], ¦reduced={"b"}>', "expected valid named axis list after comma"),
    ('#sdy.sharding<@mesh, [], unreduced={"c"}, ¦unreduced={"b"}>', "expected valid named axis list after comma"),
    ('#sdy.sharding<@mesh, [], unreduced={"c"},¦>', "expected valid named axis list after comma"),
    ("#sdy.sharding<@mesh, [] ¦foo>", "expected '>'"),
    ("#sdy.sharding_per_value<[<@a, []>,¦]>", "expected '<'"),
    ("#sdy.sharding_per_value<¦<@a, []>>", "expected '['"),
    ("#sdy.op_sharding_rule<([i ¦k])->([i]) {i=8}>", "expected ']'"),
    ("#sdy.op_sharding_rule<([¦5])->([i]) {i=8}>", "expected ']'"),
    ("#sdy.op_sharding_rule<([¦{5}])->([i]) {i=8}>", "expected ']'"),
    ("#sdy.op_sharding_rule<([¦a])->([i]) {i=8}>", "expecting symbol from 'i' to 'z'. Received: 'a'"),
    ("#sdy.op_sharding_rule<([¦I])->([i]) {i=8}>", "expecting symbol from 'i' to 'z'. Received: 'I'"),
    ("#sdy.op_sharding_rule<([i¦_1])->([i]) {i=8}>", "expecting symbol from 'i' to 'z'. Received: '_'"),
    ("#sdy.op_sharding_rule<([z_1¦_2])->([i]) {i=8}>", "expecting symbol from 'i' to 'z'. Received: '_'"),
    ("#sdy.op_sharding_rule<([i¦.j])->([i]) {i=8}>", "expecting symbol from 'i' to 'z'. Received: '.'"),
    ("#sdy.op_sharding_rule<([i¦8])->([i]) {i=8}>", "expecting symbol from 'i' to 'z'. Received: '8'"),
    ("#sdy.op_sharding_rule<([¦z_])->([i]) {i=8}>", "expecting integer after 'z_'. Received: 'z_'"),
    ("#sdy.op_sharding_rule<([¦z_ 1])->([i]) {i=8}>", "expecting integer after 'z_'. Received: 'z_'"),
    ("#sdy.op_sharding_rule<([i¦z_a])->([i]) {i=8}>", "expecting integer after 'z_'. Received: 'z_a'"),
    ("#sdy.op_sharding_rule<([¦z_z_1])->([i]) {i=8}>", "expecting integer after 'z_'. Received: 'z_z_1'"),
    ("#sdy.op_sharding_rule<([z_¦0])->([i]) {i=8}>", "expecting positive integer without leading zeros. Received: '0'"),
    ("#sdy.op_sharding_rule<([z_¦01])->([i]) {i=8}>", "expecting positive integer without leading zeros. Received: '01'"),
    (
        "#sdy.op_sharding_rule<([i])->([i]) {¦j=8}>",
        "expecting factor indices to be ordered like an iota ([0,1,2,...], e.g. {i=#, j=#, ...}). Expecting factor index symbol 'i', received: 'j'",  # noqa: E501
    ),
    ("#sdy.op_sharding_rule<([i])->([i]) {i¦j=8}>", "expecting single factor symbol: j"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i=8,¦}>", "expected valid keyword"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i¦:8}>", "expected '='"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i=¦}>", "expected integer value"),
    ("#sdy.op_sharding_rule<([i])¦-([i]) {i=8}>", "expected '->'"),
    ("#sdy.op_sharding_rule<¦[i]->([i]) {i=8}>", "expected '('"),
    ("#sdy.op_sharding_rule<(¦)->([i]) {i=8}>", "expected '['"),
    ("#sdy.op_sharding_rule<([i])->(¦) {i=8}>", "expected '['"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i=8} reduction={i ¦j}>", "expected '}'"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i=8} reduction={i,¦}>", "expected valid keyword"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i=8} reduction={i¦j}>", "expecting single factor symbol: j"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i=8} reduction¦: {i}>", "expected '='"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i=8} need_replication={i} ¦reduction={i}>", "expected '>'"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i=8} ¦foo={i}>", "expected '>'"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i=8} ¦custom>", "expected '>'"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i=8}, ¦custo>", "expected 'custom'"),
    ("#sdy.op_sharding_rule<([i])->([i]) {i=8}, custom¦, x>", "expected '>'"),
    ('#sdy<manual_axes{"a" ¦"b"}>', "expected '}'"),
    ('#sdy<manual_axes{"a"}¦', "expected '>'"),
    ("#sdy<all_to_all_param{¦}: 0->1>", "expected string"),
    ('#sdy<all_to_all_param{"a"} ¦0->1>', "expected ':'"),
    ('#sdy<all_to_all_param{"a"}: 0¦-1>', "expected '->'"),
    ("¦#sdy.meshes<[]>", "unknown attribute `meshes` in dialect `sdy`"),
    ("¦sdy.mesh<[]>", "expected '#sdy.'"),
    ("¦", "expected '#sdy.'"),
]


@pytest.mark.parametrize(("text", "printed"), GOOD)
def test_good_text(text: str, printed: str | None) -> None:
    value = parse_attribute(text)
    shown = value.text() if hasattr(value, "text") else str(value)
    assert shown == (printed or text)
    if "#sdy.dim_mapping" not in shown:
        assert parse_attribute(shown) is value
        assert type(value).parse(value.text(short=True)) is value


@pytest.mark.parametrize(("marked", "what"), BAD)
def test_bad_text(marked: str, what: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_attribute(marked.replace("¦", ""))
    assert caught.value.what == what
    assert caught.value.position == marked.index("¦")
    assert (caught.value.line, caught.value.column) == (1, marked.index("¦") + 1)


def test_the_message_shows_the_place() -> None:
    with pytest.raises(ParseError) as caught:
        TensorSharding.parse('<@mesh,\n [{"a"}, {"b",}]>')
    assert str(caught.value).splitlines()[:4] == [
        "expected string",
        "  where: line 2, column 15",
        '     [{"a"}, {"b",}]>',
        "                  ^",
    ]


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (Mesh.parse, '<["x"=2]>', Mesh({"x": 2})),
        (Mesh.parse, 'mesh<["x"=2]>', Mesh({"x": 2})),
        (AxisRef.parse, ' "x" ', AxisRef("x")),
        (AxisRef.parse, '"x":(1)2', AxisRef("x", 1, 2)),
        (DimensionSharding.parse, '{"x", ?}p1', DimensionSharding(["x"], False, 1)),
        (TensorSharding.parse, '<@m, [{"x"}]>', TensorSharding("m", [["x"]])),
        (TensorShardingPerValue.parse, '[<@m, [{"x"}]>]', TensorShardingPerValue([TensorSharding("m", [["x"]])])),
        (OpShardingRule.parse, "<([i])->([i]) {i=2}>", OpShardingRule([2], [[[0]]], [[[0]]])),
        (ManualAxes.parse, '{"x"}', ManualAxes(["x"])),
        (AxisRefList.parse, '{"x"}', AxisRefList(["x"])),
        (ListOfAxisRefLists.parse, '[{"x"}, {}]', ListOfAxisRefLists([["x"], []])),
        (AllToAllParamList.parse, '[{"x"}: 0->1]', AllToAllParamList([(["x"], 0, 1)])),
        (AllToAllParam.parse, '{"x"}: 0->1', AllToAllParam(["x"], 0, 1)),
        (MeshAxis.parse, '"x"=2', MeshAxis("x", 2)),
        (AxisRef.parse, '#sdy<axis_ref"x":(1)2>', AxisRef("x", 1, 2)),
        (DimensionSharding.parse, '#sdy<dimension_sharding{"x"}>', DimensionSharding(["x"])),
    ],
)
def test_one_function_per_class(parse, text: str, value) -> None:
    assert parse(text) is value


def test_another_attribute_is_refused() -> None:
    with pytest.raises(ParseError, match=r"expected '#sdy\.sharding', found '#sdy\.mesh'"):
        TensorSharding.parse("#sdy.mesh<[]>")
