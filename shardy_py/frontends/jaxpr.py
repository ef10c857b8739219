"""Reads a `jax.extend.core.ClosedJaxpr` into a `Program`: the ops that JAX's lowering gives, in the same order.

Most equations are read through templates (`primitives/`), equations that hold other jaxprs through `control_flow.REGIONS`,
and the rest through JAX's own lowering rule (`lowered.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.extend.source_info_util import summarize

from shardy_py.dialect import Mesh, TensorSharding
from shardy_py.frontends import _tracing
from shardy_py.frontends.control_flow import REGIONS
from shardy_py.frontends.inline import Inliner
from shardy_py.frontends.lowered import lower_fragment
from shardy_py.frontends.meshes import Meshes
from shardy_py.frontends.primitives import TEMPLATES
from shardy_py.frontends.primitives.avals import is_extended, type_of_aval
from shardy_py.frontends.primitives.template import Builder, OpTemplate, Template, Unsupported
from shardy_py.ir import Block, Function, Location, Op, Program, Type, Value
from shardy_py.plan.findings import Finding
from shardy_py.rules import CONTEXT, is_known, rule_for

Rules = Mapping[str, Any]


@dataclasses.dataclass(slots=True)
class Scope:
    """The values of one jaxpr at one call site.

    Attributes:
        jaxpr: The jaxpr that was read.
        env: The value of each of its variables.
        children: Index of an equation that holds jaxprs -> their scopes, in the order in which they were read; a jaxpr
            that is read twice, such as the predicate of a batched loop, has two.
    """

    jaxpr: Jaxpr
    env: dict[Var, Value]
    children: dict[int, list[Scope]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Imported:
    """What `from_jaxpr` gives.

    Attributes:
        program: One function, `main`, whose arguments and results are those of the jaxpr.
        scope: Where the values of the jaxpr's variables are.
        findings: What the reader of the program should know.
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
    mesh_name: str = "mesh",
    argument_names: Sequence[str] | None = None,
    result_names: Sequence[str] | None = None,
    rules: Rules | None = None,
    platform: str = "cpu",
) -> Imported:
    """As reading `jax.jit(f).lower(...).compiler_ir()` with all calls imported, but straight from the jaxpr.

    Args:
        closed_jaxpr: What `jax.make_jaxpr` gives.
        mesh: The mesh that shardings without a mesh of their own are on.
        in_shardings: One per argument; None where nothing is known.
        out_shardings: One per result.
        mesh_name: The name of `mesh` in the program.
        argument_names: Names of the arguments for people to read.
        result_names: Names of the results, kept as `jax.result_info`.
        rules: Primitive name or custom call target -> a rule specification with `bind(operand_shapes, result_shapes)`,
            used instead of the registry's rule.
        platform: The platform that JAX would lower for.

    Returns:
        The program, the values of the jaxpr's variables in it, and findings.
    """
    jaxpr = closed_jaxpr.jaxpr
    importer = Importer(Meshes(mesh_name, mesh), dict(rules or {}), platform)
    block = Block([type_of_aval(v.aval) for v in jaxpr.invars])
    main = Function("main", block, [type_of_aval(v.aval) for v in jaxpr.outvars])
    for i, sharding in enumerate(in_shardings or ()):
        block.arguments[i].sharding = sharding
    for i, sharding in enumerate(out_shardings or ()):
        main.result_shardings[i] = sharding
    for i, name in enumerate(argument_names or ()):
        block.arguments[i].name = name
    for i, name in enumerate(result_names or ()):
        main.result_attributes[i]["jax.result_info"] = name
    arguments = [importer.constrain_key(v.aval, x, block) for v, x in zip(jaxpr.invars, block.arguments)]
    results, scope = importer.body(closed_jaxpr, arguments, block)
    results = [importer.constrain_key(v.aval, x, block) for v, x in zip(jaxpr.outvars, results)]
    block.append(Op("func.return", results, (), rule_known=True))
    program = Program([main], importer.meshes.table())
    program.locate = locate
    return Imported(program, scope, importer.findings)


