from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardy_py.backends.compiled_text import collectives_in, contents, cycles_by_line, group_size_in
from shardy_py.plan.collectives import Collective
from shardy_py.plan.compiled import differences, shape_bytes, wire_bytes
from tests.backends.aliases import Alias, Aliases, aliases_in

XY = P("x", "y")

HEAD = """HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8,8]{1,0})->f32[8,8]{1,0}}, num_partitions=8

FileNames
1 "/home/me/train.py"
2 "/home/me/a \\"b\\".py"

FunctionNames
1 "<module>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=233 end_line=233 column=15 end_column=15}
2 {file_name_id=2 function_name_id=1 line=20 end_line=20 column=11 end_column=11}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}


%region_2.0 (psum.1: f32[], psum.4: f32[]) -> f32[] {
  %psum.1 = f32[] parameter(0), metadata={op_name="while/body/closed_call/psum"}
  %psum.4 = f32[] parameter(1), metadata={op_name="while/body/closed_call/psum"}
  ROOT %add.0 = f32[] add(%psum.1, %psum.4), metadata={op_name="add" stack_frame_id=1}
}
"""


def module(entry: str, *others: str) -> str:
    body = "\n".join(f"  {line}" for line in entry.strip().splitlines())
    start = "ENTRY %main.7_spmd (param.5: f32[8,8]) -> f32[8,8] {\n  %param.5 = f32[8,8]{1,0} parameter(0), sharding={devices=[2,4]<=[8]}"
    return "\n".join((HEAD, *others, f"{start}\n{body}\n}}\n\n"))


LOOP = """
%body (param: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %param = (s32[], f32[8,8]{1,0}) parameter(0)
  %get-tuple-element.30 = f32[8,8]{1,0} get-tuple-element(%param), index=1
  %psum.7 = f32[8,8]{1,0} all-reduce(%get-tuple-element.30), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%region_2.0
  ROOT %tuple.13 = (s32[], f32[8,8]{1,0}) tuple(%wrapped_add.1, %psum.7)
}

%condition (param.1: (s32[], f32[8,8])) -> pred[] {
  %param.1 = (s32[], f32[8,8]{1,0}) parameter(0)
  %all-reduce.9 = f32[] all-reduce(%x), replica_groups={}, to_apply=%region_2.0
  %x = f32[] constant(5)
  ROOT %wrapped_compare = pred[] fusion(%get-tuple-element.20, %constant.2.clone), kind=kLoop, calls=%region_2.0
}

%outer (param.2: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %tuple.11 = (s32[], f32[8,8]{1,0}) parameter(0)
  %w = (s32[], f32[8,8]{1,0}) while(%tuple.11), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
}

%nothing (param.3: (s32[], f32[8,8])) -> pred[] {
  ROOT %lt.7 = pred[] compare(%param_0.4, %param_1.3), direction=LT
}
"""


def test_one_all_reduce() -> None:
    (found,) = collectives_in(
        module(
            "ROOT %psum.7 = f32[8,8]{1,0} all-reduce(%param.5), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, "
            "use_global_device_ids=true, to_apply=%region_2.0, "
            'metadata={op_name="jit(step)/shard_map/psum" stack_frame_id=1}'
        )
    )
    assert (found.kind, found.group_size, found.trips) == ("all_reduce", 4, 1)
    assert (found.operands, found.pieces) == ((("f32", (8, 8)),), (256,))
    assert (found.op_name, found.location) == ("jit(step)/shard_map/psum", "/home/me/train.py:233")
    assert found.received_bytes == found.total_bytes == 384


def test_opcodes_count_and_names_do_not() -> None:
    text = module(
        """%all-reduce.1 = f32[8,8]{1,0} add(%param.5, %param.5), metadata={op_name="jit(f)/all-reduce(x)" stack_frame_id=2}
        %psum = f32[8,8]{1,0} fusion(%all-gather(%param.5)), kind=kLoop, calls=%region_2.0, metadata={op_name="= f32[8] all-gather(%a)"}
        %all-to-all = f32[8,8]{1,0} custom-call(%param.5), custom_call_target="all-reduce(", replica_groups={{0,1}}"""
    )
    assert collectives_in(text) == []


def test_several_operands_in_one_op() -> None:
    (found,) = collectives_in(
        module(
            """%scalar = f32[] constant(1)
            %psums = (f32[8,8]{1,0:T(8,128)S(1)}, /*index=1*/f32[]) all-reduce(%param.5, /**/%scalar), replica_groups=[4,2]<=[2,4]T(1,0)"""
        )
    )
    assert (found.group_size, found.pieces, found.received_bytes) == (2, (256, 4), 260)


