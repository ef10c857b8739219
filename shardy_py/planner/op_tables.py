"""Price tables of the ops of a program, one for each kind: ops that run alike, on classes with the same strategies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardy_py.cost.collectives import collective_seconds
from shardy_py.cost.compute import PRODUCTS, roofline_seconds
from shardy_py.cost.links import levels_of
from shardy_py.cost.traffic import Fusion
from shardy_py.ir import Op, Program, Value
from shardy_py.partition.layouts import Layout
from shardy_py.partition.op import spec_of
from shardy_py.partition.price import Machine
from shardy_py.partition.tables import PriceTable, price_table
from shardy_py.passes.dataflow import CASE, MANUAL_COMPUTATION
from shardy_py.plan.collectives import axes_of
from shardy_py.plan.cost_walk import BlockCosts, Run
from shardy_py.plan.executed import user_collectives

Array = Any


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """Joint strategies of the classes of some values: the layouts of each value, and per joint strategy its number there."""

    strategies: Array
    domains: tuple[tuple[Layout, ...], ...]
    index: Array


class TooLarge(Exception):
    """A model has more entries than there is time for."""


class OpTables:
    """The parts that models of a program share, as prices depend on strategies alone; no choice changes `manual_seconds`."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program = program
        self.machine = machine
        self.count = sum(1 for _ in program.walk())
        costs = BlockCosts(program.main.body, program.meshes)
        runs = (*costs.runs, *costs.other_branches)
        self.counted = {run.op: roofline_seconds(run.work, run.accessed, machine.hardware) * run.trips for run in runs}
        self.manual_seconds = _manual_seconds(program, costs.runs, machine)
        self._fusion = Fusion(program.main.body)
        self._joints: dict[object, Joint] = {}
        self._priced: dict[object, PriceTable] = {}

    def joint(self, shape: Sequence[tuple[int, ...]], domains: Sequence[Sequence[Any]], most: float, rows: Array = None) -> Joint:
        """The joint strategies of numbered classes, no axis twice in a value; raises TooLarge if there are more than `most`."""
        key = shape, domains, b"" if rows is None else rows.tobytes()
        joint = self._joints.get(key)
        if joint is None:
            joint = self._joints[key] = _joint(shape, domains, _rows(shape, domains, most) if rows is None else rows)
        return joint

    def priced(self, op: Op, joint: Joint) -> PriceTable:
        """The prices of an op."""
        spec, memory = spec_of(op), self._fusion.accesses(op)
        kind = spec, memory, id(joint)
        priced = self._priced.get(kind)
        if priced is None:
            priced = self._priced[kind] = price_table(spec, joint.domains, joint.index, self.machine, memory)
        return priced


def _manual_seconds(program: Program, runs: Sequence[Run], machine: Machine) -> float:
    """Seconds of the ops and of the user's collectives inside of `shard_map`s.

    Of ops in a branch of a cond around the `shard_map` they are left out, so that the bound holds whichever branch takes longest.
    """
    if all(op.name != MANUAL_COMPUTATION for op in program.walk()):
        return 0.0
    total = math.fsum(roofline_seconds(run.work, run.accessed, machine.hardware) * run.trips for run in runs if _always_runs(run.op))
    for each, _ in user_collectives(program, {}):
        levels = levels_of(axes_of(each, machine.sizes), machine.links, machine.sizes)
        total += collective_seconds(each.kind, each.operand_bytes, levels) * each.runs
    return total


def _always_runs(op: Op) -> bool:
    """Whether an op is inside of a `shard_map` that is in no branch of a cond."""
    around = [each.name for each in op.outward()]
    return MANUAL_COMPUTATION in around and CASE not in around[around.index(MANUAL_COMPUTATION) :]


def _rows(shape: Sequence[tuple[int, ...]], domains: Sequence[Sequence[Any]], most: float) -> Array:
    """All joint strategies of numbered classes, one of each class in a row. Raises TooLarge if there are more than `most`."""
    names = list(dict.fromkeys(part.name for domain in domains for axes in domain for part in axes))
    bits = {name: 1 << i for i, name in enumerate(names)}
    masks = [np.array([sum({bits[p.name] for p in axes}) for axes in domain], np.int64) for domain in domains]
    columns: dict[int, Array] = {}
    count = 1
    for value in shape:
        used = np.zeros(count, np.int64)
        for c in dict.fromkeys(value):
            if c in columns:
                allowed = (used & masks[c][columns[c]]) == 0
                (rows,), strategies = np.nonzero(allowed), None
            else:
                allowed = (used[:, None] & masks[c]) == 0
                if np.count_nonzero(allowed) > most:  # before they are written down
                    raise TooLarge
                rows, strategies = np.nonzero(allowed)
            columns = {each: column[rows] for each, column in columns.items()}
            if strategies is not None:
                columns[c] = strategies
            used, count = used[rows] | masks[c][columns[c]], len(rows)
    return np.stack([columns[c] for c in range(len(domains))], axis=1) if domains else np.zeros((1, 0), np.int64)


def _joint(shape: Sequence[tuple[int, ...]], domains: Sequence[Sequence[Any]], rows: Array) -> Joint:
    """Joint strategies of numbered classes, with the layouts of the values."""
    value_domains: list[tuple[Layout, ...]] = []
    index: list[Array] = []
    for value in shape:
        key = np.zeros(len(rows), np.int64)
        for c in value:
            key = key * len(domains[c]) + rows[:, c]
        distinct, first, own = np.unique(key, return_index=True, return_inverse=True)
        del distinct
        value_domains.append(tuple(tuple(domains[c][rows[at, c]] for c in value) for at in first))
        index.append(own.reshape(-1))
    return Joint(rows, tuple(value_domains), np.array(index, np.int64).reshape(len(shape), len(rows)))


ALONE = frozenset(("stablehlo.transpose", "stablehlo.reshape", "stablehlo.negate"))
"""Ops of one operand that is a partial sum."""

TOGETHER = frozenset(("stablehlo.add", "stablehlo.subtract"))
"""Ops all of whose operands are partial sums over the same axes."""


def reduced_shares(program: Program) -> dict[Op, float]:
    """The part of the reduction of each product that is left if it is put off until something else reads the partial sums.

    A sum of products is reduced once, and a product of which only sums along dimensions are read is reduced behind them.
    """
    products: dict[Value, tuple[Op, ...]] = {}
    shares: dict[Op, float] = {}
    for op in program.walk():
        partial = [products[v] for v in op.operands if v in products and len(v.uses) == 1]
        if op.name in PRODUCTS:
            added: tuple[Op, ...] = (op,)
        elif _is_linear(op, len(partial)):
            added = tuple(product for each in partial for product in each)
        else:
            continue
        products[op.result] = added
        for product in added:
            share = math.prod(op.result.type.shape) / (len(added) * math.prod(product.result.type.shape))
            shares[product] = min(shares.get(product, 1.0), share)
    return shares


def _is_linear(op: Op, partial: int) -> bool:
    """Whether an op is linear in so many of its operands."""
    if op.name in TOGETHER:
        return partial == len(op.operands)
    return partial == 1 and (op.name in ALONE or op.name == "stablehlo.multiply" or op.primitive == "reduce_sum")
