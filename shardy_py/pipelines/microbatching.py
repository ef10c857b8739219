"""Splits a step into the part that runs once per microbatch and the part that runs once per step.

The step is traced twice, on the whole batch and on one microbatch. A dimension that differs is one of examples; a value that depends on
the batch and does not differ has been summed over examples. Literals that differ, such as the 1/n of a mean, are those of the whole
batch, so that the sum over microbatches is what the whole batch gives: data parallelism in time instead of over devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var

from shardy_py.frontends.loops import scan_counts
from shardy_py.pipelines.errors import PipelineError, place
from shardy_py.pipelines.flatten import FlatEquation, FlatStep, flatten
from shardy_py.pipelines.jaxprs import Atom, dtype_of, is_extended_dtype, live, local_rule, shape_of, short
from shardy_py.pipelines.rows import CUTTING, ExampleRows, follow


class BatchKind(Enum):
    """The relation of a value to the batch.

    Attributes:
        SAME: It does not depend on it.
        SUM: It is a sum over examples: microbatches add up.
        WHOLE: It needs the sum over all microbatches.
        LOCAL: A statistic of one microbatch, where that was allowed.
    """

    SAME = "same"
    EXAMPLES = "examples"
    SUM = "sum"
    WHOLE = "whole"
    LOCAL = "local"


ONCE = frozenset({BatchKind.SAME, BatchKind.WHOLE, BatchKind.SUM})
"""Kinds of values that a step has once."""

SUMMING = frozenset({"dot_general", "reduce_sum", "conv_general_dilated"})
"""Primitives that sum over every dimension that they take away."""

ROW_NUMBERS = frozenset({"lt", "ge", "add", "select_n", "broadcast_in_dim", "reshape", "concatenate", "convert_element_type", "squeeze"})
"""Primitives that take numbers of rows to indices."""

INDEXING = frozenset({"gather", "scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"})
"""Primitives that may take indices made of numbers of rows: in a microbatch both rows and their numbers are its own."""

ADDING = frozenset({"add", "add_any", "sub", "neg", "reshard", "sharding_constraint"})
"""Primitives that are linear in all operands, of integers too."""


@dataclass
class SplitStep:
    """A step cut in two.

    Attributes:
        prologue: Values of the whole batch, without parameters, that microbatches need.
        dims: Variable -> its dimensions of examples, one at most.
        data_only: Variables that depend on the batch but not on other arguments, single numbers excepted.
    """

    micro: FlatStep
    update: list[FlatEquation]
    kinds: dict[Var, BatchKind]
    sums: list[Var] = field(default_factory=list)
    stacked: list[Var] = field(default_factory=list)
    averaged: list[Var] = field(default_factory=list)
    prologue: list[Var] = field(default_factory=list)
    whole: FlatStep | None = None
    data_only: set[Var] = field(default_factory=set)
    whole_of: dict[Var, Var] = field(default_factory=dict)
    dims: dict[Var, tuple[int, ...]] = field(default_factory=dict)


def split(whole: FlatStep, micro: FlatStep, batch: Sequence[bool], count: int, local_statistics: bool) -> SplitStep:
    """Cuts a step. Raises PipelineError if the step depends on its batch in a way that microbatches do not reproduce.

    Args:
        whole: The step on the whole batch; for a single microbatch on any other number of examples, twice as many.
    """
    if count == 1:
        # Statistics of the one microbatch are those of the batch, and so are its literals.
        return _StepSplitter(whole, micro, 2, True, own=True).split(batch)
    return _StepSplitter(whole, micro, count, local_statistics).split(batch)


class _StepSplitter:
    def __init__(
        self, whole: FlatStep, micro: FlatStep, count: int, local_statistics: bool, inside: bool = False, own: bool = False, size: int = 0
    ) -> None:
        _check_alike(whole, micro)
        self.inside, self.own = inside, own
        self.free: set[Var] = set()  # depend on no input at all
        self.rows: set[Var] = set()  # made of numbers of rows
        self.layouts: dict[Var, ExampleRows | None] = {}
        self.inner: dict[Var, _StepSplitter] = {}
        self.size = size
        self.whole, self.micro, self.count, self.local_statistics = whole, micro, count, local_statistics
        self.kinds: dict[Var, BatchKind] = {}
        self.dims: dict[Var, tuple[int, ...]] = {}
        self.data_only: set[Var] = set()
        self.prologue: dict[Var, None] = {}
        self.local: set[Var] = set()
        self.zeros: set[Var] = set()

    def split(self, batch: Sequence[bool]) -> SplitStep:
        self.size = shape_of(self.micro.invars[list(batch).index(True)])[0]
        for v, w, is_batch in zip(self.micro.invars, self.whole.invars, batch):
            self.kinds[v] = BatchKind.EXAMPLES if is_batch else BatchKind.SAME
            self.dims[v] = self.scaled(v, w)
            if is_batch:
                self.data_only.add(v)
                self.layouts[v] = ExampleRows()
        for v, w in zip(self.micro.consts, self.whole.consts):
            self.kinds[v] = BatchKind.EXAMPLES if shape_of(v) != shape_of(w) else BatchKind.SAME
            self.dims[v] = self.scaled(v, w)
            self.layouts[v] = ExampleRows()
            self.data_only.add(v)
            self.check_constant(v, w)
        self.visit_all()
        return self.cut()

    def check_constant(self, v: Var, w: Var) -> None:
        """Refuses a captured array whose rows differ, unless they are the numbers of the rows."""
        for d in self.dims[v]:
            part, batch = (np.moveaxis(_numbers(flat.consts[x]), d, -1) for flat, x in ((self.micro, v), (self.whole, w)))
            if all(np.array_equal(rows, np.broadcast_to(np.arange(rows.shape[-1]), rows.shape)) for rows in (part, batch)):
                self.rows.add(v)
            elif not np.array_equal(batch, np.concatenate([part] * self.count, axis=-1)):
                raise PipelineError(
                    f"a captured array {short(w)} has other numbers for every example", where="sp.pipeline",
                    why="the function makes it from the size of its batch, and a microbatch has fewer examples",
                    fix="pass it as part of the batch",
                )  # fmt: skip

    def visit_all(self) -> None:
        for index, (node, twin) in enumerate(zip(self.micro.nodes, self.whole.nodes)):
            while True:
                try:
                    self.visit(node, twin.eqn)
                    break
                except _Crossing as crossing:
                    self.make_local(crossing.source, index)

    def scaled(self, v: Atom, w: Atom) -> tuple[int, ...]:
        """The dimensions of examples of a value."""
        return tuple(d for d, (a, b) in enumerate(zip(shape_of(v), shape_of(w))) if a != b)

    def kind(self, v: Atom) -> BatchKind:
        return BatchKind.SAME if isinstance(v, Literal) else self.kinds[v]

    def visit(self, node: FlatEquation, twin: JaxprEqn) -> None:
        eqn = node.eqn
        kinds = [self.kind(v) for v in eqn.invars]
        out_dims = [self.scaled(v, w) for v, w in zip(eqn.outvars, twin.outvars)]
        for v, w, dims in zip(eqn.outvars, twin.outvars, out_dims):
            if any(shape_of(w)[d] != self.count * shape_of(v)[d] for d in dims):
                raise PipelineError(
                    f"a value of shape {short(v)} in a microbatch is {short(w)} in the batch", where=place(eqn),
                    why=f"microbatches are {self.count} equal parts; a dimension that is not {self.count} times as long mixes examples",
                    fix="work on each example alone, or do this outside of the pipelined function",
                )  # fmt: skip
            if len(dims) > 1:
                raise PipelineError(
                    f"examples meet each other in {short(v)}", where=place(eqn),
                    why=f"dimensions {dims} both run over the batch, and a microbatch does not see the examples of the others",
                    fix="compute this part outside of the pipelined function, or use num_microbatches=1",
                )  # fmt: skip
        if all(k is BatchKind.SAME for k in kinds):
            result_kinds = [BatchKind.EXAMPLES if dims else BatchKind.SAME for dims in out_dims]
            if _is_zero(eqn, self.zeros):
                self.zeros.update(eqn.outvars)
        else:
            result_kinds = self.combine(node, twin, kinds, out_dims)
        self.follow_rows(eqn, out_dims)
        entries = [(d[0], self.layouts.get(v)) if isinstance(v, Var) and (d := self.dims[v]) else None for v in eqn.invars]
        layouts = follow(eqn, entries, out_dims, self.size)
        for v, k, dims, layout in zip(eqn.outvars, result_kinds, out_dims, layouts):
            self.kinds[v], self.dims[v], self.layouts[v] = k, dims, layout
        if any(k is not BatchKind.SAME for k in result_kinds) and all(
            isinstance(v, Literal) or v in self.data_only or self.is_free(v) or self.is_number(v) for v in eqn.invars
        ):
            self.data_only.update(eqn.outvars)
        if not eqn.invars or all(isinstance(v, Literal) or self.is_free(v) for v in eqn.invars):
            self.free.update(eqn.outvars)

    def is_number(self, v: Var) -> bool:
        """Whether a value is one number that does not depend on the batch, such as a scale of the loss; not a key."""
        return self.kinds[v] is BatchKind.SAME and not shape_of(v) and not is_extended_dtype(dtype_of(v))

    def is_free(self, v: Atom) -> bool:
        return isinstance(v, Literal) or v in self.free

    def combine(self, node: FlatEquation, twin: JaxprEqn, kinds: list[BatchKind], out_dims: list[tuple[int, ...]]) -> list[BatchKind]:
        eqn = node.eqn
        examples = BatchKind.EXAMPLES in kinds
        summed = [v for v, k in zip(eqn.invars, kinds) if isinstance(v, Var) and k in (BatchKind.SUM, BatchKind.WHOLE)]
        if summed and (any(out_dims) or (examples and not self.accumulates(eqn, kinds))):
            for v in summed:
                self.meets_examples(eqn, v)
            return self.combine(node, twin, [self.kind(v) for v in eqn.invars], out_dims)
        if summed and node.backward and BatchKind.LOCAL in kinds:
            raise _Crossing(summed[0])
        if not examples:
            if summed:
                stays = self.inside and self.stays_sum(eqn, kinds)
                return [BatchKind.SUM if stays else BatchKind.WHOLE] * len(out_dims)
            return [BatchKind.EXAMPLES if dims else (BatchKind.LOCAL if BatchKind.LOCAL in kinds else BatchKind.SAME) for dims in out_dims]
        if any(out_dims) and not self.own:
            self.check_along(eqn, twin)
        if eqn.primitive.name == "scan":
            self.enter(eqn, twin)
        elif not self.own:
            self.check_bodies(eqn, twin)
        return [BatchKind.EXAMPLES if dims else self.sum_kind(eqn, i) for i, dims in enumerate(out_dims)]

    def stays_sum(self, eqn: JaxprEqn, kinds: list[BatchKind]) -> bool:
        """Whether a result of sums over examples is one, inside of a loop: the equation is linear in them."""
        local = local_rule(eqn)
        groups = (tuple(range(len(kinds))),) if eqn.primitive.name in ADDING else () if local is None else local.linear
        sums = {i for i, k in enumerate(kinds) if k is BatchKind.SUM}
        able = sums | {i for i, v in enumerate(eqn.invars) if _is_zero_atom(v, self.zeros)}
        return {*kinds} <= {BatchKind.SAME, BatchKind.SUM} and any(sums <= {*group} <= able for group in groups)

    def follow_rows(self, eqn: JaxprEqn, out_dims: list[tuple[int, ...]]) -> None:
        """Refuses numbers of rows that are used as anything but indices: a microbatch counts from 0 again."""
        name = eqn.primitive.name
        self.check_indices(eqn)
        if name == "iota" and eqn.params["dimension"] in out_dims[0]:
            self.rows.update(eqn.outvars)
        elif any(isinstance(v, Var) and v in self.rows for v in eqn.invars) and name not in INDEXING:
            if name not in ROW_NUMBERS:
                raise PipelineError(
                    f"{name} computes with the positions of examples in their batch", where=place(eqn),
                    why="each microbatch counts its rows from 0", fix="pass these numbers as part of the batch",
                )  # fmt: skip
            self.rows.update(eqn.outvars)

    def check_indices(self, eqn: JaxprEqn) -> None:
        """Refuses to pick examples by anything but their own numbers."""
        numbers = eqn.params.get("dimension_numbers") if eqn.primitive.name in INDEXING else None
        operand = eqn.invars[0] if numbers is not None else None
        if numbers is None or not isinstance(operand, Var) or not self.dims.get(operand):
            return
        indexed = numbers.start_index_map if eqn.primitive.name == "gather" else numbers.scatter_dims_to_operand_dims
        if self.dims[operand][0] in indexed and eqn.invars[1] not in self.rows:
            raise PipelineError(
                f"{eqn.primitive.name} picks examples of {short(operand)} by number", where=place(eqn),
                why="a microbatch does not see the examples of the others", fix="do this outside of the pipelined function",
            )  # fmt: skip

    def accumulates(self, eqn: JaxprEqn, kinds: list[BatchKind]) -> bool:
        return (
            eqn.primitive.name == "scatter-add"
            and kinds[0] is BatchKind.SUM
            and BatchKind.SUM not in kinds[1:]
            and BatchKind.WHOLE not in kinds
        )

    def meets_examples(self, eqn: JaxprEqn, v: Var) -> None:
        """A value that needs the whole batch is used by single examples: known beforehand, or refused, or one of the microbatch."""
        if v in self.data_only and not self.inside:
            self.prologue[v] = None
            self.kinds[v] = BatchKind.SAME
        elif self.local_statistics:
            raise _Crossing(v)
        else:
            raise PipelineError(
                f"{short(v)}, a statistic of the batch, is used by single examples", where=place(eqn),
                why="a microbatch does not see the examples of the others (batch normalization in training does this)",
                fix='pass batch_statistics="microbatch" for statistics of each microbatch, or normalize over something else',
            )  # fmt: skip

    def make_local(self, source: Var, before: int) -> None:
        """Makes a value and its operands, back to the examples, statistics of one microbatch."""
        needed = {source}
        for node in reversed(self.micro.nodes[:before]):
            if needed & set(node.eqn.outvars):
                for v in node.eqn.outvars:
                    if self.kinds[v] in (BatchKind.SUM, BatchKind.WHOLE):
                        self.kinds[v] = BatchKind.LOCAL
                        self.local.add(v)
                needed.update(v for v in node.eqn.invars if isinstance(v, Var) and self.kinds[v] in (BatchKind.SUM, BatchKind.WHOLE))

    def check_along(self, eqn: JaxprEqn, twin: JaxprEqn) -> None:
        """Refuses equations that a dimension of examples does not pass through, by the rule that cuts them over devices.

        Two take their rows by position, which that rule counts from the block of a device.
        """
        name = eqn.primitive.name
        operand_dims = [self.dims[v] if isinstance(v, Var) else () for v in eqn.invars]
        by_position: Collection[int] = ()
        if name == "dynamic_update_slice" and operand_dims[0] != operand_dims[1]:
            by_position = operand_dims[0]
        elif name == "ragged_dot_general":
            by_position = eqn.params["ragged_dot_dimension_numbers"].lhs_ragged_dimensions
        local = None if name in INDEXING | CUTTING.keys() else local_rule(twin)
        ordered = set() if local is None else {*local.rule.need_replication, *local.rule.permutation}
        for i, (v, dims) in enumerate(zip(eqn.invars, operand_dims)):
            if any((i == 0 and d in by_position) or (local is not None and ordered & {*local.rule.operand_mappings[i][d]}) for d in dims):
                raise PipelineError(
                    f"{name} runs along the examples of {short(v)}", where=place(eqn),
                    why="a microbatch does not see the examples of the others", fix="do this outside of the pipelined function",
                )  # fmt: skip

    def check_bodies(self, eqn: JaxprEqn, twin: JaxprEqn) -> None:
        """Looks at branches, and at the condition and body of a loop, as at steps: examples may meet there, too."""
        if eqn.primitive.name == "cond":
            for batch, part in zip(twin.params["branches"], eqn.params["branches"]):
                self.body(batch, part, [(self.kind(v), v) for v in eqn.invars[1:]])
        elif eqn.primitive.name == "while":
            condition, body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
            entries = [(self.kind(v), v) for v in eqn.invars]
            consts, carried = entries[:condition], entries[condition + body :]
            self.body(twin.params["body_jaxpr"], eqn.params["body_jaxpr"], entries[condition:])
            inner = self.body(twin.params["cond_jaxpr"], eqn.params["cond_jaxpr"], [*consts, *carried])
            if inner.kind(inner.micro.outvars[0]) is not BatchKind.SAME:
                raise PipelineError(
                    "a loop ends by a value of all examples", where=place(eqn), why="a microbatch does not see the examples of the others",
                    fix="run a fixed number of steps, or use jax.vmap, by which every example ends by itself",
                )  # fmt: skip

    def sum_kind(self, eqn: JaxprEqn, position: int) -> BatchKind:
        """The kind of a result without examples, made of examples."""
        name = eqn.primitive.name
        integers = not jax.dtypes.issubdtype(dtype_of(eqn.outvars[position]), np.inexact)
        good = name in SUMMING
        if name == "scatter-add":
            good = self.kind(eqn.invars[0]) is BatchKind.SUM or _is_zero_atom(eqn.invars[0], self.zeros)
        elif name == "scan":
            good = self.scan_sums(eqn, position)
        if good:
            return BatchKind.SUM
        raise PipelineError(
            f"{name} makes one value of all examples: {short(eqn.outvars[position])}", where=place(eqn),
            why="microbatches are added up, and this is not a sum over examples" + (" (it is a selection)" if integers else ""),
            fix="return the values per example and reduce them outside, or sum them",
        )  # fmt: skip

    def enter(self, eqn: JaxprEqn, twin: JaxprEqn) -> None:
        """Looks at the body of a loop as at a step."""
        consts, carried = scan_counts(eqn)
        if eqn.params["length"] != twin.params["length"]:
            if carried:
                raise PipelineError(
                    "a loop over the examples carries something from one to the next", where=place(eqn),
                    why="a microbatch does not see the examples of the others", fix="use jax.vmap",
                )  # fmt: skip
            return
        entries: list[tuple[BatchKind, Atom]] = []
        for i, v in enumerate(eqn.invars):
            begins_at_zero = consts <= i < consts + carried and _is_zero_atom(v, self.zeros)
            entries.append((BatchKind.SUM if begins_at_zero else self.kind(v), v))
        self.inner[eqn.outvars[0]] = self.body(twin.params["jaxpr"], eqn.params["jaxpr"], entries)

    def body(self, whole: ClosedJaxpr, micro: ClosedJaxpr, operands: Sequence[tuple[BatchKind, Atom]]) -> _StepSplitter:
        """Looks at the body of a loop, or at a branch, whose operands have these kinds where they have no examples."""
        bodies = [flatten(jaxpr, [True] * len(operands)) for jaxpr in (whole, micro)]
        inner = _StepSplitter(bodies[0], bodies[1], self.count, self.local_statistics, inside=True, own=self.own, size=self.size)
        for v, w, (kind, outer) in zip(inner.micro.invars, inner.whole.invars, operands):
            inner.dims[v] = inner.scaled(v, w)
            inner.kinds[v] = BatchKind.EXAMPLES if inner.dims[v] else kind
            inner.layouts[v] = None if isinstance(outer, Literal) else self.layouts.get(outer)
        for v, w in zip(inner.micro.consts, inner.whole.consts):
            inner.dims[v] = inner.scaled(v, w)
            inner.kinds[v] = BatchKind.EXAMPLES if inner.dims[v] else BatchKind.SAME
            inner.check_constant(v, w)
        inner.visit_all()
        for node, twin in zip(inner.micro.nodes, inner.whole.nodes):
            if inner.literals_of_batch(node) and not _equal_literals(node, twin):
                raise PipelineError(
                    f"{node.eqn.primitive.name} computes with the number of examples inside of a loop", where=place(node.eqn),
                    why="the loop of a microbatch has the number of its own examples", fix="compute with it before the loop or behind it",
                )  # fmt: skip
        return inner

    def scan_sums(self, eqn: JaxprEqn, position: int) -> bool:
        """Whether a result of a loop is a sum over examples: the body adds such sums to it, and it begins at zero."""
        inner = self.inner.get(eqn.outvars[0])
        if inner is None:
            return False
        consts, carried = scan_counts(eqn)
        starts = position >= carried or _is_zero_atom(eqn.invars[consts + position], self.zeros)
        return starts and inner.kind(inner.micro.outvars[position]) is BatchKind.SUM

    def constants(self) -> dict[Var, Any]:
        """Captured arrays of a microbatch: those of the batch where they have no rows of examples, as literals are."""
        if self.own:
            return self.micro.consts
        both = zip(self.micro.consts, self.whole.consts)
        return {v: self.micro.consts[v] if self.dims[v] else self.whole.consts[w] for v, w in both}

    def cut(self) -> SplitStep:
        """The step in two parts, once the kind of every value is known."""
        micro, kinds = self.micro, self.kinds
        twin_of = self.twins()
        each, once = self.nodes_of_microbatch(), self.nodes_of_step(twin_of)
        results = [v for v in micro.outvars if isinstance(v, Var)]
        update = live([n for n in once if not n.eqn.outvars or not all(v in self.prologue for v in n.eqn.outvars)], results)
        read = dict.fromkeys((*_reads(update), *results))
        computed, updated = _results(each), _results(update)
        crossing = [v for v in read if v in computed and v not in updated]
        nodes = live(each, crossing)
        used = {*_reads(nodes), *read}
        # A cotangent is a part of a sum; a statistic of the forward pass is one of several estimates.
        backward = _results(node for node in nodes if node.backward)
        return SplitStep(
            FlatStep(micro.invars, tuple(crossing), tuple(nodes), {v: c for v, c in self.constants().items() if v in used}),
            update,
            kinds,
            sums=[v for v in crossing if kinds[v] is BatchKind.SUM or (kinds[v] is BatchKind.LOCAL and v in backward)],
            stacked=[v for v in crossing if kinds[v] is BatchKind.EXAMPLES],
            averaged=[v for v in crossing if kinds[v] is BatchKind.LOCAL and v not in backward],
            prologue=[v for v in self.prologue if v in used],
            whole=micro if self.own else self.whole,
            data_only=self.data_only,
            whole_of={v: v if self.own else w for w, v in twin_of.items()},
            dims=self.dims,
        )

    def twins(self) -> dict[Var, Var]:
        """Variable of the whole batch -> that of the microbatch."""
        whole, micro = self.whole, self.micro
        twin_of: dict[Var, Var] = {}
        for twin, node in zip(whole.nodes, micro.nodes):
            twin_of.update(zip(twin.eqn.outvars, node.eqn.outvars))
        twin_of.update(zip(whole.invars, micro.invars))
        twin_of.update(zip(whole.consts, micro.consts))
        return twin_of

    def has_examples(self, node: FlatEquation) -> bool:
        """Whether an equation reads or computes values of examples, or statistics of one microbatch."""
        inputs, outputs = [self.kind(v) for v in node.eqn.invars], [self.kinds[v] for v in node.eqn.outvars]
        return BatchKind.EXAMPLES in inputs or BatchKind.EXAMPLES in outputs or BatchKind.LOCAL in (outputs or inputs)

    def nodes_of_microbatch(self) -> list[FlatEquation]:
        """Equations that run for each microbatch; those that do not depend on the batch are among them, for what reads them there."""
        nodes: list[FlatEquation] = []
        for node, twin in zip(self.micro.nodes, self.whole.nodes):
            out = node.eqn.outvars
            # An equation without results, such as a print, runs once.
            is_same = bool(out) and all(self.kinds[v] is BatchKind.SAME for v in out)
            if out and all(v in self.prologue for v in out):
                continue
            if (is_same and not any(v in self.prologue for v in out)) or self.has_examples(node):
                nodes.append(self.without_prologue(_with_literals(node, twin, self.literals_of_batch(node))))
        return nodes

    def without_prologue(self, node: FlatEquation) -> FlatEquation:
        """An equation whose results do not stand for those that are computed beforehand: a microbatch would have its own part of them."""
        out = node.eqn.outvars
        if not any(v in self.prologue for v in out):
            return node
        unused = {v: Var(v.aval) for v in out if v in self.prologue}
        self.kinds.update(dict.fromkeys(unused.values(), BatchKind.SUM))
        self.dims.update(dict.fromkeys(unused.values(), ()))
        return FlatEquation(node.eqn.replace(outvars=[unused.get(v, v) for v in out]), node.backward, node.marker)

    def nodes_of_step(self, twin_of: Mapping[Var, Var]) -> list[FlatEquation]:
        """Equations that run once per step, those of the whole batch, over variables of the microbatch."""
        nodes: list[FlatEquation] = []
        for node, twin in zip(self.micro.nodes, self.whole.nodes):
            if self.has_examples(node) or any(self.kinds[v] not in ONCE for v in node.eqn.outvars):
                continue
            eqn = node.eqn
            if not self.own:
                invars = [v if isinstance(v, Literal) else twin_of[v] for v in twin.eqn.invars]
                eqn = twin.eqn.replace(invars=invars, outvars=list(eqn.outvars))
            nodes.append(FlatEquation(eqn, node.backward, node.marker))
        return nodes

    def literals_of_batch(self, node: FlatEquation) -> bool:
        """Whether literals are those of the whole batch: not in statistics of a microbatch, nor where rows of one are counted."""
        if self.own or any(v in self.local for v in node.eqn.outvars):
            return False
        return not any(isinstance(v, Var) and v in self.rows for v in node.eqn.invars)


def _reads(nodes: Iterable[FlatEquation]) -> list[Var]:
    return [v for node in nodes for v in node.eqn.invars if isinstance(v, Var)]


def _results(nodes: Iterable[FlatEquation]) -> set[Var]:
    return {v for node in nodes for v in node.eqn.outvars}


class _Crossing(Exception):
    def __init__(self, source: Var) -> None:
        super().__init__()
        self.source = source


def _with_literals(node: FlatEquation, twin: FlatEquation, of_batch: bool) -> FlatEquation:
    if not of_batch:
        return node
    invars = [w if isinstance(v, Literal) and shape_of(v) == shape_of(w) else v for v, w in zip(node.eqn.invars, twin.eqn.invars)]
    params = twin.eqn.params if node.eqn.primitive.name == "integer_pow" else node.eqn.params  # whose exponent is a literal, too
    return FlatEquation(node.eqn.replace(invars=invars, params=params), node.backward, node.marker)


def _numbers(constant: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(constant) if is_extended_dtype(constant.dtype) else constant)


def _equal_literals(node: FlatEquation, twin: FlatEquation) -> bool:
    """Whether an equation has the same literals in a microbatch as in the batch."""
    if node.eqn.primitive.name == "integer_pow":
        return node.eqn.params == twin.eqn.params
    pairs = [
        (np.asarray(v.val), np.asarray(w.val))
        for v, w in zip(node.eqn.invars, twin.eqn.invars)
        if isinstance(v, Literal) and isinstance(w, Literal)
    ]
    return all(np.all((v == w) | ((v != v) & (w != w))) for v, w in pairs)


def _is_zero(eqn: JaxprEqn, zeros: set[Var]) -> bool:
    return eqn.primitive.name in ("broadcast_in_dim", "convert_element_type", "reshape", "empty2") and all(
        _is_zero_atom(v, zeros) for v in eqn.invars
    )


def _is_zero_atom(v: Atom, zeros: set[Var]) -> bool:
    if isinstance(v, Literal):
        return bool(np.all(np.asarray(v.val) == 0))
    return v in zeros


def _check_alike(whole: FlatStep, micro: FlatStep) -> None:
    same = len(whole.nodes) == len(micro.nodes) and all(
        a.eqn.primitive is b.eqn.primitive and len(a.eqn.outvars) == len(b.eqn.outvars) for a, b in zip(whole.nodes, micro.nodes)
    )
    if same:
        return
    where = next(
        (place(b.eqn) for a, b in zip(whole.nodes, micro.nodes) if a.eqn.primitive is not b.eqn.primitive), "the end of the function"
    )
    raise PipelineError(
        "the function is another one on a microbatch than on the batch", where=where,
        why="traced with fewer examples it has other operations, so that it reads the size of its batch",
        fix="do not branch or loop on the number of examples",
    )  # fmt: skip
