"""The private names of JAX that the library reads, each with the last version of JAX that it was seen in: they date the next break."""

from __future__ import annotations

import ast
import importlib
import pathlib

import jax
import pytest

from shardy_py.frontends import _jax

SEEN = dict.fromkeys(
    """
    checkify.error_checks config.trace_context core.InternalMutableArrayEffect core.JaxprEqnContext core.extend_axis_env_nd
    core.filter_named_axis_effects core.physical_aval core.to_concrete_value core.trace_ctx core.trace_state_clean
    custom_partitioning_sharding_rule.sdy_sharding_rule_to_mlir custom_partitioning_sharding_rule.str_to_sdy_sharding_rule
    distributed.global_state interpreters.ad.backward_pass interpreters.ad.jvp_jaxpr interpreters.batching.batch_jaxpr2
    interpreters.mlir._lowerings interpreters.mlir._platform_specific_lowerings interpreters.mlir.add_manual_axes
    interpreters.partial_eval.DynamicJaxprTrace interpreters.partial_eval.closed_call_partial_eval_custom_rule
    interpreters.partial_eval.convert_constvars_jaxpr interpreters.partial_eval.lower_jaxpr2
    interpreters.partial_eval.partial_eval_jaxpr_nounits_fwd interpreters.pxla._discharge_internal_refs
    lax.control_flow.loops._scan_impl
    linear_util.wrap_init mesh.empty_concrete_mesh mesh.get_concrete_mesh random.core._gamma_one random.prng.iterated_vmap_binary_bcast
    shard_map.shard_map_p sharding_impls.UnspecifiedValue sharding_impls._internal_use_concrete_mesh sharding_impls.physical_sharding
    source_info_util.user_frames state.discharge._run_state_impl traceback_util.api_boundary traceback_util.register_exclusion
    xla_bridge.CROSS_HOST_TRANSFER_SOCKET_ADDRESS xla_bridge.backends_are_initialized
    """.split(),
    "0.12.0.1",
)
"""Module and name, without `jax._src` -> the last version of JAX that has it."""


def read() -> set[str]:
    """`module.name` of every attribute of a private module, and of every name imported from one."""
    tree = ast.parse(pathlib.Path(_jax.__file__).read_text())
    modules: dict[str, str] = {}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax._src"):
            for alias in node.names:
                try:
                    importlib.import_module(f"{node.module}.{alias.name}")
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                except ModuleNotFoundError:
                    names.add(f"{node.module}.{alias.name}")
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    names |= {
        f"{modules[node.value.id]}.{node.attr}" for node in attributes if isinstance(node.value, ast.Name) and node.value.id in modules
    }
    return {name.removeprefix("jax._src.") for name in names}


def test_the_list_is_complete() -> None:
    assert read() == SEEN.keys()


def version(text: str) -> list[int]:
    return [int(part) for part in text.split(".") if part.isdecimal()]


@pytest.mark.parametrize("name", SEEN)
def test_the_installed_version_has_them(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    if not hasattr(importlib.import_module(f"jax._src.{module}"), attribute):
        assert version(jax.__version__) > version(SEEN[name]), (
            "write down the last version that has it, and read it another way in later ones"
        )