def test_pieces_of_an_all_to_all_are_put_together() -> None:
    pieces = "\n".join(f"%s.{i} = bf16[2,8]{{1,0}} slice(%param.5), slice={{[0:2], [0:8]}}" for i in range(4))
    of_pieces, whole = collectives_in(
        module(
            pieces
            + "\n%a = (bf16[2,8]{1,0}, bf16[2,8]{1,0}, bf16[2,8]{1,0}, bf16[2,8]{1,0}) all-to-all(%s.0, %s.1, %s.2, %s.3), channel_id=1, "
            "replica_groups={{0,1,2,3},{4,5,6,7}}\n"
            "%b = f32[8,8]{1,0} all-to-all(%param.5), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}"
        )
    )
    assert (of_pieces.operands, of_pieces.pieces, of_pieces.received_bytes) == ((("bf16", (4, 2, 8)),), (128,), 96)
    assert (whole.pieces, whole.received_bytes) == ((256,), 192)


def test_asynchronous_forms_count_once() -> None:
    found = collectives_in(
        module(
            """%s = (f32[8,8]{1,0}, f32[32,8]{1,0}) all-gather-start(f32[8,8]{1,0} %param.5), replica_groups=[2,4]<=[8], dimensions={0}
            %d = f32[32,8]{1,0} all-gather-done((f32[8,8]{1,0}, f32[32,8]{1,0}) %s)
            %c = (f32[8,8]{1,0}, f32[8,8]{1,0}, u32[], u32[]) collective-permute-start(%param.5), source_target_pairs={{0,1},{1,0}}
            %n = f32[8,8]{1,0} fusion(%param.5), kind=kLoop, calls=%region_2.0
            %e = f32[8,8]{1,0} collective-permute-done(%c)
            %r = ((f32[8,8]), f32[2,8], s32[]) async-start(%param.5), calls=%wrapped
            %t = f32[2,8] async-done(%r), calls=%wrapped""",
            "%wrapped (p: f32[8,8]) -> f32[2,8] {\n  %p = f32[8,8] parameter(0)\n"
            "  ROOT %x = f32[2,8] reduce-scatter(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}\n}\n",
        )
    )
    assert [(c.kind, sum(c.pieces), c.received_bytes) for c in found] == [
        ("all_gather", 256, 768),
        ("collective_permute", 256, 256),
        ("reduce_scatter", 256, 192),
    ]
    assert [c.is_hidden for c in found] == [False, True, False]


def test_loops_multiply() -> None:
    inside = "%w = (s32[], f32[8,8]{1,0}) while(%t), condition=%nothing, body=%outer"
    known = inside + ', backend_config={"known_induction_variable":{"tuple_index":"0"},"known_trip_count":{"n":"6"}}'
    quoted = inside + r', backend_config="{\"known_trip_count\":{\"n\":\"6\"}}"'
    for text in (known, quoted):
        condition, body = collectives_in(module(text, LOOP))
        assert (condition.trips, condition.group_size, body.trips, body.total_bytes) == (36, 8, 30, 30 * 384)
    assert [(c.trips, c.total_bytes) for c in collectives_in(module(inside, LOOP))] == [(None, None)] * 2


COUNTED = """
%one_more (q: s32[]) -> s32[] {{
  %q = s32[]{{:T(128)}} parameter(0)
  %two = s32[]{{:T(128)}} constant(2)
  ROOT %sum = s32[]{{:T(128)}} add(%q, %two)
}}

%body (c: (s32[], f32[8,8], s32[])) -> (s32[], f32[8,8], s32[]) {{
  %c = (s32[]{{:T(128)}}, f32[8,8]{{1,0}}, s32[]{{:T(128)}}) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%c), index=0
  %v = f32[8,8]{{1,0}} get-tuple-element(%c), index=1
  %limit = s32[]{{:T(128)}} get-tuple-element(%c), index=2
  %next = {next}
  %sums = f32[8,8]{{1,0}} all-reduce(%v), replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}
  ROOT %carried = (s32[], f32[8,8], s32[]) tuple(%next, %sums, %limit)
}}

%condition (d: (s32[], f32[8,8], s32[])) -> pred[] {{
  %d = (s32[]{{:T(128)}}, f32[8,8]{{1,0}}, s32[]{{:T(128)}}) parameter(0)
  %j = s32[]{{:T(128)}} get-tuple-element(%d), index=0
  %end = s32[]{{:T(128)}} get-tuple-element(%d), index=2
  ROOT %less = pred[]{{:T(512)}} compare({test})
}}
"""
STEPS = {
    "fusion": "s32[]{:T(128)} fusion(%i), kind=kLoop, calls=%one_more",
    "subtraction": "s32[]{:T(128)} subtract(%i, %two)\n  %two = s32[] constant(-2)",
    "data": "s32[]{:T(128)} convert(%v)",
}
BEGIN = """%start = s32[] constant(1)
%copied = s32[] copy(%start)
%ten = s32[] constant({ten})
%t = (s32[], f32[8,8], s32[]) tuple(%copied, %param.5, %ten)
%w = (s32[], f32[8,8], s32[]) while(%t), condition=%condition, body=%body"""