_TEMPLATE_TABLES: dict[Any, dict[Any, Template]] = {}
_TEMPLATES_AT_MOST = 20_000


class Importer:
    """Reads jaxprs into blocks.

    Attributes:
        meshes: The meshes the program refers to.
        findings: What was noticed.
    """

    def __init__(self, meshes: Meshes, rules: Rules, platform: str) -> None:
        self.meshes = meshes
        self.platform = platform
        self.rules = rules
        self.findings: list[Finding] = []
        self.manual: _tracing.ManualContext | None = None
        self._reported: set[tuple[str, str]] = set()
        self._symbols: dict[Any, str] = {}
        self._symbol_names = {"main"}
        self._symbol_counter = 0
        self._inliner = Inliner(self)
        self._templates = self._table()

    def _table(self) -> dict[Any, Template]:
        if self.rules:
            return {}
        key = (self.platform, _tracing.trace_context())
        table = _TEMPLATE_TABLES.setdefault(key, {})
        if len(_TEMPLATE_TABLES) > 16:
            _TEMPLATE_TABLES.clear()
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
        scope = Scope(jaxpr, env)
        self.equations(jaxpr.eqns, scope, block)
        return [self.constant(v, block) if type(v) is Literal else env[v] for v in jaxpr.outvars], scope

    def _constants(self, constvars: Sequence[Var], consts: Sequence[Any], env: dict[Any, Value], block: Block) -> None:
        made: dict[int, Value] = {}
        for var, const in zip(constvars, consts, strict=True):
            value = made.get(id(const))
            if value is None:
                value = made[id(const)] = self.array(const, type_of_aval(var.aval), block)
            env[var] = value

    def array(self, array: Any, type: Type, block: Block, location: object = None) -> Value:
        """Appends a constant; numpy arrays that repeat themselves are constants of their distinct part, broadcast."""
        strides = _zero_strides(array)
        if not strides or len(strides) == type.rank:
            return self._constant(type, array, block, location)
        kept = tuple(d for d in range(type.rank) if d not in strides)
        part = array[tuple(0 if d in strides else slice(None) for d in range(type.rank))]
        small = self._constant(_tracing.tensor_type(part), part, block, location)
        op = Op("stablehlo.broadcast_in_dim", (small,), (type,), {"broadcast_dimensions": kept}, location=location)
        self.append(op, block)
        return op.result

    def _constant(self, type: Type, value: Any, block: Block, location: object) -> Value:
        op = Op("sdy.constant", (), (type,), {"value": value}, rule_known=True, location=location)
        block.append(op)
        if type.rank:
            op.result.name = "const"
        return op.result

    def constant(self, literal: Literal, block: Block, location: object = None) -> Value:
        """Appends the constant of a literal that is used as it is."""
        return self.array(literal.val, type_of_aval(literal.aval), block, location)

    def append(self, op: Op, block: Block) -> Op:
        """Appends an op with its rule."""
        if not op.rule_known and op.name not in CONTEXT:
            op.rule, op.rule_known = self.rule(op, op.primitive), True
        return block.append(op)

    def read(self, eqn: JaxprEqn, scope: Scope, block: Block) -> list[Value]:
        """The values of an equation's operands; literals become constants, in order."""
        env = scope.env
        return [self.constant(v, block, eqn.source_info) if type(v) is Literal else env[v] for v in eqn.invars]

    def equations(self, eqns: Sequence[JaxprEqn], scope: Scope, block: Block) -> None:
        """Appends the ops of equations in order. The time of a whole import is spent here."""
        env, templates, ops = scope.env, self._templates, block.ops
        new_op, new_value = Op.__new__, Value.__new__
        for index, eqn in enumerate(eqns):
            name = eqn.primitive.name
            region = REGIONS.get(name)
            if region is not None:
                region(self, index, eqn, scope, block)
                continue
            invars = eqn.invars
            values: list[Any] = []
            key: list[Any] = [name, tuple(eqn.params.values())]
            for v in invars:
                if type(v) is Literal:
                    values.append(v)
                    aval = v.aval
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
                self.fragment(eqn, values, scope, block)
                continue
            location = eqn.source_info
            for made in template.ops:
                # As Op(...), without the calls.
                op = new_op(Op)
                op.name = made.name
                operands = op.operands = [values[s] for s in made.operands]
                results = op.results = []
                op.attributes = made.attributes if made.literal < 0 else {"value": invars[made.literal].val}
                op.regions = ()
                op.rule = made.rule
                op.rule_known = made.rule_known
                op.location = location
                op.primitive = name
                op.block = block
                i = 0
                for operand in operands:
                    operand.uses.append((op, i))
                    i += 1
                i = 0
                for result_type in made.result_types:
                    result = new_value(Value)
                    result.type = result_type
                    result.owner = op
                    result.index = i
                    result.uses = []
                    result.sharding = None
                    result.name = None
                    results.append(result)
                    values.append(result)
                    i += 1
                ops.append(op)
            for v, s in zip(eqn.outvars, template.outputs):
                env[v] = values[s]

    def template(self, eqn: JaxprEqn) -> Template:
        """The template of an equation, or `_FRAGMENT` where JAX's own lowering has to be read."""
        name = eqn.primitive.name
        build = TEMPLATES.get(name)
        if build is None:
            return _FRAGMENT
        literals = tuple(i for i, v in enumerate(eqn.invars) if type(v) is Literal)
        builder = Builder(name, eqn.params, eqn.invars, eqn.outvars, literals, self.platform)
        try:
            template = build(builder)
        except Unsupported:
            return _FRAGMENT
        for made in template.ops:
            self._decide_rule(made, [builder_type for builder_type in self._operand_types(template, made, builder)], name)
        return template

    def _operand_types(self, template: Template, made: OpTemplate, builder: Builder) -> list[Type]:
        types: list[Type] = [*builder.types]
        for op in template.ops:
            if op is made:
                break
            types.extend(op.result_types)
        return [types[s] for s in made.operands]

    def _decide_rule(self, made: OpTemplate, operand_types: list[Type], primitive: str) -> None:
        if made.name in CONTEXT:
            return
        op = Op(made.name, Block(operand_types).arguments, made.result_types, made.attributes)
        made.rule, made.rule_known = self.rule(op, primitive), True

    def rule(self, op: Op, primitive: str | None) -> Any:
        """The rule of an op: the user's, else the registry's."""
        if self.rules:
            spec = self.rules.get(str(op.attributes.get("call_target_name", primitive))) or self.rules.get(primitive or "")
            if spec is not None:
                return spec.bind([v.type.shape for v in op.operands], [v.type.shape for v in op.results])
        return rule_for(op)

    def fragment(self, eqn: JaxprEqn, values: Sequence[Any], scope: Scope, block: Block) -> None:
        """Reads an equation through JAX's own lowering of it."""
        arguments = [self.constant(v, block, eqn.source_info) if type(v) is Literal else v for v in values]
        program = lower_fragment(eqn.primitive, eqn.params, [v.aval for v in eqn.invars], self.platform)
        results = self._inliner.inline(program, arguments, block, eqn.source_info, eqn.primitive.name)
        scope.env.update(zip(eqn.outvars, results, strict=True))

    def constrain_key(self, aval: Any, value: Value, block: Block) -> Value:
        """The dimension that PRNG keys add is replicated in `main`, as `replicate_trailing_dims` in JAX does."""
        if not hasattr(aval, "dtype") or not is_extended(aval) or value.sharding is not None:
            return value
        op = Op("sdy.sharding_constraint", (value,), (value.type,))
        op.result.sharding = self.meshes.open(value.type.rank, len(aval.shape))
        self.append(op, block)
        return op.result

    @property
    def all_manual(self) -> bool:
        """Whether all axes of the mesh are manual where the import stands."""
        return self.manual is not None and self.manual.axes == frozenset(self.manual.mesh.axis_names)

    def constrained(self, value: Value, aval: Any, sharding: Any, block: Block, eqn: JaxprEqn | None = None) -> Value:
        """A sharding constraint on a value, or the value where the sharding says nothing."""
        if not _tracing.is_specified(sharding) or not hasattr(aval, "dtype"):
            return value
        rank = value.type.rank
        made = self.meshes.sharding(_tracing.scoped_sharding(sharding, aval, rank, self.manual), rank)
        return self._constraint(value, made, block, eqn)

    def _constraint(self, value: Value, sharding: TensorSharding, block: Block, eqn: JaxprEqn | None) -> Value:
        location, primitive = (eqn.source_info, eqn.primitive.name) if eqn is not None else (None, None)
        op = Op("sdy.sharding_constraint", (value,), (value.type,), location=location, primitive=primitive)
        op.result.sharding = sharding
        return self.append(op, block).result

    def explicit(self, value: Value, aval: Any, block: Block, eqn: JaxprEqn | None = None) -> Value:
        """As `lower_with_sharding_in_types`: the sharding in the type of a value becomes a constraint."""
        sharding = _tracing.physical_sharding(aval, aval.sharding)
        return self._constraint(value, self.meshes.sharding(sharding, value.type.rank, open_dimensions=True), block, eqn)

    def symbol(self, key: Any, name: str) -> str:
        """The name that JAX gives the function of a jaxpr: one per jaxpr, made unique by a common counter."""
        found = self._symbols.get(key)
        if found is None:
            found = name
            while found in self._symbol_names:
                found = f"{name}_{self._symbol_counter}"
                self._symbol_counter += 1
            self._symbol_names.add(found)
            self._symbols[key] = found
        return found

    def report(self, kind: str, eqn: JaxprEqn, message: str) -> None:
        """Adds a finding about an equation, once per kind and primitive."""
        if (kind, eqn.primitive.name) in self._reported:
            return
        self._reported.add((kind, eqn.primitive.name))
        self.findings.append(Finding(kind, message, location=str(locate(eqn.source_info) or "")))

    def report_unknown(self, op: Op, eqn: JaxprEqn) -> None:
        """Adds a finding about an op that no rule is known for."""
        target = op.attributes.get("call_target_name")
        if op.rule is None and not is_known(op.name, target):
            what = f"the custom call '{target}'" if target else f"the op '{op.name}'"
            self.report("no-rule", eqn, f"no sharding rule is known for {what} of primitive '{eqn.primitive.name}'; shardings stop there.")


_FRAGMENT = Template((), ())


def _zero_strides(array: Any) -> tuple[int, ...]:
    strides = getattr(array, "strides", None)
    if not strides or isinstance(array, jax.Array) or not array.size:
        return ()
    return tuple(d for d, s in enumerate(strides) if s == 0)


@functools.lru_cache(maxsize=4096)
def _summary(text: str, scope: str) -> Location:
    place, _, function = text.partition(" ")
    file, line, *_ = (*place.rsplit(":", 2), "0") if place.count(":") >= 2 else (place, "0")
    return Location(file, int(line) if line.isdigit() else 0, function.strip("()"), scope)


def locate(location: object) -> Location | None:
    """The user's file and line of a `source_info`, with its name stack."""
    if isinstance(location, Location) or location is None:
        return location
    text = summarize(location)  # pyright: ignore[reportArgumentType]
    return _summary(text, str(getattr(location, "name_stack", "")))


RegionReader = Callable[[Importer, int, JaxprEqn, Scope, Block], None]
