"""Equations whose inside JAX hands to someone else: kernels, callbacks, composites."""

from __future__ import annotations

from collections.abc import Mapping

from jax.extend.core import JaxprEqn

from shardy_py.dialect import OpShardingRule
from shardy_py.frontends import _jax
from shardy_py.frontends.expansions import expansion_of
from shardy_py.frontends.importer import Importer, Scope
from shardy_py.frontends.jaxprs import open_jaxpr
from shardy_py.frontends.primitives.avals import type_of_aval
from shardy_py.frontends.readers.calls import inlined, inlined_jaxpr
from shardy_py.frontends.readers.common import ReaderTable, bind, opaque
from shardy_py.ir import Block


def composite(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_composite_lowering`: an op whose decomposition is not looked into."""
    name = eqn.params["name"]
    jaxpr = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
    attributes = {"name": name, "decomposition": importer.symbol((name, open_jaxpr(jaxpr)), name)}
    opaque(importer, "stablehlo.composite", attributes, eqn, scope, block)


def callback(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`emit_python_callback`: a custom call on one device, or on each device where all axes are manual."""
    target = f"xla_ffi_python_{importer.platform}_callback"
    attributes = {"call_target_name": target, "has_side_effect": eqn.primitive.name != "pure_callback"}
    opaque(importer, "stablehlo.custom_call", attributes, eqn, scope, block)
    for result in block.ops[-1].results:
        result.sharding = importer.meshes.one_device() if importer.manual is None else importer.meshes.open(result.type.rank, 0)


def custom_call(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """A kernel that JAX can only lower for the platform it runs on: a custom call named after it."""
    target = str(eqn.params.get("target_name") or eqn.primitive.name)
    opaque(importer, "stablehlo.custom_call", {"call_target_name": target}, eqn, scope, block)


def pallas_call(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_pallas_call_lowering`: a kernel that is interpreted is lowered like any function, others are custom calls."""
    if not eqn.params["interpret"]:
        custom_call(importer, index, eqn, scope, block)
        return
    expansion = expansion_of(eqn, importer.platform)
    if expansion is None:
        importer.lowered(eqn, scope, block)
        return
    inlined_jaxpr(importer, index, expansion.jaxpr, importer.read(eqn, scope, block), eqn, scope, block)


def custom_partitioning(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """`_custom_partitioning_lowering_rule`: a custom call with the rule that the user gave."""
    if importer.all_manual:
        inlined(importer, index, eqn, scope, block)
        return
    operands = importer.read(eqn, scope, block)
    types = [type_of_aval(v.aval) for v in eqn.outvars]
    text = _jax.custom_partitioning_rule(eqn, importer.meshes.main)
    rule = OpShardingRule.parse(text) if text is not None else None
    attributes = {"call_target_name": "CustomSPMDPartitioning"}
    op = importer.op("stablehlo.custom_call", operands, types, eqn, block, attributes, rule_decided=rule is not None)
    if rule is not None:
        op.rule = rule
    else:
        importer.report("no-rule", eqn, "custom_partitioning without sharding_rule: shardings stop there.", "give it a sharding_rule")
    bind(eqn, scope, op.results)


READERS: ReaderTable = {
    "composite": composite,
    "custom_partitioning": custom_partitioning,
    "debug_callback": callback,
    "debug_print": callback,
    "ffi_call": custom_call,
    "io_callback": callback,
    "pallas_call": pallas_call,
    "pure_callback": callback,
}


OPAQUE: Mapping[str, str] = {
    "is a GPU kernel of cuDNN, and jaxlib has no rule for its custom call either.": """
        cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd
        dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper
        dot_product_attention_fwd dot_product_attention_fwd_wrapper fused_call rnn_bwd rnn_fwd scaled_matmul
        scaled_matmul_wrapper
    """,
    "calls back into Python, and jaxlib has no rule for callbacks either.": """
        buffer_callback check debug_callback debug_print inspect_sharding io_callback pure_callback
    """,
    "is a kernel or a call whose inside is not traced; give it a rule with `sharding_rule`.": """
        composite core_map custom_partitioning ffi_call mosaic_gpu_p mpmd_map pallas_call tpu_custom_call
    """,
    "is a sparse kernel of one platform, and jaxlib has no rule for its custom call either.": """
        coo_spmm coo_spmv csr_spmm csr_spmv spsolve
    """,
    "acts on a reference, which has no value to shard until JAX discharges it.": """
        accum_grad_in_ref addupdate empty_ref free_ref freeze get get_global masked_load masked_swap new_ref run_scoped swap
    """,
    "only stands inside Pallas kernels, which are not looked into.": """
        bitcast delay einshape_lo max_contiguous num_programs program_id remove_memory_space roll semaphore_read semaphore_signal
        semaphore_wait
    """,
    "works on boxes and logs that live while Python traces, not on arrays.": """
        box_get box_set log_extend log_read new_box new_log
    """,
    "is expanded by JAX before a jaxpr is lowered.": """
        call_hi_primitive call_hi_primitive_linearized custom_jvp_call_jaxpr eval_jaxpr jaxpr_call zeros_like
    """,
    "moves data between the processes of a job and needs their devices.": """
        global_array_to_host_local_array host_local_array_to_global_array
    """,
    "marks code that is never reached.": """
        unreachable
    """,
}
"""Reason -> primitives; the reason follows the name of the primitive."""

REASONS: Mapping[str, str] = {name: reason for reason, names in OPAQUE.items() for name in names.split()}
"""Primitive -> the reason."""
