"""Explanations: why a value has the axes that it has, and why it lacks others."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardy_py.dialect.format import printable
from shardy_py.errors import ShardyError

FORMAT = "shardy_py.explanation"
VERSION = 1

KINDS = {
    "conflict": "other axes are where it would go",
    "closed": "an annotation closes the dimension",
    "replicated": "an annotation says that the axis is not used",
    "used": "it is on another dimension of the value",
    "indivisible": "its devices do not divide the dimension, or the factor of it that an op has",
    "major": "a more significant part of the dimension would have to be sharded whole first",
    "part": "the neighbour has it on a part of its dimension that does not go with this one",
    "blocked": "nothing propagates along the factor of the op between",
    "barrier": "a propagation barrier lets nothing pass in this direction",
    "manual": "it is a manual axis of a shard_map",
    "no-rule": "an op without a rule stands between",
    "unrelated": "no rule relates the dimension to one that has the axis",
    "cut": "it was there and was cut after the propagation",
    "conservative": "it would have to be split, which conservative propagation does not do",
    "mesh": "the neighbour is on another mesh",
    "one-device": "the op that makes it runs on one device",
    "late": "the propagation did not return to the op between after the neighbour got it",
    "absent": "no annotation names it",
}
"""Why a dimension lacks an axis: kinds of `Missing`."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One link of a chain: how one mesh axis came to one dimension of one value.

    Attributes:
        value: The value's path or name.
        dim: The dimension.
        axis: The mesh axis.
        cause: `annotation`; or what brought it: `propagated` (the rule of an op), `entry`, `carry` or `exit` (over a border of a loop,
            branch or computation, in either direction), `barrier`, `result` (of the function, from what is returned or back), `group`,
            `constraint` (a value that a closed constraint is on takes its sharding before the propagation), or `priority` (what it was
            given so was set aside until its user priority).
        through: The primitive whose rule brought it; empty for annotations.
        rule: The rule, as SDY text.
        location: `file:line` of that primitive, or of the annotation.
        step: Number of the step in the propagation log; -1 for annotations.
        user_priority: The user priority at which it happened.
        op_priority: The op priority at which it happened; -1 where none applies.
        factor: The factors of the rule along which the axis came.
        annotation: What the annotation is: `in_shardings`, `with_sharding_constraint`, ...; empty for other causes.
        axes: The axes with which the dimension begins up to this one, major to minor; all of them are explained by what is needed.
        needs: Positions in the chain of the reasons that this one needs; several where the axis came in parts from several values.
    """

    value: str
    dim: int
    axis: str
    cause: str
    through: str = ""
    rule: str = ""
    location: str = ""
    step: int = -1
    user_priority: int = 0
    op_priority: int = -1
    factor: str = ""
    annotation: str = ""
    axes: tuple[str, ...] = ()
    needs: tuple[int, ...] = ()

    def __str__(self) -> str:
        from shardy_py.plan.explain_text import reason_text

        return printable(reason_text(self))


@dataclass(frozen=True, slots=True)
class Source:
    """An annotation that has an axis.

    Attributes:
        value: The annotated value.
        dim: The dimension that has the axis.
        axis: The axis.
        annotation: What the annotation is: `in_shardings`, `with_sharding_constraint`, ...
        location: `file:line` of the annotation, where it stands in the function.
    """

    value: str
    dim: int
    axis: str
    annotation: str
    location: str = ""

    def __str__(self) -> str:
        from shardy_py.plan.explain_text import source_text

        return printable(source_text(self))


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a dimension lacks an axis.

    Attributes:
        dim: The dimension that was asked about.
        axis: The axis.
        kind: One of `KINDS`.
        message: The reason as a sentence.
        value: The value at which the axis stopped; what was asked about, where it came as near as that.
        stopped: The dimension of `value`.
        source: The nearest value that has the axis; empty where there is none.
        source_dim: Its dimension that has it.
        through: The primitive that stands between the two.
        rule: Its rule, as SDY text.
        factor: The factor of the rule that it would have come along.
        location: `file:line` of that primitive.
        winner: Where what is in the way comes from, as a chain; empty where nothing is.
        fix: What would let it through, where there is something simple.
    """

    dim: int
    axis: str
    kind: str
    message: str
    value: str = ""
    stopped: int = -1
    source: str = ""
    source_dim: int = -1
    through: str = ""
    rule: str = ""
    factor: str = ""
    location: str = ""
    winner: tuple[Reason, ...] = ()
    fix: str = ""

    def __str__(self) -> str:
        from shardy_py.plan.explain_text import missing_text

        return printable(missing_text(self))


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Why a value has the axes that it has, and why it lacks one.

    Attributes:
        target: The value that was asked about.
        sharding: Its type with its sharding.
        chains: One per axis of each dimension; each begins with the value and ends with annotations. The steps of a chain, in the order
            of their numbers, bring the axis again from nothing but the annotations that it names.
        axis: The only axis that was asked about; None for all.
        missing: Why axes are missing, one per dimension and axis: the one that was asked about; where none was, those that came to the
            value and were cut afterwards, and all axes of the mesh where the value is replicated.
        also: Further annotations with the axis, connected with the value by values that have it: take those of the chains away, and the
            axis still comes from these, unless something else then takes its place.
        connected: Further annotations with the axis, connected with the value by rules, but not by values that have the axis: they may
            bring it where others are taken away.
        nearby: Where a source line, a scope or a variable was asked about, the other values made there.
        asked: What was asked about, where that is not the name of the value.
        primitive: The JAX primitive that makes the value; empty for inputs and outputs.
        location: `file:line` of that.
    """

    target: str
    sharding: str
    chains: tuple[tuple[Reason, ...], ...]
    axis: str | None = None
    missing: tuple[Missing, ...] = ()
    also: tuple[Source, ...] = ()
    connected: tuple[Source, ...] = ()
    nearby: tuple[str, ...] = ()
    asked: str = ""
    primitive: str = ""
    location: str = ""

    def as_text(self, *, full: bool = False, width: int = 116) -> str:
        """The explanation for a terminal: one row per step, from the value back to the annotation.

        Args:
            full: Every step, also of long runs through elementwise ops, with rules as SDY writes them and numbers of steps.
            width: Where lines are broken.
        """
        from shardy_py.plan.explain_text import explanation_text

        return printable(explanation_text(self, full=full, width=width))

    def __str__(self) -> str:
        return self.as_text()

    def __repr__(self) -> str:
        return self.as_text()

    def to_dict(self) -> dict[str, Any]:
        """Plain data: dicts, lists, texts and numbers, with a version."""
        return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON text.

        Args:
            indent: Spaces per level; None for one line.
        """
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Explanation:
        """The inverse of `to_dict`; also takes what JSON made of it.

        Args:
            data: The data.

        Raises:
            ShardyError: It is of another version or no explanation.
        """
        if not isinstance(data, Mapping) or data.get("version") != VERSION:
            raise ShardyError(
                "this is no explanation",
                where="Explanation.from_dict",
                why=f"it has no member version={VERSION}",
                fix="pass what Explanation.to_dict gave, of the same version of shardy_py",
            )
        try:
            return cls(
                target=str(data["target"]),
                sharding=str(data["sharding"]),
                chains=tuple(tuple(_reason(r) for r in chain) for chain in data["chains"]),
                axis=data["axis"],
                missing=tuple(Missing(**{**m, "winner": tuple(_reason(r) for r in m["winner"])}) for m in data["missing"]),
                also=tuple(Source(**s) for s in data["also"]),
                connected=tuple(Source(**s) for s in data["connected"]),
                nearby=tuple(data["nearby"]),
                asked=str(data["asked"]),
                primitive=str(data["primitive"]),
                location=str(data["location"]),
            )
        except (KeyError, TypeError) as error:
            raise ShardyError("this is no explanation", where="Explanation.from_dict", why=str(error)) from error

    @classmethod
    def from_json(cls, text: str) -> Explanation:
        """The inverse of `to_json`.

        Args:
            text: JSON.

        Raises:
            ShardyError: It is no explanation.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ShardyError("this is no JSON", where="Explanation.from_json", why=str(error)) from error
        return cls.from_dict(data)


def _reason(data: Mapping[str, Any]) -> Reason:
    return Reason(**{**data, "axes": tuple(data["axes"]), "needs": tuple(data["needs"])})
