"""The walk over a jaxpr.

Most equations are read through templates (`primitives/`), those that hold other jaxprs or speak of shardings through
`readers/`, and the rest through JAX's own lowering rule (`lowered.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.dialect import TensorSharding
from shardy_py.errors import MeshError
from shardy_py.frontends import _jax
from shardy_py.frontends.expansions import Expansion, expansion_of
from shardy_py.frontends.inline import Inliner, named_computation
from shardy_py.frontends.locations import locate
from shardy_py.frontends.lowered import lower_fragment
from shardy_py.frontends.meshes import Meshes
from shardy_py.frontends.primitives import TEMPLATES
from shardy_py.frontends.primitives.avals import is_extended, physical_shape, type_of_aval
from shardy_py.frontends.primitives.table import ENTRIES, Kind
from shardy_py.frontends.primitives.template import Builder, Template, Unsupported
from shardy_py.frontends.readers import READERS
from shardy_py.frontends.readers.common import opaque
from shardy_py.frontends.rule_memo import memoised_rule
from shardy_py.ir import Block, Op, TensorType, Type, Value
from shardy_py.plan.findings import Finding
from shardy_py.rules import CONTEXT

Rules = Mapping[str, Any]
"""Primitive name or custom call target -> a rule specification with `bind(operand_shapes, result_shapes)`."""


@dataclasses.dataclass(slots=True)
class Scope:
    """The values of one jaxpr at one call site.

    Attributes:
        jaxpr: The jaxpr that was read; of one with references or high types, the jaxpr without them that JAX lowers.
        env: The value of each of its variables.
        children: Index of an equation that holds jaxprs -> their scopes, in the order in which they were read; a jaxpr
            that is read twice, such as the predicate of a batched loop, has two.
    """

    jaxpr: Jaxpr
    env: dict[Var, Value]
    children: dict[int, list[Scope]] = dataclasses.field(default_factory=dict)


_TEMPLATE_TABLES: dict[Any, dict[Any, Template]] = {}
_TEMPLATES_AT_MOST = 20_000
_TABLES_AT_MOST = 16


class Importer:
    """Reads jaxprs into blocks.

    Attributes:
        meshes: The meshes the program refers to.
        platform: The platform that JAX would lower for.
        findings: What was noticed.
        manual: The shard_map being read, None outside of any.
        typed: Whether JAX states the shardings in types as constraints: explicit axes, or a shard_map over some axes only.
    """

    def __init__(self, meshes: Meshes, rules: Rules, platform: str, *, typed: bool = False) -> None:
        self.meshes = meshes
        self.platform = platform
        self.rules = rules
        self.findings: list[Finding] = []
        self.manual: _jax.ManualContext | None = None
        self.typed = typed
        self._reported: set[tuple[str, str]] = set()
        self._symbols: dict[Any, str] = {}
        self._symbol_names = {"main"}
        self._symbol_counter = 0
        self._groups: dict[str, int] = {}
        self._group_count = 0
        self._inliner = Inliner(self)
        self._templates = self._table()

    def _table(self) -> dict[Any, Template]:
        if self.typed:
            return {}
        key = (self.platform, _jax.trace_context(), self.manual)
        table = _TEMPLATE_TABLES.get(key)
        if table is None or len(table) > _TEMPLATES_AT_MOST:
            if len(_TEMPLATE_TABLES) >= _TABLES_AT_MOST:
                _TEMPLATE_TABLES.clear()
            table = _TEMPLATE_TABLES[key] = {}
        return table

    @contextlib.contextmanager
    def manual_over(self, mesh: Any, axes: frozenset[str]) -> Iterator[None]:
        """Reads the body of a shard_map."""
        before = self.manual, self.typed, self._templates
        self.manual = _jax.ManualContext(mesh, axes)
        self.typed = not self.all_manual
        self._templates = self._table()
        try:
            yield
        finally:
            self.manual, self.typed, self._templates = before

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
        small = self._constant(_jax.tensor_type(part), part, block, location)
        op = Op("stablehlo.broadcast_in_dim", (small,), (type,), {"broadcast_dimensions": kept}, location=location)
        self.append(op, block)
        return op.result

    def _constant(self, type: Type, value: Any, block: Block, location: object) -> Value:
        op = Op("sdy.constant", (), (type,), {"value": value}, rule_decided=True, location=location)
        block.append(op)
        if type.rank:
            op.result.name = "const"
        return op.result

    def scalar(self, value: int, dtype: str, block: Block, eqn: JaxprEqn) -> Value:
        """Appends a rank-0 constant that an equation's lowering makes."""
        return self.splat(TensorType((), dtype), value, block, eqn)

    def splat(self, type: Type, value: int, block: Block, eqn: JaxprEqn) -> Value:
        """Appends a constant with one value everywhere that an equation's lowering makes."""
        op = Op("sdy.constant", (), (type,), {"value": value}, rule_decided=True, location=eqn.source_info, primitive=eqn.primitive.name)
        return block.append(op).result

    def constant(self, literal: Literal, block: Block, location: object = None) -> Value:
        """Appends the constant of a literal that is used as it is."""
        return self.array(literal.val, type_of_aval(literal.aval), block, location)

    def append(self, op: Op, block: Block) -> Op:
        """Appends an op with its rule: the user's for the target of a custom call, else the registry's."""
        if not op.rule_decided:
            spec = self.rules.get(str(op.attributes.get("call_target_name"))) if self.rules else None
            if spec is not None:
                op.rule, op.rule_decided = spec.bind([v.type.shape for v in op.operands], [v.type.shape for v in op.results]), True
            elif op.name not in CONTEXT:
                op.rule, op.rule_decided = memoised_rule(op), True
        return block.append(op)

    def read(self, eqn: JaxprEqn, scope: Scope, block: Block) -> list[Value]:
        """The values of an equation's operands; literals become constants, in order."""
        env = scope.env
        return [self.constant(v, block, eqn.source_info) if type(v) is Literal else env[v] for v in eqn.invars]

    def equations(self, eqns: Sequence[JaxprEqn], scope: Scope, block: Block) -> None:
        """Appends the ops of equations in order. The time of a whole import is spent here."""
        env, templates, ops = scope.env, self._templates, block.ops
        readers = READERS if not self.rules else {**READERS, **dict.fromkeys(self.rules, _ruled)}
        typed = self.typed
        new_op, new_value = Op.__new__, Value.__new__
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
            invars = eqn.invars
            values: list[Any] = []
            key: list[Any] = [name, tuple(eqn.params.values())]
            for v in invars:
                if type(v) is Literal:
                    values.append(v)
                    aval: Any = v.aval
                    key.append((aval.dtype, aval.shape))
                else:
                    value = env[v]
                    values.append(value)
                    key.append(value.type)
            if typed:
                key.extend([_jax.sharding_of(v.aval) for v in (*invars, *eqn.outvars)])
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
            location = eqn.source_info
            for made in template.ops:
                # As Op(...), without the calls.
                op = new_op(Op)
                op.name = made.name
                operands = op.operands = [values[s] for s in made.operands]
                results = op.results = []
                op.attributes = made.attributes if made.literal < 0 else {"value": invars[made.literal].val}  # pyright: ignore[reportAttributeAccessIssue]
                op.regions = ()
                op.rule = made.rule
                op.rule_decided = made.rule_decided
                op.location = location
                op.primitive = name
                op.block = block
                i = 0
                for operand in operands:
                    operand.uses[op, i] = None
                    i += 1
                i = 0
                for result_type in made.result_types:
                    result = new_value(Value)
                    result.type = result_type
                    result.owner = op
                    result.index = i
                    result.uses = {}
                    result.sharding = made.sharding
                    result.name = None
                    results.append(result)
                    values.append(result)
                    i += 1
                ops.append(op)
            for v, s in zip(eqn.outvars, template.outputs):
                env[v] = values[s]
            if name == "name" and env[eqn.outvars[0]].name is None:  # checkpoint_name
                env[eqn.outvars[0]].name = eqn.params["name"]

    def template(self, eqn: JaxprEqn) -> Template:
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
            sharding_of=self._type_sharding if self.typed else None,
        )
        try:
            template = build(builder)
        except Unsupported:
            return _FRAGMENT
        types = list(builder.types)
        for made in template.ops:
            if made.name not in CONTEXT:
                op = Op(made.name, Block([types[s] for s in made.operands]).arguments, made.result_types, made.attributes)
                made.rule, made.rule_decided = memoised_rule(op), True
            types.extend(made.result_types)
        return template

    def fragment(self, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
        """Reads an equation of no native kind: through JAX's own lowering, unless it is one of those that are not looked into."""
        name = eqn.primitive.name
        entry = ENTRIES.get(name)
        if entry is not None and entry.kind is Kind.OPAQUE:
            opaque(self, "stablehlo.custom_call", {"call_target_name": name}, eqn, scope, block, entry.reason)
            return
        self.lowered(eqn, scope, block)

    def lowered(self, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
        """Reads an equation through JAX's own lowering of it; where JAX has none, it is one op that nothing passes through."""
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
        results = self._inliner.inline(program, arguments, block, eqn.source_info, name)
        self.bind(eqn, results, scope, block)

    def _expanded(self, expansion: Expansion, arguments: Sequence[Value], eqn: JaxprEqn, block: Block) -> list[Value]:
        start = len(block.ops)
        results = self._expanded_at(expansion, arguments, eqn, block)
        for op in itertools.chain.from_iterable(op.walk() for op in block.ops[start:]):
            op.location = eqn.source_info
        return results

    def _expanded_at(self, expansion: Expansion, arguments: Sequence[Value], eqn: JaxprEqn, block: Block) -> list[Value]:
        if not expansion.called:
            return self.body(expansion.jaxpr, arguments, block)[0]
        name = eqn.primitive.name
        body = Block([v.type for v in arguments])
        types = [type_of_aval(a) for a in expansion.jaxpr.out_avals]
        op = named_computation(self.symbol(expansion.key, name), arguments, types, body, eqn.source_info, name)
        block.append(op)
        body.append(Op("sdy.return", self.body(expansion.jaxpr, body.arguments, body)[0], (), rule_decided=True))
        return op.results

    def bind(self, eqn: JaxprEqn, results: Sequence[Value], scope: Scope, block: Block) -> None:
        """Binds an equation's results, with the shardings in their types as constraints where JAX states them."""
        if self.typed:
            results = [self.explicit(x, v.aval, block, eqn) for v, x in zip(eqn.outvars, results, strict=True)]
        scope.env.update(zip(eqn.outvars, results, strict=True))

    def constrain_key(self, aval: Any, value: Value, block: Block) -> Value:
        """The dimension that PRNG keys add is replicated in `main`, as `replicate_trailing_dims` in JAX does."""
        if not hasattr(aval, "dtype") or not is_extended(aval):
            return value
        return self._constraint(value, self.meshes.open(value.type.rank, len(aval.shape)), block, None)

    @property
    def all_manual(self) -> bool:
        """Whether all axes of the mesh are manual where the import stands."""
        return self.manual is not None and self.manual.axes == frozenset(self.manual.mesh.axis_names)

    def constrained(self, value: Value, aval: Any, sharding: Any, block: Block, eqn: JaxprEqn | None = None) -> Value:
        """A sharding constraint on a value, or the value where the sharding says nothing."""
        if not _jax.is_specified(sharding) or not hasattr(aval, "dtype"):
            return value
        rank = value.type.rank
        made = self.meshes.sharding(_jax.scoped_sharding(sharding, aval, rank, self.manual), rank)
        return self._constraint(value, made, block, eqn)

    def _constraint(self, value: Value, sharding: TensorSharding, block: Block, eqn: JaxprEqn | None) -> Value:
        location, primitive = (eqn.source_info, eqn.primitive.name) if eqn is not None else (None, None)
        op = Op("sdy.sharding_constraint", (value,), (value.type,), location=location, primitive=primitive)
        op.result.sharding = sharding
        return self.append(op, block).result

    def explicit(self, value: Value, aval: Any, block: Block, eqn: JaxprEqn | None = None) -> Value:
        """As `lower_with_sharding_in_types`: the sharding in the type of a value becomes a constraint."""
        sharding = self._type_sharding(aval)
        return value if sharding is None else self._constraint(value, sharding, block, eqn)

    def argument_sharding(self, aval: Any) -> TensorSharding | None:
        """The sharding in the type of an argument or result of `main`, all dimensions closed."""
        if not _jax.has_explicit_axes(aval):
            return None
        return self.meshes.sharding(_jax.physical_sharding(aval, aval.sharding), len(physical_shape(aval)))

    def _type_sharding(self, aval: Any) -> TensorSharding | None:
        if not _jax.has_explicit_axes(aval):
            return None
        return self.meshes.sharding(_jax.physical_sharding(aval, aval.sharding), len(physical_shape(aval)), open_dimensions=True)

    def group_number(self, name: str | None) -> int:
        """The id of a sharding group: one per name, a new one for None."""
        number = self._groups.get(name) if name is not None else None
        if number is None:
            number = self._group_count
            self._group_count += 1
            if name is not None:
                self._groups[name] = number
        return number

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

    def report(self, kind: str, eqn: JaxprEqn, message: str, fix: str) -> None:
        """Adds a finding about an equation, once per kind and primitive."""
        if (kind, eqn.primitive.name) in self._reported:
            return
        self._reported.add((kind, eqn.primitive.name))
        where = locate(eqn.source_info)
        self.findings.append(Finding(kind, message, location="" if where is None else where.place, fix=fix))


_FRAGMENT = Template((), ())


def _ruled(importer: Importer, index: int, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
    """A primitive with a rule of the user's is one op that propagates by it."""
    opaque(importer, "stablehlo.custom_call", {"call_target_name": eqn.primitive.name}, eqn, scope, block)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _zero_strides(array: Any) -> tuple[int, ...]:
    strides = getattr(array, "strides", None)
    if not strides or isinstance(array, jax.Array) or not array.size:
        return ()
    return tuple(d for d, s in enumerate(strides) if s == 0)