@pytest.mark.parametrize(
    ("step", "test", "ten", "trips"),
    [
        ("fusion", "%j, %end), direction=LT", 10, 5),
        ("fusion", "%j, %end), direction=LE", 11, 6),
        ("subtraction", "%end, %j), direction=GT", 10, 5),
        ("fusion", "%j, %end), direction=NE", 11, 5),
        ("fusion", "%j, %end), direction=NE", 10, None),
        ("fusion", "%j, %end), direction=GT", 10, 0),
        ("data", "%j, %end), direction=LT", 10, None),
    ],
)
def test_loops_whose_trips_are_not_written(step: str, test: str, ten: int, trips: int | None) -> None:
    (found,) = collectives_in(module(BEGIN.format(ten=ten), COUNTED.format(next=STEPS[step], test=test)))
    assert found.trips == trips


def test_a_collective_that_fusions_carry_on_counts_where_it_starts() -> None:
    gather = 'all-gather(%p), replica_groups=[2,4]<=[8], dimensions={0}, frontend_attributes={chain_id="3"}'
    computation = (
        "%{name} (p: f32[8,8]) -> f32[32,8] {{\n  %p = f32[8,8] parameter(0)\n  %g = f32[32,8] {gather}\n  ROOT %r = f32[32,8] {root}\n}}\n"
    )
    start, done = ('custom-call(%g), custom_call_target="AsyncCollective' + which + '"' for which in ("Start", "Done"))
    parts = {"begin": start, "meanwhile": "negate(%g)", "end": done}
    text = module(
        "%a = f32[32,8] fusion(%param.5), kind=kCustom, calls=%begin\n%b = f32[32,8] fusion(%a), kind=kOutput, calls=%meanwhile\n"
        "%c = f32[32,8] fusion(%b), kind=kCustom, calls=%end",
        "".join(computation.format(name=name, gather=gather, root=root) for name, root in parts.items()),
    )
    assert [(c.kind, c.received_bytes, c.is_hidden) for c in collectives_in(text)] == [("all_gather", 768, True)]


def test_cycles_of_lines() -> None:
    estimated = (
        '%{} = f32[8,8] fusion(%param.5), calls=%region_2.0, metadata={{stack_frame_id={}}}, backend_config={{"estimated_cycles":"{}"}}'
    )
    body = LOOP.replace("  %psum.7 =", f"  {estimated.format('b', 1, 7)}\n  %psum.7 =")
    loop = '%w = (s32[], f32[8,8]{1,0}) while(%z), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}'
    text = module("\n".join((estimated.format("a", 2, 11), loop)), body)
    assert cycles_by_line(contents(text)) == {"/home/me/train.py:233": 35, '/home/me/a "b".py:20': 11}


def test_a_fusion_that_keeps_a_slice_of_a_sum_is_a_reduce_scatter() -> None:
    text = module(
        "%a = f32[2,8] fusion(%param.5), kind=kCustom, calls=%scattered",
        "%scattered (p: f32[8,8]) -> f32[2,8] {\n  %p = f32[8,8] parameter(0)\n  %o = s32[] constant(0)\n"
        "  %s = f32[8,8] all-reduce(%p), replica_groups=[2,4]<=[8]\n"
        "  ROOT %r = f32[2,8] dynamic-slice(%s, %o, %o), dynamic_slice_sizes={2,8}\n}\n",
    )
    assert [(c.kind, c.received_bytes) for c in collectives_in(text)] == [("reduce_scatter", 192)]


