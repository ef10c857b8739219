"""Reads a `jax.extend.core.ClosedJaxpr` into a `Program`: the ops that JAX's lowering gives, in the same order."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import AbstractMesh
from jax.sharding import Mesh as JaxMesh

from shardy_py.dialect import INSTALLED, Mesh, Semantics, TensorSharding
from shardy_py.errors import MeshError
from shardy_py.frontends import _jax
from shardy_py.frontends.expansions import Expansion, expansion_of
from shardy_py.frontends.importer import Importer
from shardy_py.frontends.importer import Rules as Rules
from shardy_py.frontends.importer import Scope as Scope
from shardy_py.frontends.inline import inline
from shardy_py.frontends.locations import calls, locate
from shardy_py.frontends.lowered import lower_fragment
from shardy_py.frontends.meshes import Meshes
from shardy_py.frontends.primitives import TEMPLATES
from shardy_py.frontends.primitives.avals import type_of_aval
from shardy_py.frontends.primitives.template import Builder, OpsTemplate, Unsupported
from shardy_py.frontends.readers import READERS
from shardy_py.frontends.readers.calls import call
from shardy_py.frontends.readers.common import bind, opaque
from shardy_py.frontends.readers.opaque import REASONS
from shardy_py.ir import Block, Function, Op, Program, Value
from shardy_py.plan.findings import Finding
from shardy_py.rules import CONTEXT, rule_for


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
    semantics: Semantics = INSTALLED,
) -> Imported:
    """As reading `jax.jit(f).lower(...).compiler_ir()` with all calls imported, but straight from the jaxpr.

    Args:
        in_shardings: One per argument; None where nothing is known.
        rules: Primitive name or custom call target -> a rule specification with `bind(operand_shapes, result_shapes)`;
            the equation is then one op with that rule.
        devices: The devices that the program runs on, see `Meshes`.
        semantics: The version of Shardy that rules and passes follow.

    Raises:
        MeshError: A sharding is over another mesh than `devices`, and cannot be written over that.
    """
    closed_jaxpr = lowered(closed_jaxpr)
    jaxpr = closed_jaxpr.jaxpr
    importer = EquationImporter(Meshes("mesh", mesh, devices), dict(rules or {}), platform, semantics)
    block = Block([type_of_aval(v.aval) for v in jaxpr.invars])
    main = Function("main", block, [type_of_aval(v.aval) for v in jaxpr.outvars])
    argument_shardings = list(in_shardings or [None] * len(jaxpr.invars))
    result_shardings = list(out_shardings or [None] * len(jaxpr.outvars))
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
    program.calls, program.semantics = calls, semantics
    return Imported(program, scope, importer.findings)


lowered = _jax.as_lowered
"""The jaxpr that is read: without references, and types of several arrays."""


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


_TEMPLATES_AT_MOST = 20_000


@functools.lru_cache(maxsize=16)
def _template_table(platform: str, semantics: Semantics, context: Hashable, manual: _jax.ManualContext | None) -> dict[Any, OpsTemplate]:
    """Signature of an equation -> its template; importers fill it."""
    return {}


_new_op, _new_value = Op.__new__, Value.__new__


def _append(template: OpsTemplate, eqn: JaxprEqn, values: list[Any], block: Block) -> None:
    """Appends the ops of an equation's template to a block, and their results to the values of its operands."""
    name, location, invars = eqn.primitive.name, eqn.source_info, eqn.invars
    for op_template in template.ops:
        # As Op(...) and Value(...), without the calls: this is most of the time of an import.
        op = _new_op(Op)
        op.name = op_template.name
        operands = op.operands = [values[s] for s in op_template.operands]
        op.attributes = op_template.attributes if op_template.literal < 0 else {"value": invars[op_template.literal].val}  # pyright: ignore[reportAttributeAccessIssue]
        op.regions = ()
        op.rule = op_template.rule
        op.rule_decided = op_template.rule_decided
        op.location = location
        op.primitive = name
        op.block = block
        i = 0
        for operand in operands:
            operand.uses[op, i] = None
            i += 1
        result = _new_value(Value)
        result.type = op_template.result_type
        result.owner = op
        result.index = 0
        result.uses = {}
        result.sharding = None
        result.name = None
        op.results = [result]
        values.append(result)
        block.ops.append(op)


