"""Reads a `jax.extend.core.ClosedJaxpr` into a `Program`: the ops that JAX's lowering gives, in the same order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var
from jax.sharding import AbstractMesh
from jax.sharding import Mesh as JaxMesh

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.frontends import _jax
from shardy_py.frontends.equations import EquationImporter
from shardy_py.frontends.importer import Importer
from shardy_py.frontends.importer import Rules as Rules
from shardy_py.frontends.importer import Scope as Scope
from shardy_py.frontends.locations import calls, locate
from shardy_py.frontends.meshes import Meshes
from shardy_py.frontends.primitives.avals import type_of_aval
from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.plan.findings import Finding


@dataclasses.dataclass(frozen=True, slots=True)
class Imported:
    """The program of a jaxpr, with its variables' values and findings.

    Attributes:
        program: One function, `main`, whose arguments and results are those of the jaxpr.
    """

    program: Program
    scope: Scope
    findings: list[Finding]


def from_jaxpr(
    closed_jaxpr: ClosedJaxpr,
    *,
    mesh: Mesh,
    in_shardings: Sequence[TensorSharding | None] | None = None,
    out_shardings: Sequence[TensorSharding | None] | None = None,
    argument_names: Sequence[str] | None = None,
    rules: Rules | None = None,
    platform: str = "cpu",
    devices: JaxMesh | AbstractMesh | None = None,
) -> Imported:
    """As reading `jax.jit(f).lower(...).compiler_ir()` with all calls imported, but straight from the jaxpr.

    Args:
        in_shardings: One per argument; None where nothing is known.
        rules: Primitive name or custom call target -> a rule specification with `bind(operand_shapes, result_shapes)`;
            the equation is then one op with that rule.
        devices: The devices that the program runs on, see `Meshes`.

    Raises:
        MeshError: A sharding is over another mesh than `devices`, and cannot be written over that.
    """
    closed_jaxpr = lowered(closed_jaxpr)
    jaxpr = closed_jaxpr.jaxpr
    importer = EquationImporter(Meshes("mesh", mesh, devices), dict(rules or {}), platform, typed=_jax.is_explicit(jaxpr))
    block = Block([type_of_aval(v.aval) for v in jaxpr.invars])
    main = Function("main", block, [type_of_aval(v.aval) for v in jaxpr.outvars])
    argument_shardings = list(in_shardings or [None] * len(jaxpr.invars))
    result_shardings = list(out_shardings or [None] * len(jaxpr.outvars))
    if importer.typed:
        argument_shardings = [s or importer.argument_sharding(v.aval) for s, v in zip(argument_shardings, jaxpr.invars, strict=True)]
        result_shardings = [s or importer.argument_sharding(v.aval) for s, v in zip(result_shardings, jaxpr.outvars, strict=True)]
    for argument, sharding in zip(block.arguments, argument_shardings, strict=True):
        argument.sharding = sharding
    main.result_shardings = result_shardings
    for argument, name in zip(block.arguments, argument_names or ()):
        argument.name = name
    arguments = _keys_constrained(importer, jaxpr.invars, block.arguments, argument_shardings, block)
    results, scope = importer.body(closed_jaxpr, arguments, block)
    results = _keys_constrained(importer, jaxpr.outvars, results, result_shardings, block)
    block.append(Op("func.return", results, (), rule_decided=True))
    program = Program([main], importer.meshes.table())
    program.locate = locate
    program.calls = calls
    return Imported(program, scope, importer.findings)


def lowered(closed_jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr that is read: without references, and types of several arrays."""
    return _jax.as_lowered(closed_jaxpr)


def from_equations(eqns: Sequence[JaxprEqn], results: Sequence[Var]) -> tuple[Program, tuple[tuple[Op, ...], ...]]:
    """Imports a run of equations on one device, as `from_jaxpr` would import a jaxpr of them.

    Returns:
        The program, and for each equation its ops, those in their regions included.

    Example:
        >>> import jax
        >>> closed = jax.make_jaxpr(lambda x: jax.numpy.sin(x) * 2.0)(1.0)
        >>> program, ops = from_equations(closed.jaxpr.eqns, closed.jaxpr.outvars)
        >>> [[op.name for op in each] for each in ops]
        [['stablehlo.sine'], ['sdy.constant', 'stablehlo.multiply']]
    """
    defined = {v for eqn in eqns for v in eqn.outvars}
    read = [v for v in (*(v for eqn in eqns for v in eqn.invars), *results) if isinstance(v, Var) and v not in defined]
    arguments = list(dict.fromkeys(read))
    importer = EquationImporter(Meshes("mesh", Mesh([("device", 1)])), {}, "cpu")
    block = Block([type_of_aval(v.aval) for v in arguments])
    main = Function("main", block, [type_of_aval(v.aval) for v in results])
    scope = Scope(jax.make_jaxpr(lambda: ())().jaxpr, dict(zip(arguments, block.arguments, strict=True)))
    ops: list[tuple[Op, ...]] = []
    for eqn in eqns:
        start = len(block.ops)
        importer.equations([eqn], scope, block)
        ops.append(tuple(inner for op in block.ops[start:] for inner in op.walk()))
    block.append(Op("func.return", [scope.env[v] for v in results], (), rule_decided=True))
    return Program([main], importer.meshes.table()), tuple(ops)


def _keys_constrained(
    importer: Importer, atoms: Sequence[Any], values: Sequence[Value], shardings: Sequence[TensorSharding | None], block: Block
) -> list[Value]:
    """Replicates the dimension that PRNG keys add, for keys without a sharding."""
    return [importer.constrain_key(v.aval, x, block) if s is None else x for v, x, s in zip(atoms, values, shardings, strict=True)]