def test_whatever_is_called_counts_as_often_as_it_is_called() -> None:
    text = module(
        """%a = f32[8,8]{1,0} call(%param.5), to_apply=%body
        %b = f32[8,8]{1,0} conditional(%i, %param.5, %param.5), branch_computations={%body, %outer}
        %c = f32[8,8]{1,0} conditional(%i, %param.5, %param.5), true_computation=%body, false_computation=%nothing
        %d = f32[8,8]{1,0} custom-call(%param.5), custom_call_target="x", called_computations={%body}""",
        LOOP,
    )
    assert [c.trips for c in collectives_in(text) if c.group_size == 4] == [1, 1, 5, 1, 1]


def test_text_that_is_no_module() -> None:
    with pytest.raises(ValueError, match="no ENTRY computation"):
        collectives_in("ROOT %psum.7 = f32[8,8]{1,0} all-reduce(%param.5)")


def test_places() -> None:
    line = '%a = f32[8,8]{1,0} all-reduce(%param.5), replica_groups={{0,1}}, metadata={op_name="f" stack_frame_id=2}'
    assert collectives_in(module(line))[0].location == '/home/me/a "b".py:20'
    assert collectives_in(module(line.replace("=2}", "=9}")))[0].location == ""


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("{ {0,4}, {1,5}, {2,6}, {3,7} }, x={{8}}", 2),
        ("{}", 8),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,2,2]T(0,2,1)", 2),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0'}, dimensions={1}", 2),
        ("mesh['x'=2,'y'=4] {'y','x'}", 8),
        ("mesh['x'=2,'y'=4] {'y':(2)2}", 2),
        ("mesh['x'=2,'y'=4] {'y':(2)2,'x'}", 4),
        ("mesh['x'=2,'y'=4,'z'=1] {'z'}", 1),
        ("mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_1'}, use_global_device_ids=true", 2),
        ("mesh['a'=2,'b'=2], device_ids=(3,1,2,0) {'b'}", 2),
    ],
)
def test_groups(text: str, size: int) -> None:
    assert group_size_in(f"channel_id=1, replica_groups={text}, to_apply=%r", 8) == size


def test_groups_that_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="cannot read replica groups: replica_groups=who knows"):
        group_size_in("replica_groups=who knows", 8)
    assert group_size_in("channel_id=1", 2) == 2


def test_bytes_of_arrays() -> None:
    shapes = [("f8e4m3fn", (4,)), ("s4", (3,)), ("c128", (2,)), ("pred", (5,)), ("token", ()), ("u16", (0, 7))]
    assert [shape_bytes(shape) for shape in shapes] == [4, 2, 32, 5, 0, 0]


def test_aliases() -> None:
    head = "HloModule m, is_scheduled=true, {}, entry_computation_layout={{(f32[8])->f32[8]}}\n  %x = f32[] f(), input_output_alias={{}}"
    pairs = "input_output_alias={ {0}: (0, {}, may-alias), {1, 2}: (3, {4}, must-alias), {}: (5, {}) }, buffer_donor={ (1, {}), (2, {0}) }"
    assert aliases_in(head.format(pairs)) == Aliases(
        (Alias((0,), 0), Alias((1, 2), 3, (4,), True), Alias((), 5)),
        ((1, ()), (2, (0,))),
    )
    assert aliases_in(head.format("x=1")) == Aliases()


# Programs as they are compiled here.


@pytest.fixture(scope="module")
def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def compiled(mesh, fun, *args, outs=XY) -> str:
    mapped = jax.shard_map(fun, mesh=mesh, in_specs=XY, out_specs=outs, check_vma=False)
    text = jax.jit(mapped).lower(*args).compile().as_text()
    assert text is not None
    return text


A = jax.ShapeDtypeStruct((16, 32), jnp.float32)
B = jax.ShapeDtypeStruct((16, 32), jnp.bfloat16)


def test_every_kind(mesh) -> None:
    def step(a):
        g = lax.all_gather(a, "y", axis=1, tiled=True)
        s = lax.psum_scatter(jnp.sin(g), ("x", "y"), scatter_dimension=1, tiled=True)
        t = lax.all_to_all(jnp.cos(a), "x", split_axis=0, concat_axis=1, tiled=True)
        p = lax.ppermute(a, "y", [(i, (i + 1) % 4) for i in range(4)])
        return lax.psum(s.sum() + t.sum(), ("y", "x")) + p

    found = {c.kind: c for c in collectives_in(compiled(mesh, step, A))}
    assert {kind: (sum(c.pieces), c.group_size, c.trips) for kind, c in found.items() if kind != "collective_permute"} == {
        "all_gather": (256, 4, 1),
        "reduce_scatter": (1024, 8, 1),
        "all_to_all": (256, 2, 1),
        "all_reduce": (4, 8, 1),
    }
    first = step.__code__.co_firstlineno
    assert all(c.op_name.startswith("jit(step)/shard_map/") for c in found.values())
    assert [found[k].location for k in ("all_gather", "reduce_scatter")] == [f"{__file__}:{first + i}" for i in (1, 2)]