class EquationImporter(Importer):
    """Reads jaxprs into blocks, equation by equation."""

    def _table(self) -> dict[Any, OpsTemplate]:
        table = _template_table(self.platform, self.semantics, _jax.trace_context(), self.manual)
        if len(table) > _TEMPLATES_AT_MOST:
            table.clear()
        return table

    def body(self, jaxpr: ClosedJaxpr | Jaxpr, arguments: Sequence[Value], block: Block) -> tuple[list[Value], Scope]:
        """Appends the ops of a jaxpr to a block; returns the values of its results."""
        if isinstance(jaxpr, ClosedJaxpr):
            consts, jaxpr = jaxpr.consts, jaxpr.jaxpr
        else:
            consts = ()
        env: dict[Any, Value] = dict(zip(jaxpr.invars, arguments, strict=True))
        if consts:
            self._constants(jaxpr.constvars, consts, env, block)
        scope = Scope(jaxpr, env)  # pyright: ignore[reportArgumentType]
        self.equations(jaxpr.eqns, scope, block)
        return [self.constant(v, block) if type(v) is Literal else env[v] for v in jaxpr.outvars], scope

    def _constants(self, constvars: Sequence[Var], consts: Sequence[Any], env: dict[Any, Value], block: Block) -> None:
        values_by_id: dict[int, Value] = {}
        for var, const in zip(constvars, consts, strict=True):
            value = values_by_id.get(id(const))
            if value is None:
                value = values_by_id[id(const)] = self.array(const, type_of_aval(var.aval), block)
            env[var] = value

    def equations(self, eqns: Sequence[JaxprEqn], scope: Scope, block: Block) -> None:
        """Appends the ops of equations in order. The time of a whole import is spent here."""
        env, templates = scope.env, self._table()
        readers = READERS if not self.rules else {**READERS, **dict.fromkeys(self.rules, _ruled)}
        for index, eqn in enumerate(eqns):
            name = eqn.primitive.name
            reader = readers.get(name)
            if reader is not None:
                try:
                    reader(self, index, eqn, scope, block)
                except MeshError as error:
                    if error.where is None:
                        place = locate(eqn.source_info)
                        error.at(f"{eqn.params.get('name', name)}, {'' if place is None else place.place}".rstrip(", "))
                    raise
                continue
            values: list[Any] = []
            key: list[Any] = [name, tuple(eqn.params.values())]
            for v in eqn.invars:
                if type(v) is Literal:
                    values.append(v)
                    aval: Any = v.aval
                    key.append((aval.dtype, aval.shape))
                else:
                    value = env[v]
                    values.append(value)
                    key.append(value.type)
            signature = tuple(key)
            try:
                template = templates.get(signature)
            except TypeError:  # a parameter that has no hash
                template = self.template(eqn)
            else:
                if template is None:
                    template = templates[signature] = self.template(eqn)
            if template is _FRAGMENT:
                self.fragment(eqn, scope, block)
                continue
            _append(template, eqn, values, block)
            for v, s in zip(eqn.outvars, template.outputs):
                env[v] = values[s]
            if name == "name" and env[eqn.outvars[0]].name is None:  # checkpoint_name
                env[eqn.outvars[0]].name = eqn.params["name"]

    def template(self, eqn: JaxprEqn) -> OpsTemplate:
        """The template of an equation, or `_FRAGMENT` where JAX's own lowering has to be read."""
        name = eqn.primitive.name
        build = TEMPLATES.get(name)
        if build is None:
            return _FRAGMENT
        builder = Builder(
            name,
            eqn.params,
            eqn.invars,
            eqn.outvars,
            [i for i, v in enumerate(eqn.invars) if type(v) is Literal],
            platform=self.platform,
            axis_sizes=self.manual.mesh.shape if self.manual is not None else None,
        )
        try:
            template = build(builder)
        except Unsupported:
            return _FRAGMENT
        types = list(builder.types)
        for each in template.ops:
            if each.name not in CONTEXT:
                op = Op(each.name, Block([types[s] for s in each.operands]).arguments, (each.result_type,), each.attributes)
                each.rule, each.rule_decided = rule_for(op, semantics=self.semantics), True
            types.append(each.result_type)
        return template

    def fragment(self, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
        """Reads an equation of no native kind: through JAX's own lowering, unless it is one of those that are not looked into."""
        name = eqn.primitive.name
        if name in REASONS:
            opaque(self, "stablehlo.custom_call", {"call_target_name": name}, eqn, scope, block, REASONS[name])
            return
        self.lowered(eqn, scope, block)

    def lowered(self, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
        """Reads an equation through JAX's lowering of it; without one, it becomes an op that nothing propagates through."""
        name = eqn.primitive.name
        expansion = expansion_of(eqn, self.platform)
        if expansion is not None:
            scope.env.update(zip(eqn.outvars, self._expanded(expansion, self.read(eqn, scope, block), eqn, block), strict=True))
            return
        mesh = eqn.ctx.cur_abstract_mesh if self.manual is not None else None
        try:
            program = lower_fragment(eqn.primitive, eqn.params, [v.aval for v in eqn.invars], self.platform, mesh=mesh)
        except Exception as error:  # whatever a lowering rule raises: the plan goes on, and says so
            reason = f"cannot be lowered ({_first_line(error)})."
            opaque(self, "stablehlo.custom_call", {"call_target_name": name}, eqn, scope, block, reason)
            return
        arguments = self.read(eqn, scope, block)
        results = inline(self, program, arguments, block, eqn.source_info, name)
        bind(eqn, scope, results)

    def _expanded(self, expansion: Expansion, arguments: Sequence[Value], eqn: JaxprEqn, block: Block) -> list[Value]:
        start = len(block.ops)
        results = self._expanded_at(expansion, arguments, eqn, block)
        for op in itertools.chain.from_iterable(op.walk() for op in block.ops[start:]):
            op.location = eqn.source_info
        return results

    def _expanded_at(self, expansion: Expansion, arguments: Sequence[Value], eqn: JaxprEqn, block: Block) -> list[Value]:
        if not expansion.has_own_function:
            return self.body(expansion.jaxpr, arguments, block)[0]
        return call(self, eqn.primitive.name, expansion.jaxpr, expansion.jaxpr, arguments, eqn, block)[0]


_FRAGMENT = OpsTemplate((), ())


def _ruled(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """A primitive with a rule of the user's is one op that propagates by it."""
    opaque(importer, "stablehlo.custom_call", {"call_target_name": eqn.primitive.name}, eqn, scope, block)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
