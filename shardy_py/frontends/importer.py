"""The importer as readers of equations see it: the program under construction, its meshes, findings and bodies."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shardy_py.dialect import INSTALLED, Semantics, TensorSharding
from shardy_py.frontends import _jax
from shardy_py.frontends.locations import locate
from shardy_py.frontends.meshes import Meshes
from shardy_py.frontends.primitives.avals import is_extended, type_of_aval
from shardy_py.ir import Block, Op, TensorType, Type, Value
from shardy_py.plan.checks.wording import NOTABLE
from shardy_py.plan.findings import Finding
from shardy_py.rules import CONTEXT, rule_for
from shardy_py.rules.traits import attributes_of_constraint

Rules = Mapping[str, Any]
"""Primitive name or custom call target -> a rule specification with `bind(operand_shapes, result_shapes)`."""


@dataclasses.dataclass(slots=True)
class Scope:
    """The values of one jaxpr at one call site.

    Attributes:
        jaxpr: The jaxpr that was read; of one with references or high types, the jaxpr without them that JAX lowers.
        children: Index of an equation that holds jaxprs -> their scopes, in the order in which they were read; a jaxpr
            that is read twice, such as the predicate of a batched loop, has two.
    """

    jaxpr: Jaxpr
    env: dict[Var, Value]
    children: dict[int, list[Scope]] = dataclasses.field(default_factory=dict)

    def walk(self) -> Iterator[Scope]:
        """Itself and those inside, outermost first."""
        yield self
        for child in itertools.chain.from_iterable(self.children.values()):
            yield from child.walk()


class Importer(abc.ABC):
    """The state of an import, and the ops that readers append; `EquationImporter` reads the equations.

    Attributes:
        manual: The shard_map being read, None outside of any.
    """

    def __init__(self, meshes: Meshes, rules: Rules, platform: str, semantics: Semantics = INSTALLED) -> None:
        self.meshes = meshes
        self.platform = platform
        self.semantics = semantics
        self.rules = rules
        self.findings: list[Finding] = []
        self.manual: _jax.ManualContext | None = None
        self._reported: set[tuple[str, str, str]] = set()
        self._symbols: dict[Any, str] = {}
        self._symbol_names = {"main"}
        self._symbol_counter = 0
        self._groups: dict[str, int] = {}
        self._group_count = 0

    @abc.abstractmethod
    def body(self, jaxpr: ClosedJaxpr | Jaxpr, arguments: Sequence[Value], block: Block) -> tuple[list[Value], Scope]:
        """Appends the ops of a jaxpr to a block; returns the values of its results."""

    @abc.abstractmethod
    def lowered(self, eqn: JaxprEqn, scope: Scope, block: Block) -> None:
        """Reads an equation through JAX's own lowering of it."""

    @contextlib.contextmanager
    def manual_over(self, mesh: Any, axes: frozenset[str]) -> Iterator[None]:
        """Reads the body of a shard_map."""
        outer = self.manual
        self.manual = _jax.ManualContext(mesh, axes)
        try:
            yield
        finally:
            self.manual = outer

    def array(self, array: Any, type: Type, block: Block, location: object = None) -> Value:
        """Appends a constant; numpy arrays that repeat themselves are constants of their distinct part, broadcast."""
        strides = _zero_strides(array)
        if not strides or len(strides) == type.rank:
            return self._constant(type, array, block, location)
        dims = tuple(d for d in range(type.rank) if d not in strides)
        part = array[tuple(0 if d in strides else slice(None) for d in range(type.rank))]
        small = self._constant(TensorType(part.shape, str(part.dtype)), part, block, location)
        op = Op("stablehlo.broadcast_in_dim", (small,), (type,), {"broadcast_dimensions": dims}, location=location)
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
        return self.op("sdy.constant", (), (TensorType((), dtype),), eqn, block, {"value": value}, rule_decided=True).result

    def constant(self, literal: Literal, block: Block, location: object = None) -> Value:
        """Appends the constant of a literal."""
        return self.array(literal.val, type_of_aval(literal.aval), block, location)

    def op(
        self,
        name: str,
        operands: Sequence[Value],
        types: Sequence[Type],
        eqn: JaxprEqn,
        block: Block,
        attributes: dict[str, Any] | None = None,
        regions: Sequence[Block] = (),
        *,
        rule_decided: bool = False,
        primitive: str | None = None,
    ) -> Op:
        """Appends an op of an equation, with its rule unless that is decided."""
        source, primitive = eqn.source_info, primitive or eqn.primitive.name
        op = Op(name, operands, types, attributes, regions, rule_decided=rule_decided, location=source, primitive=primitive)
        return self.append(op, block)

    def append(self, op: Op, block: Block) -> Op:
        """Appends an op with its rule: the user's for the target of a custom call, else the registry's."""
        if not op.rule_decided:
            spec = self.rules.get(str(op.attributes.get("call_target_name"))) if self.rules else None
            if spec is not None:
                op.rule, op.rule_decided = spec.bind([v.type.shape for v in op.operands], [v.type.shape for v in op.results]), True
            elif op.name not in CONTEXT:
                op.rule, op.rule_decided = rule_for(op, semantics=self.semantics), True
        return block.append(op)

    def read(self, eqn: JaxprEqn, scope: Scope, block: Block) -> list[Value]:
        """The values of an equation's operands; literals become constants, in order."""
        env = scope.env
        return [self.constant(v, block, eqn.source_info) if type(v) is Literal else env[v] for v in eqn.invars]

    def constrain_key(self, aval: Any, value: Value, block: Block) -> Value:
        """The dimension that PRNG keys add is replicated in `main`, as `replicate_trailing_dims` in JAX does."""
        if not hasattr(aval, "dtype") or not is_extended(aval):
            return value
        return self.sharding_constraint(value, self.meshes.open(value.type.rank, len(aval.shape)), block, None)

    @property
    def all_manual(self) -> bool:
        """Whether all axes of the mesh are manual where the import stands."""
        return self.manual is not None and self.manual.axes == frozenset(self.manual.mesh.axis_names)

    def constrained(self, value: Value, aval: Any, sharding: Any, block: Block, eqn: JaxprEqn | None = None) -> Value:
        """A sharding constraint on a value, or the value itself where the sharding constrains nothing."""
        if not _jax.is_specified(sharding) or not hasattr(aval, "dtype"):
            return value
        rank = value.type.rank
        constraint = self.meshes.sharding(_jax.scoped_sharding(sharding, aval, rank, self.manual), rank)
        return self.sharding_constraint(value, constraint, block, eqn)

    def sharding_constraint(
        self, value: Value, sharding: TensorSharding, block: Block, eqn: JaxprEqn | None, primitive: str | None = None
    ) -> Value:
        """Appends a sharding constraint on a value, with the source of an equation if one is passed."""
        location, primitive = (None, None) if eqn is None else (eqn.source_info, primitive or eqn.primitive.name)
        attributes = attributes_of_constraint(sharding)
        op = Op("sdy.sharding_constraint", (value,), (value.type,), attributes, location=location, primitive=primitive)
        op.result.sharding = sharding
        return self.append(op, block).result

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
        symbol = self._symbols.get(key)
        if symbol is None:
            symbol = name
            while symbol in self._symbol_names:
                symbol = f"{name}_{self._symbol_counter}"
                self._symbol_counter += 1
            self._symbol_names.add(symbol)
            self._symbols[key] = symbol
        return symbol

    def report(self, kind: str, eqn: JaxprEqn, message: str, fix: str) -> None:
        """Adds a finding about an equation, once per kind, primitive and severity: a warning for values of `NOTABLE` bytes, else a note."""
        types = [type_of_aval(v.aval) for v in (*eqn.invars, *eqn.outvars)]
        severity = "warning" if any(isinstance(t, TensorType) and t.bytes >= NOTABLE for t in types) else "info"
        key = (kind, eqn.primitive.name, severity)
        if key in self._reported:
            return
        self._reported.add(key)
        where = locate(eqn.source_info)
        self.findings.append(Finding(kind, message, "", "" if where is None else where.place, severity, fix=fix))


def _zero_strides(array: Any) -> tuple[int, ...]:
    strides = getattr(array, "strides", None)
    if not strides or isinstance(array, jax.Array) or not array.size:
        return ()
    return tuple(d for d, s in enumerate(strides) if s == 0)