def test_scans_conds_and_merged_sums(mesh) -> None:
    def step(a, b):
        def body(c, _):
            inner = lax.fori_loop(0, 3, lambda _, d: jnp.sin(lax.psum(d, "y")), c)
            return lax.cond(inner[0, 0] > 0, lambda d: jnp.cos(lax.psum(d, "x")), lambda d: d, inner), None

        c, _ = lax.scan(body, a, None, length=5)
        return c, lax.psum(a, "y"), lax.psum(b, "y")

    found = collectives_in(compiled(mesh, step, A, B, outs=(P("x", "y"), P("x"), P("x"))))
    assert sorted((c.trips, c.group_size, c.pieces) for c in found) == [(1, 4, (256, 256)), (5, 2, (256,)), (15, 4, (256,))]
    psum = [Collective("all_reduce", ("y",), 4, 256, dtype="float32", shape=(8, 8), trips=n) for n in (1, 15)]
    narrow = Collective("all_reduce", ("y",), 4, 128, dtype="bfloat16", shape=(8, 8), location="/a/b.py:3", value="b")
    other = Collective("all_reduce", ("x",), 2, 256, dtype="float32", shape=(8, 8), trips=5)
    alone = Collective("all_gather", ("z",), 1, 256)
    assert differences([*psum, narrow, other, alone], found) == []
    assert differences([*psum, narrow, other, other], found) == ["planned, not compiled: 1 all_reduce of 256 B among 2, 5 trips"]
    (line,) = differences([*psum, narrow], found)
    assert line.startswith("compiled, not planned: 1 all_reduce of 256 B among 2, 5 trips (test_compiled_text.py:")
    wide, asked = sorted(differences([*psum, narrow, other], found, platform="tpu"))
    assert wide.startswith("compiled, not planned: 1 all_reduce of 256 B among 4 (test_compiled_text.py:")
    assert asked == "planned, not compiled: 1 all_reduce of 128 B among 4 (b.py:3 b)"


def test_wire_bytes() -> None:
    def of(dtype, size):
        return wire_bytes(Collective("all_gather", ("x",), 4, size, dtype=dtype, shape=(8, 8)))

    assert [of("bfloat16", 128), of("float8_e4m3fn", 64), of("int4", 32), of("float16", 128), of("bool", 64)] == [256, 128, 64, 128, 64]
    assert wire_bytes(Collective("all_gather", ("x",), 4, 128, dtype="bfloat16", shape=(8, 8)), "tpu") == 128
    assert wire_bytes(Collective("all_gather", ("x",), 4, 128)) == 128


def test_what_the_partitioner_adds(mesh) -> None:
    parts = jax.sharding.Mesh(mesh.devices.reshape(2, 2, 2), ("x", "y0", "y1"))
    text = (
        jax.jit(
            lambda a: (a.sum(0), a * 3),
            in_shardings=NamedSharding(mesh, P(None, "y")),
            out_shardings=(NamedSharding(mesh, P("x")), NamedSharding(parts, P(("y1", "x")))),
        )
        .lower(A)
        .compile()
        .as_text()
    )
    found = collectives_in(text)
    assert {c.kind for c in found} >= {"all_gather"}


def test_donated_buffers(mesh) -> None:
    sharding = NamedSharding(mesh, P("x", "y"))
    text = (
        jax.jit(lambda a, b: (b * 2, a + 1), donate_argnums=0, in_shardings=sharding, out_shardings=sharding)
        .lower(A, A)
        .compile()
        .as_text()
    )
    (pair,) = aliases_in(text).pairs
    assert (pair.parameter, pair.index, pair.must) == (0, (), False)
    text = jax.jit(lambda a: a.reshape(32, 16) @ a, donate_argnums=0, in_shardings=sharding).lower(A).compile().as_text()
    assert aliases_in(text) == Aliases((), ((0, ()),))
