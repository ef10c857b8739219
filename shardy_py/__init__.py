"""Shardy for JAX: propagates shardings through a traced program, shows them with their reasons, and runs the result.

Names are imported when they are first used, so that importing a core package such as `shardy_py.dialect` needs no JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardy_py.backends.host_threads import provide as _provide_threads
from shardy_py.lazy import names_of as _names_of

if TYPE_CHECKING:
    from shardy_py import opt as opt
    from shardy_py import pipedream as pipedream
    from shardy_py import pipelines as pipelines
    from shardy_py import stages as stages
    from shardy_py import testing as testing
    from shardy_py.api import AutoSharded as AutoSharded
    from shardy_py.api import CompileError as CompileError
    from shardy_py.api import DifferenceError as DifferenceError
    from shardy_py.api import Options as Options
    from shardy_py.api import Traced as Traced
    from shardy_py.api import Verification as Verification
    from shardy_py.api import auto_shard as auto_shard
    from shardy_py.api import check as check
    from shardy_py.api import clear_caches as clear_caches
    from shardy_py.api import manual_computation as manual_computation
    from shardy_py.api import named_computation as named_computation
    from shardy_py.api import plan_of as plan_of
    from shardy_py.api import propagation_barrier as propagation_barrier
    from shardy_py.api import ring_attention as ring_attention
    from shardy_py.api import sharding_group as sharding_group
    from shardy_py.api import sharding_rule as sharding_rule
    from shardy_py.api import topology as topology
    from shardy_py.api import with_sharding_constraint as with_sharding_constraint
    from shardy_py.api.errors import ArgumentTypeError as ArgumentTypeError
    from shardy_py.api.errors import NotAvailableError as NotAvailableError
    from shardy_py.api.errors import OrderedEffectError as OrderedEffectError
    from shardy_py.api.errors import PeerFailedError as PeerFailedError
    from shardy_py.api.errors import StaticArgumentError as StaticArgumentError
    from shardy_py.api.errors import ValueMismatchError as ValueMismatchError
    from shardy_py.cost.hardware import Hardware as Hardware
    from shardy_py.cost.links import Fabric as Fabric
    from shardy_py.cost.links import Links as Links
    from shardy_py.dialect import AxisRef as AxisRef
    from shardy_py.dialect import DimensionSharding as DimensionSharding
    from shardy_py.dialect import Mesh as Mesh
    from shardy_py.dialect import OpShardingRule as OpShardingRule
    from shardy_py.dialect import TensorSharding as TensorSharding
    from shardy_py.errors import DeletedBufferError as DeletedBufferError
    from shardy_py.errors import DonationError as DonationError
    from shardy_py.errors import MeshError as MeshError
    from shardy_py.errors import PeerMissingError as PeerMissingError
    from shardy_py.errors import PlanMismatchError as PlanMismatchError
    from shardy_py.errors import PlanWarning as PlanWarning
    from shardy_py.errors import ShardyError as ShardyError
    from shardy_py.errors import SpecError as SpecError
    from shardy_py.facade import Plan as Plan
    from shardy_py.pipelines.markers import stage as stage
    from shardy_py.pipelines.pipelining import pipeline as pipeline
    from shardy_py.plan.code import Code as Code
    from shardy_py.plan.code import Edit as Edit
    from shardy_py.plan.collectives import Collective as Collective
    from shardy_py.plan.collectives import CollectivesByModule as CollectivesByModule
    from shardy_py.plan.collectives import ModuleCollectives as ModuleCollectives
    from shardy_py.plan.collectives import Total as Total
    from shardy_py.plan.compiled import CompiledCollective as CompiledCollective
    from shardy_py.plan.compiled import CompiledProgram as CompiledProgram
    from shardy_py.plan.cost_analysis import CostAnalysis as CostAnalysis
    from shardy_py.plan.diff import PlanDiff as PlanDiff
    from shardy_py.plan.donation import Donated as Donated
    from shardy_py.plan.explanation import Explanation as Explanation
    from shardy_py.plan.findings import Finding as Finding
    from shardy_py.plan.memory.analysis import MemoryAnalysis as MemoryAnalysis
    from shardy_py.plan.memory.analysis import PeakBuffer as PeakBuffer
    from shardy_py.plan.memory.analysis import Relief as Relief
    from shardy_py.plan.progress import Progress as Progress
    from shardy_py.plan.progress import Timings as Timings
    from shardy_py.plan.record import PlanError as PlanError
    from shardy_py.plan.record import PlanRecord as PlanRecord
    from shardy_py.plan.reshards import Reshard as Reshard
    from shardy_py.plan.search import Alternative as Alternative
    from shardy_py.plan.search import Constraint as Constraint
    from shardy_py.plan.search import Price as Price
    from shardy_py.plan.search import Search as Search
    from shardy_py.plan.values import PlannedValue as PlannedValue
    from shardy_py.planner.errors import PlannerBudgetError as PlannerBudgetError
    from shardy_py.planner.errors import PlannerInfeasible as PlannerInfeasible
    from shardy_py.planner.options import Planner as Planner
    from shardy_py.rules import RuleTable as RuleTable
    from shardy_py.view.check import Check as Check

__version__ = "0.1.0"

_provide_threads()

__all__, __getattr__, __dir__ = _names_of(__name__, former="stages")
