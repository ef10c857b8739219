"""Makes dimensions whose elements change places run unsharded, or sends parts to where they are needed."""

from __future__ import annotations

from dataclasses import dataclass

from shardy_py.ir import Block, Op, Program
from shardy_py.opt.partitioner.permutation.meshes import MeshNames
from shardy_py.opt.partitioner.permutation.replication import moved_factors, replicated
from shardy_py.opt.partitioner.permutation.reversal import REVERSE, reverse_parts
from shardy_py.passes.base import Pass, option
from shardy_py.passes.dataflow import get_sharding, set_sharding
from shardy_py.passes.export.explicit_reshards.decision import Decision
from shardy_py.passes.export.explicit_reshards.edits import Edits
from shardy_py.passes.propagation.log import Log
from shardy_py.rules import rule_of

_DIALECT = "stablehlo."
_RESHARD = "sdy.reshard"


@dataclass(frozen=True, kw_only=True)
class ResolvePermutationFactors(Pass):
    """Reshards around ops whose elements change places along a sharded dimension."""

    name = "sdy-resolve-permutation-factors"

    enable_halo_exchange: bool = option(True, "let reversals exchange parts")
    whole_mesh_ids: bool = option(False, "number devices over the whole mesh, for right results (not in Shardy)")

    def run(self, program: Program, log: Log | None = None) -> None:
        """Resolves the sharding of permutation factors: of windows, slices, pads, reversals.

        Operands and results of an op are resharded so that these factors are not sharded, except where a slice cuts off no more than
        the end of the last part. A reversal exchanges whole parts instead.

        Other disagreements between shardings must be settled. Shardy numbers devices among the manual axes; without `whole_mesh_ids` other
        devices exchange parts where the mesh has more axes or lists its devices in another order.

        Source: Shardy's resolve_permutation_factors.cc, as of jaxlib 0.10.2: pads, slices and reshapes exchange nothing.
        """
        resolver = _Resolver(program, self.enable_halo_exchange, self.whole_mesh_ids)
        for function in program.functions:
            resolver.visit(function.body)
        resolver.edits.apply()


class _Resolver:
    def __init__(self, program: Program, exchange: bool, whole_mesh_ids: bool) -> None:
        self.program = program
        self.exchange = exchange
        self.whole_mesh_ids = whole_mesh_ids
        self.names = MeshNames(program)
        self.edits = Edits()

    def visit(self, block: Block) -> None:
        """Visits the ops of a block, those in the regions of an op before it."""
        for op in block.ops:
            for region in op.regions:
                self.visit(region)
            if op.name.startswith(_DIALECT) and op.results:
                self.resolve(op)

    def resolve(self, op: Op) -> None:
        """Inserts the reshards of one op."""
        rule = rule_of(op, self.program.semantics)
        if rule is None or rule.is_custom or not rule.permutation:
            return
        if self.exchange and op.name == REVERSE and reverse_parts(op, self.names, self.edits, whole_mesh_ids=self.whole_mesh_ids):
            return
        shardings = [get_sharding(value) for value in (*op.operands, *op.results)]
        meshes = self.program.meshes
        decision = replicated(rule, moved_factors(op, rule, meshes), shardings, meshes)
        if decision is not None:
            self.carry_out(op, decision)

    def carry_out(self, op: Op, decision: Decision) -> None:
        """Inserts reshards before and after an op."""
        for i, sharding in decision.operands:
            reshard = Op(_RESHARD, (op.operands[i],), (op.operands[i].type,), {}, location=op.location, sharding=sharding)
            self.edits.before(op, reshard)
            op.set_operand(i, reshard.result)
        back: list[Op] = []
        for i, sharding in decision.results:
            result = op.results[i]
            old = get_sharding(result) or sharding.fully_closed_like()
            reshard = Op(_RESHARD, (result,), (result.type,), {}, location=op.location, sharding=old)
            set_sharding(result, sharding)
            result.replace_uses(reshard.result, lambda user, _, reshard=reshard: user is reshard)
            back.append(reshard)
        if back:
            self.edits.after(op, *back)
