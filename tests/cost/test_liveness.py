"""Live memory of small graphs whose peaks are known, and what holds of any graph."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardy_py.cost.liveness.estimate import Estimate, liveness
from shardy_py.cost.liveness.graph import Graph, Kind, Node, Region
from shardy_py.cost.liveness.live import Buffer, alive
from shardy_py.cost.liveness.xla.compilers import COMPILERS, Compiler
from shardy_py.cost.liveness.xla.estimate import estimate
from shardy_py.cost.liveness.xla.packing import into_outputs, packed

PLAIN = Compiler("plain", "plain", "program", 1, 0)
"""No alignment, no tables, program order: peaks that can be told by hand."""

BIG = 1000


class Maker:
    """Builds graphs; every node gets a key of its own, so that none is merged with another."""

    def __init__(self, arguments: int = 1, size: int = BIG) -> None:
        self.graph = Graph()
        self.graph.main.arguments = [self.graph.value(size) for _ in range(arguments)]

    def node(self, kind: Kind, *operands: int, size: int = BIG, region: Region | None = None, key: object = None, name: str = "") -> int:
        result = self.graph.value(size)
        own = result if key is None else key
        (region or self.graph.main).nodes.append(Node(kind, list(operands), [result], key=own, label=kind.value, name=name))
        return result

    def whole(self, *operands: int, size: int = BIG, region: Region | None = None) -> int:
        return self.node(Kind.WHOLE, *operands, size=size, region=region)

    def done(self, *results: int, ways: Compiler = PLAIN) -> Estimate:
        self.graph.main.results = list(results)
        return estimate(self.graph, ways)


def test_chain_keeps_two() -> None:
    m = Maker()
    v = m.graph.main.arguments[0]
    for _ in range(5):
        v = m.whole(v)
    found = m.done(m.whole(v, size=8))
    assert (found.argument, found.output, found.temp) == (BIG, 8, 2 * BIG)


def test_diamond_keeps_three() -> None:
    m = Maker()
    top = m.whole(m.graph.main.arguments[0])
    left, right = m.whole(top), m.whole(top)
    assert m.done(m.whole(left, right, size=8)).temp == 3 * BIG


def test_elementwise_chain_is_one_step() -> None:
    m = Maker()
    v = m.graph.main.arguments[0]
    for _ in range(5):
        v = m.node(Kind.ELEMENTWISE, v)
    found = m.done(m.whole(v, size=8))
    assert found.temp == BIG
    assert len(found.steps) == 2


def test_dear_values_with_two_readers_are_kept() -> None:
    def temp(kind: Kind) -> int:
        m = Maker()
        v = m.node(kind, m.graph.main.arguments[0])
        wide = [m.node(Kind.ELEMENTWISE, v, v) for _ in range(2)]
        return m.done(m.whole(*wide, size=8)).temp

    assert temp(Kind.ELEMENTWISE) == 2 * BIG
    assert temp(Kind.EXPENSIVE) == 2 * BIG  # the second reader writes over it
    m = Maker()
    v = m.node(Kind.EXPENSIVE, m.graph.main.arguments[0])
    readers = [m.node(Kind.SHAPE, v, key=("shape", i)) for i in range(2)]
    assert m.done(m.whole(*readers, size=8)).temp == 3 * BIG


def test_elementwise_writes_over_what_it_reads_last() -> None:
    m = Maker()
    product = m.whole(m.graph.main.arguments[0])
    assert m.done(m.whole(m.node(Kind.ELEMENTWISE, product), size=8)).temp == BIG


def test_of_another_form_it_does_not() -> None:
    m = Maker()
    product = m.whole(m.graph.main.arguments[0])
    turned = m.node(Kind.ELEMENTWISE, product)
    m.graph.array_types = {product: (10, 100), turned: (1000,)}
    assert m.done(m.whole(turned, size=8)).temp == 2 * BIG


def test_view_takes_no_memory() -> None:
    m = Maker()
    product = m.whole(m.graph.main.arguments[0])
    assert m.done(m.whole(m.node(Kind.VIEW, product), size=8)).temp == BIG


def test_results_and_arguments_are_not_temporaries() -> None:
    m = Maker(2)
    found = m.done(m.whole(*m.graph.main.arguments), m.graph.main.arguments[1])
    assert (found.argument, found.output, found.temp, found.alias) == (2 * BIG, 2 * BIG, 0, 0)


def test_donation_saves_the_result() -> None:
    m = Maker(2)
    m.graph.donated = {0: 0}
    found = m.done(m.node(Kind.ELEMENTWISE, *m.graph.main.arguments))
    assert found.argument + found.output - found.alias + found.temp == 2 * BIG


def test_temporaries_lie_in_results_that_are_not_written_yet() -> None:
    m = Maker()
    early = m.whole(m.graph.main.arguments[0])
    late = m.whole(m.whole(early, size=8))
    assert m.done(late).temp == 8


def test_equal_nodes_are_one_and_unused_ones_none() -> None:
    m = Maker()
    x = m.graph.main.arguments[0]
    twice = [m.node(Kind.WHOLE, x, key="same") for _ in range(2)]
    m.whole(x)
    found = m.done(m.whole(*twice, size=8))
    assert found.temp == BIG
    assert len(found.steps) == 2


def scan(residual: bool, donate: bool = False) -> Estimate:
    """A loop of 10 trips that carries a state, and stacks one residual per trip if asked to."""
    m = Maker()
    x = m.graph.main.arguments[0]
    size = m.graph.value
    sizes = [8, BIG, *([10 * BIG] if residual else [])]
    zero = m.node(Kind.LITERAL, size=8)
    inits = [zero, x, *([m.node(Kind.BROADCAST, size=10 * BIG)] if residual else [])]
    condition = Region([size(n) for n in sizes])
    condition.results = [m.node(Kind.ELEMENTWISE, condition.arguments[0], size=1, region=condition)]
    body = Region([size(n) for n in sizes])
    i, state = body.arguments[:2]
    new = m.whole(state, region=body)
    body.results = [m.node(Kind.ELEMENTWISE, i, size=8, region=body), new]
    if residual:
        body.results.append(m.node(Kind.UPDATE, body.arguments[2], new, i, size=10 * BIG, region=body))
    outs = [size(n) for n in sizes]
    m.graph.main.nodes.append(Node(Kind.LOOP, inits, outs, (condition, body), key="loop", label="scan"))
    if donate:
        m.graph.donated = {0: 0}
        return m.done(outs[1])
    return m.done(m.whole(*outs[1:], size=8))


def test_scan_carries_in_place_and_copies_what_it_reads_late() -> None:
    # The argument is copied first, for it may not be written to; the body reads the state while it makes the next one.
    assert scan(residual=False).temp == pytest.approx(2 * BIG, abs=32)


def test_scan_stacks_residuals_once() -> None:
    with_residuals, without = scan(residual=True).temp, scan(residual=False).temp
    assert 10 * BIG <= with_residuals - without <= 11 * BIG


def test_donated_state_is_not_copied() -> None:
    found = scan(residual=False, donate=True)
    assert found.alias == BIG
    assert found.temp == pytest.approx(BIG, abs=32)


def test_remat_keeps_less() -> None:
    """Forward through 8 layers and back; with the forward half computed again, layer by layer, from what is kept at every second one."""

    def peak(remat: bool) -> int:
        m = Maker()
        x = m.graph.main.arguments[0]
        kept = [x]
        for _ in range(8):
            kept.append(m.whole(kept[-1]))
        back = m.whole(kept[-1], size=8)
        for layer in reversed(range(8)):
            value = m.whole(kept[layer - 1]) if remat and layer % 2 else kept[layer]
            back = m.whole(back, value, size=8)
        return m.done(back).temp

    assert peak(remat=True) < 0.75 * peak(remat=False)


def test_values_read_in_a_loop_live_until_it_ends() -> None:
    m = Maker()
    weight = m.whole(m.graph.main.arguments[0])
    condition = Region([m.graph.value(8)])
    condition.results = [m.node(Kind.ELEMENTWISE, condition.arguments[0], size=1, region=condition)]
    body = Region([m.graph.value(8)])
    used = m.whole(weight, body.arguments[0], size=8, region=body)
    body.results = [m.whole(m.whole(used, region=body), size=8, region=body)]
    out = m.graph.value(8)
    start = m.whole(m.graph.main.arguments[0], size=8)
    m.graph.main.nodes.append(Node(Kind.LOOP, [start], [out], (condition, body), key="loop", label="while"))
    assert m.done(m.whole(out, size=16)).temp == pytest.approx(2 * BIG, abs=64)


def test_of_branches_the_larger_counts() -> None:
    m = Maker()
    regions = []
    for size in (BIG, 3 * BIG):
        inner = Region()
        inner.results = [m.whole(m.whole(m.graph.main.arguments[0], size=size, region=inner), size=8, region=inner)]
        regions.append(inner)
    out = m.graph.value(8)
    m.graph.main.nodes.append(Node(Kind.BRANCH, [m.graph.main.arguments[0]], [out], tuple(regions), key="case", label="cond"))
    assert m.done(m.whole(out, size=16)).temp == pytest.approx(3 * BIG, abs=32)


def test_alike_sums_wait_for_each_other() -> None:
    m = Maker()
    x = m.graph.main.arguments[0]
    parts = [m.whole(x) for _ in range(3)]
    for part in parts:
        total = m.node(Kind.SUM, part)
        m.graph.main.nodes[-1].group = "data"
        m.whole(total, size=8)
    ends = [n.results[0] for n in m.graph.main.nodes if n.kind is Kind.WHOLE and m.graph.bytes[n.results[0]] == 8]
    assert m.done(m.whole(*ends, size=16)).temp == 6 * BIG


def test_library_reductions_take_in_products_only() -> None:
    def temp(name: str) -> int:
        m = Maker()
        wide = m.node(Kind.ELEMENTWISE, m.graph.main.arguments[0], name=name)
        return m.done(m.whole(m.node(Kind.LIBRARY, wide, size=8), size=16)).temp

    assert temp("stablehlo.multiply") == 8
    assert temp("stablehlo.add") == BIG + 8


def test_what_is_a_branch_in_code_is_written_once() -> None:
    def temp(name: str) -> int:
        m = Maker()
        v = m.node(Kind.SHAPE, m.graph.main.arguments[0], name=name)
        left, right = m.node(Kind.SHAPE, v, name="stablehlo.reverse"), m.node(Kind.SHAPE, v, name="stablehlo.reverse")
        return m.done(m.whole(m.node(Kind.ELEMENTWISE, left, right), size=8)).temp

    assert temp("stablehlo.transpose") == BIG
    assert temp("stablehlo.pad") == temp("stablehlo.concatenate") == 2 * BIG


def test_code_is_not_written_out_too_often() -> None:
    def steps(levels: int) -> int:
        m = Maker()
        v = m.graph.main.arguments[0]
        for _ in range(levels):  # each level is read at two places
            v = m.node(Kind.ELEMENTWISE, *(m.node(Kind.SHAPE, v, name="stablehlo.reverse") for _ in range(2)))
        return len(m.done(m.whole(v, size=8)).steps)

    assert steps(4) == 2
    assert steps(6) > 2


def test_reductions_are_computed_where_they_are_read_once() -> None:
    def steps(readers: int) -> int:
        m = Maker()
        sums = [m.node(Kind.REDUCE, m.graph.main.arguments[0], size=8) for _ in range(8)]
        v = m.node(Kind.ELEMENTWISE, *sums[:readers], size=8)
        return len(m.done(m.whole(v, size=8)).steps)

    assert steps(1) == 2
    assert steps(8) == 4  # six at most in one


def test_reductions_are_not_repeated() -> None:
    def steps(kind: Kind) -> int:
        m = Maker()
        v = m.node(kind, m.node(Kind.REDUCE, m.graph.main.arguments[0], size=8), size=8)
        return len(m.done(m.whole(m.node(Kind.ELEMENTWISE, v, m.graph.main.arguments[0]))).steps)

    assert (steps(Kind.ELEMENTWISE), steps(Kind.BROADCAST)) == (2, 3)


def test_constants_are_not_written_over() -> None:
    m = Maker()
    found = m.node(Kind.ELEMENTWISE, m.node(Kind.LITERAL), m.graph.main.arguments[0])
    assert m.done(m.whole(found, size=8)).temp == BIG


def test_updates_are_in_place_where_they_read_what_they_write() -> None:
    def temp(other: bool) -> int:
        m = Maker()
        carried = m.whole(m.graph.main.arguments[0])
        at, elsewhere = m.whole(m.graph.main.arguments[0], size=8), m.whole(m.graph.main.arguments[0], size=8)
        part = m.node(Kind.SHAPE, carried, elsewhere if other else at, size=8, name="stablehlo.dynamic_slice")
        kept = m.node(Kind.ELEMENTWISE, part, m.graph.main.arguments[0], size=8)
        v = m.node(Kind.UPDATE, carried, kept, at, name="stablehlo.dynamic_update_slice")
        return m.done(m.whole(v, size=8)).temp

    assert temp(other=False) < 2 * BIG <= temp(other=True)


def test_breadth_first_runs_what_is_ready() -> None:
    def temp(name: str) -> int:
        m = Maker(3)
        ends = [m.whole(m.whole(a), size=8) for a in m.graph.main.arguments]
        return m.done(m.whole(*ends, size=16), ways=Compiler("", "", name, 1, 0)).temp

    assert temp("program") == BIG + 3 * 8
    assert temp("breadth-first") == 3 * BIG + 8


def test_liveness_alone_keeps_every_value_until_its_last_reader() -> None:
    """The floor below models of compilers: elementwise nodes are not fused, equal ones not merged."""
    m = Maker()
    v = m.graph.main.arguments[0]
    first = m.node(Kind.ELEMENTWISE, v, key="same")
    second = m.node(Kind.ELEMENTWISE, v, key="same")
    m.graph.main.results = [m.node(Kind.ELEMENTWISE, m.node(Kind.ELEMENTWISE, first), second)]
    found = liveness(m.graph)
    assert (found.argument, found.output, found.temp) == (BIG, BIG, 3 * BIG)
    assert [node.kind for node in found.steps] == [Kind.ELEMENTWISE] * 4
    assert found.series == (BIG, 2 * BIG, 3 * BIG, 2 * BIG)


buffers = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20), st.integers(0, 20)), max_size=25).map(
    lambda found: [Buffer(n, min(a, b), max(a, b), i, None) for i, (n, a, b) in enumerate(found)]
)


@given(buffers, st.sampled_from((1, 64)))
@settings(max_examples=100, deadline=None)
def test_packing_lies_between_what_is_alive_and_the_sum(found: list[Buffer], alignment: int) -> None:
    total = packed(found, alignment)
    assert max(alive(found, 21), default=0) <= total <= sum(-(-b.bytes // alignment) * alignment for b in found)


@given(buffers, st.sets(st.integers(0, 24)))
@settings(max_examples=100, deadline=None)
def test_what_lies_in_results_overlaps_nothing_there(found: list[Buffer], results: set[int]) -> None:
    for i in results:
        if i < len(found):
            found[i].role, found[i].end = "output", 20
    left = into_outputs(found)
    assert {id(b) for b in left} <= {id(b) for b in found if b.role == "temporary"}
    hosted = sum(b.bytes for b in found if b.role == "temporary") - sum(b.bytes for b in left)
    room = sum(b.bytes * b.start for b in found if b.role == "output")
    assert hosted <= room


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_random_graphs(seed: int) -> None:
    """Any graph: all nodes run once, after what they read; the peak is at least any node's own needs, at most everything."""
    draw = random.Random(seed)
    m = Maker(draw.randint(1, 3))
    values = list(m.graph.main.arguments)
    kinds = (Kind.ELEMENTWISE, Kind.EXPENSIVE, Kind.BROADCAST, Kind.SHAPE, Kind.WHOLE, Kind.REDUCE, Kind.VIEW, Kind.COLLECTIVE, Kind.SUM)
    for _ in range(draw.randint(0, 30)):
        kind = draw.choice(kinds)
        read = draw.sample(values, min(len(values), draw.randint(1, 3)))[: 1 if kind is Kind.VIEW else 3]
        size = m.graph.bytes[read[0]] if kind is Kind.VIEW else draw.choice((8, 100, BIG))
        values.append(m.node(kind, *read, size=size))
    results = draw.sample(values, draw.randint(1, min(4, len(values))))
    for ways in COMPILERS.values():
        graph = Graph(list(m.graph.bytes), main=Region(list(m.graph.main.arguments), [], list(results)))
        graph.main.nodes = [Node(n.kind, list(n.operands), list(n.results), key=n.key, label=n.label) for n in m.graph.main.nodes]
        found = estimate(graph, ways)
        made = set(graph.main.arguments)
        for node in found.steps:
            assert made.issuperset(node.operands)
            made.update(node.results)
        assert made.issuperset(graph.main.results)
        assert len(found.series) == len(found.steps)
        assert max(found.series, default=0) <= sum(-(-b.bytes // ways.alignment) * ways.alignment for b in found.buffers)
        assert found.temp <= sum(-(-n // ways.alignment) * ways.alignment for n in graph.bytes) + 512 * len(found.steps)
        again = Graph(list(m.graph.bytes), main=Region(list(m.graph.main.arguments), [], list(results)))
        again.main.nodes = [Node(n.kind, list(n.operands), list(n.results), key=n.key, label=n.label) for n in m.graph.main.nodes]
        assert estimate(again, ways).series == found.series
