"""Text that MLIR's parser would not survive, or that stands for too much, is refused with its place; MLIR never sees it."""

from __future__ import annotations

import pytest

from shardy_py.errors import ShardyError
from shardy_py.opt import run_passes
from shardy_py.opt.from_mlir import parse_module
from shardy_py.opt.mlir_limits import MAX_BRACKETS, check_text
from shardy_py.passes.call_graph import MAX_REGIONS

ONE = """sdy.mesh @m = <[], device_ids=[0]>
func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
  %0 = sdy.manual_computation(%a) in_shardings=[<MESH, []>] out_shardings=[<MESH, []>] manual_axes={} (%b: tensor<8xf32>) {
    sdy.return %b : tensor<8xf32>
  } : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32> }"""

REFUSED = {
    "lists": ('"a.b"() {m = ' + "[" * 5000 + "]" * 5000 + "} : () -> ()", "nested more than", "-:1:"),
    "types": ('\n"a.b"() : () -> ' + "tuple<" * 5000 + "f32" + ">" * 5000, "nested more than", "-:2:"),
    "brackets in strings": ('"a.b"() {s = "]]]]]]", m = ' + "[" * 1001 + "]" * 1001 + "} : () -> ()", "nested more than", "-:1:"),
    "a map": ('"a.b"() {m = affine_map<(d0) -> (' + "-" * 5000 + "d0)>} : () -> ()", "affine map", "-:1:"),
    "a chain of aliases": ("#a0 = [1]\n" + "".join(f"#a{i + 1} = [#a{i}]\n" for i in range(1500)), "alias #a", "-:"),
    "aliases twice": ("#a0 = [1]\n" + "".join(f"#a{i + 1} = [#a{i}, #a{i}]\n" for i in range(40)), "alias #a", "-:"),
    "an alias used often": ("#a0 = [" + "1, " * 9999 + '1]\n"a.b"() {m = [' + "#a0, " * 999 + "#a0]} : () -> ()", "alias #a0", "-:2:"),
    "an op that is not UTF-8": ('\n"a.\\9B" // of\n () : () -> ()', "not UTF-8", "-:2:1"),
    "no Unicode": ('"a.b"() {s = "\udc9b"} : () -> ()', "no Unicode text", "-:1:15"),
    "a dimension of a convolution": (
        '"a.b"() {m = #stablehlo.conv<[b, f, 0]x[o, i, 4294967296]->[b, f, 0]>} : () -> ()',
        "cannot reserve",
        "the module",
    ),
    "one device": (ONE.replace("MESH", "@m"), "over one device", "-:3:"),
    "one device in place": (ONE.replace("MESH", "mesh<[], device_ids=[0]>"), "over one device", "-:3:"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, what, where = REFUSED[name]
    with pytest.raises(ShardyError, match=what) as error:
        parse_module(text)
    assert error.value.where is not None
    assert error.value.where.startswith(where)


@pytest.mark.parametrize(
    "text",
    [
        '"a.b"() {m = ' + "[" * (MAX_BRACKETS - 2) + "]" * (MAX_BRACKETS - 2) + "} : () -> ()",
        '"a.b"() {s = "' + "[" * 5000 + '"} : () -> () // ' + "(" * 5000,
        '#map = affine_map<(d0, d1) -> (d0 + d1)>\n#s = affine_set<(d0) : (d0 >= 0)>\n"a.b"() {m = [#map, #map], s = #s} : () -> ()',
        '#loc0 = loc("f":1:2)\n#loc1 = loc("x"(#loc0))\n"a.b"() : () -> () loc(#loc1)',
        ONE.replace("[<MESH, []>]", "[<@n, [{}]>]").replace("sdy.mesh", 'sdy.mesh @n = <["x"=2]>\nsdy.mesh', 1),
    ],
)
def test_taken(text: str) -> None:
    check_text(text)
    parse_module(text)


def test_nested_regions() -> None:
    def nested(depth: int) -> str:
        return '"a.b"() ({\n' * depth + '"a.c"() : () -> ()\n' + "}) : () -> ()\n" * depth

    with pytest.warns(UserWarning, match="is not known"):
        run_passes(f"func.func @main() {{ {nested(MAX_REGIONS - 1)} return }}")
    with pytest.raises(ShardyError, match="regions are nested") as error:
        run_passes(f"func.func @main() {{ {nested(MAX_REGIONS + 1)} return }}")
    assert "-:" in str(error.value.where)


NAMES_OF_BYTES = {
    "a function": 'func.func private @"\\9B"()',
    "an attribute": 'module attributes {"x.\\9B" = 1} {}',
    "a mesh": 'sdy.mesh @"\\9B" = <["a"=2]>',
}


@pytest.mark.parametrize("name", NAMES_OF_BYTES)
def test_names_that_are_not_utf_8(name: str) -> None:
    with pytest.raises(ShardyError, match="not UTF-8"):
        run_passes(NAMES_OF_BYTES[name])


def test_values_of_attributes_may_be_bytes() -> None:
    head = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32>"
    text = head + ' { %0 = stablehlo.abs %x {x.y = "\\9B\\00"} : tensor<8xf32>\nreturn %0 : tensor<8xf32> }'
    assert 'x.y = "\\9B\\00"' in run_passes(text, "sdy-propagation-pipeline")
