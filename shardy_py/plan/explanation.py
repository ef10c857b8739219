"""Explanations: the reasons why a value has its axes and lacks others."""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardy_py.dialect import OpShardingRule
from shardy_py.dialect.format import printable, short_location
from shardy_py.dialect.grouping import grouped
from shardy_py.dialect.rule import factor_symbol
from shardy_py.plan.report import Report

FORMAT = "shardy_py.explanation"
VERSION = 1

KINDS = (
    "conflict closed replicated used indivisible major part blocked barrier manual no-rule unrelated cut "
    "conservative mesh one-device late absent"
).split()
"""Kinds of `Missing`, which says what each is, in the order of what they say."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A link of a chain: the arrival of a mesh axis on a dimension of a value.

    Attributes:
        cause: `annotation`; `planner` where it was chosen by its cost; or the way it came: `propagated` (the rule of an op), `entry`,
            `carry` or `exit` (over a border of a loop, branch or computation, in either direction), `barrier`, `result` (of the function,
            from what is returned or back), `group`, `constraint` (a value that a closed constraint is on takes its sharding before the
            propagation), or `priority` (what it was given so was set aside until its user priority).
        through: The primitive whose rule brought it; empty for annotations.
        step: Number of the step in the propagation log; -1 for annotations.
        op_priority: The op priority at which it happened; -1 where none applies.
        factor: The factors of the rule along which the axis came.
        axes: The leading axes of the dimension up to this one, major to minor; `needs` explains all of them.
        needs: Positions in the chain of the reasons that this one depends on; several where the axis came in parts from several values.
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
        how, _, _ = _how(self)
        where = f" at {self.location}" if self.location else ""
        priority = f"user priority {self.user_priority}" if self.user_priority else ""
        if not self.needs:
            text = f"{how}{where}" + (f" ({priority})" if priority else "")
        else:
            ranks = (f"step {self.step}", priority, f"op priority {self.op_priority}" if self.op_priority >= 0 else "")
            text = f"{'through ' if self.cause == 'propagated' else ''}{how}{where} ({', '.join(filter(None, ranks))})"
        return printable(f"{self.value} has {self.axis!r} on dimension {self.dim}: {text}")


@dataclass(frozen=True, slots=True)
class Source:
    """An annotation that has an axis."""

    value: str
    dim: int
    axis: str
    annotation: str
    location: str = ""

    def __str__(self) -> str:
        return printable(self.annotation + (f" at {short_location(self.location)}" if self.location else f" of {self.value}"))


@dataclass(frozen=True, slots=True)
class Missing:
    """The reason why a dimension lacks an axis.

    Attributes:
        kind: `conflict`: other axes are where it would go; `closed`: an annotation closes the dimension; `replicated`: an annotation says
            that the axis is not used; `used`: it is on another dimension of the value; `indivisible`: its devices do not divide the
            dimension, or the factor of it that an op has; `major`: a more significant part of the dimension would have to be sharded whole
            first; `part`: the neighbour has it on a part of its dimension that does not go with this one; `blocked`: nothing propagates
            along the factor of the op between; `barrier`: a propagation barrier lets nothing pass in this direction; `manual`: it is a
            manual axis of a shard_map; `no-rule`: an op without a rule stands between; `unrelated`: no rule relates the dimension to one
            that has the axis; `cut`: it was there and was cut after the propagation; `conservative`: it would have to be split, which
            conservative propagation does not do; `mesh`: the neighbour is on another mesh; `one-device`: the op that makes it runs on one
            device; `late`: the propagation did not return to the op between after the neighbour got it; `absent`: no annotation names it.
        value: The value at which the axis stopped; the target itself, where it reached a neighbour of that.
        source: The nearest value that has the axis; empty where there is none.
        through: The primitive that stands between the two.
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
        return printable(f"dimension {self.dim} lacks {self.axis!r}, {self.kind}: {self.message}")


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Report):
    """The reasons why a value has its axes and lacks others.

    Attributes:
        target: The explained value.
        sharding: Its type with its sharding.
        chains: One per axis of each dimension; each begins with the value and ends with annotations. The steps of a chain, in the order
            of their numbers, bring the axis again from nothing but the annotations that it names.
        axis: The only axis of the query; None for all.
        missing: Reasons for missing axes, one per dimension and axis: the axis of the query; without one, the axes that came to the
            value and were cut afterwards, and all axes of the mesh where the value is replicated.
        also: Further annotations with the axis, connected with the value by values that have it: without the chains' annotations the
            axis still comes from these, unless something else then takes its place.
        connected: Further annotations with the axis, connected with the value by rules, but not by values that have the axis: they may
            bring it where others are taken away.
        nearby: The other values made on the source line, in the scope or for the variable that the query names.
        asked: The target as the query named it, where that is not the name of the value.
        primitive: The JAX primitive that makes the value; empty for inputs and outputs.
        location: `file:line` of that.
        choice: The decision of a planner on a value that lies whole; empty of others.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.dot, mesh={"x": 4}, in_shardings=(jax.P(None, "x"), None)).plan(jnp.eye(8), jnp.eye(8))
        >>> [(reason.value, reason.dim, reason.cause) for reason in plan.explain("b").chains[0]]
        [('b', 0, 'propagated'), ('a', 1, 'annotation')]
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
    choice: str = ""

    def as_text(self, *, width: int = 116) -> str:
        """The explanation for a terminal: one row per step, from the value back to the annotation.

        Args:
            width: Columns at which lines are broken.
        """
        room = max(width, _NARROWEST) - 2
        below: list[str] = []
        for chain in self.chains:
            below += [*([""] if len(self.chains) > 1 else []), *_chain_lines(chain, room)]
        if not self.chains and not self.missing and not self.choice:
            below.append("it has no dimensions that an axis could be on")
        elif not self.chains and self.axis is None:
            below.append(self.choice or "it is replicated: no axis reached it")
        below += _missing_lines(self.missing, room)
        below += _listed("also from", self.also, room)
        below += _listed("also made there", self.nearby, room)
        return printable("\n".join([*_wrapped(_head(self), room + 2), *_indented(below)]))

    def to_dict(self) -> dict[str, Any]:
        """Plain data: dicts, lists, texts and numbers, with a version."""
        return {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}


_RUN = 4
"""Runs through at least so many elementwise ops are abbreviated."""
_LISTED = 3
"""Further annotations that are listed by name."""
_LONGEST_RULE = 40
_NARROWEST = 40


def _head(explanation: Explanation) -> str:
    origin = ", ".join(part for part in (explanation.primitive, short_location(explanation.location)) if part)
    question = f"{explanation.asked} is " if explanation.asked else ""
    return f"{question}{explanation.target}{f' ({origin})' if origin else ''}: {explanation.sharding}"


def _chain_lines(chain: Sequence[Reason], width: int) -> list[str]:
    """Renders a chain as lines: the annotations where it ends, then a table of its steps."""
    first = chain[0]
    ends = dict.fromkeys(_end(reason) for reason in chain if not reason.needs)
    lines = _wrapped(f"{first.axis!r} on dimension {first.dim}: {' and '.join(ends)}", width)
    if len(chain) == 1:
        return lines
    branches = [reason for reason in chain if len(reason.needs) > 1]
    rows: list[tuple[str, ...]] = []
    position = 0
    while position < len(chain):
        length = _plain_run(chain, position)
        if length >= _RUN:
            rows.append(_row(chain, position))
            ops = Counter(reason.through for reason in chain[position + 1 : position + length - 1])
            names = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in ops.items())
            rows.append(("...", f"{length - 2} more: {names}"))
            rows.append(_row(chain, position + length - 1))
            position += length
            continue
        rows.append(_row(chain, position))
        position += 1
    lines += _indented(_table(rows, width - 2))
    if branches:
        names = ", ".join(dict.fromkeys(r.value for r in branches))
        lines += _indented(_wrapped(f"the axis comes in parts: {names} needs several of the rows below it", width - 2))
    return lines


def _plain_run(chain: Sequence[Reason], start: int) -> int:
    """Length of the run of elementwise steps from one on, each depending on the next."""
    length = 0
    for position in range(start, len(chain)):
        reason = chain[position]
        if reason.needs != (position + 1,) or reason.cause != "propagated" or not _is_plain(reason.rule) or reason.dim != chain[start].dim:
            break
        length += 1
    return length


def _is_plain(rule: str) -> bool:
    """Whether all tensors of a rule have the same dimensions."""
    sides = rule.partition("<")[2].partition(" {")[0].replace("->", ", ").replace("(", "").replace(")", "")
    mappings = {each for each in sides.replace("], [", "]|[").split("|") if each != "[]"}
    return len(mappings) == 1


def _row(chain: Sequence[Reason], position: int) -> tuple[str, ...]:
    reason = chain[position]
    other = "" if reason.axis == chain[0].axis else f" @{reason.axis}"
    return (reason.value, f"dim {reason.dim}{other}", *_how(reason))


def _how(reason: Reason) -> tuple[str, str, str]:
    """The cause of a reason, its location, and rule and priorities."""
    ranks = [f"user priority {reason.user_priority}"] if reason.user_priority else []
    where = short_location(reason.location)
    if not reason.needs:
        return reason.annotation or "annotation", where, ", ".join(ranks)
    if reason.cause == "propagated":
        rule = _short_rule(reason.rule)
        along = f"{rule} along {reason.factor}" if rule else ""
        return reason.through, where, "  ".join(part for part in (along, ", ".join(ranks)) if part)
    words = {
        **{border: f"{border} of {reason.through}" for border in ("entry", "carry", "exit")},
        "barrier": "through the barrier",
        "group": "sharding group",
        "result": "returned",
        "constraint": "constrained",
        "priority": "set aside before",
    }
    return words.get(reason.cause, reason.cause), where, ", ".join(ranks)


def _short_rule(rule: str) -> str:
    """A rule in einsum notation; empty for elementwise ops and long rules."""
    if not rule or _is_plain(rule):
        return ""
    sides = OpShardingRule.parse(rule)
    both = (sides.operand_mappings, sides.result_mappings)
    text = "->".join(",".join("".join(map(_dim, mapping)) or "()" for mapping in side) for side in both)
    return text if len(text) <= _LONGEST_RULE else ""


def _dim(factors: Sequence[int]) -> str:
    symbols = "".join(map(factor_symbol, factors))
    return symbols if len(factors) == 1 else f"({symbols})"


def _table(rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """Rows with their columns aligned; a row of two cells is a remark. A name that is too long stands in a line of its own."""
    cells = [row for row in rows if len(row) > 2]
    first, *widths = [max(map(len, column)) for column in zip(*cells)]
    room = width - sum(w + 2 for w in widths if 0 < w <= width // 2)
    if first > room:
        first = max((len(row[0]) for row in cells if len(row[0]) <= room), default=2)
    lines: list[str] = []
    for name, *rest in rows:
        if len(rest) == 1:
            lines += _wrapped(f"{name}  {rest[0]}", width)
            continue
        if len(name) > first:
            lines.append(name)
            name = ""
        line = name.ljust(first)
        for cell, wide in zip(rest, widths):
            if cell and line.strip() and len(line) + 2 + len(cell) > width:
                lines.append(line.rstrip())
                line = " " * first
            line += f"  {cell.ljust(wide)}" if wide else ""
        lines.append(line.rstrip())
    return lines


def _wrapped(sentence: str, width: int) -> list[str]:
    return textwrap.wrap(sentence, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _missing_lines(all_missing: Sequence[Missing], width: int) -> list[str]:
    """Renders missing axes as lines; reasons and chains that dimensions share occur once."""
    alike = grouped(all_missing, lambda missing: (missing.axis, missing.kind, missing.message, missing.fix))
    lines: list[str] = []
    shown: set[tuple[Reason, ...]] = set()
    for same in alike.values():
        missing = same[0]
        dims = f"dimension{'s' if len(same) > 1 else ''} {', '.join(str(each.dim) for each in same)}"
        sentence = f"{dims} lack{'s' if len(same) == 1 else ''} {missing.axis!r}, {missing.kind}: {missing.message}"
        lines += _wrapped(sentence, width)
        if missing.winner and missing.winner not in shown:
            shown.add(missing.winner)
            lines += _indented(_chain_lines(missing.winner, width - 2))
        if missing.fix:
            lines += _indented(_wrapped(f"fix: {missing.fix}", width - 2))
    return lines


def _listed(head: str, entries: Sequence[Source | str], width: int) -> list[str]:
    """The first of several as a sentence; none of none."""
    more = [f"{len(entries) - _LISTED} more"] * (len(entries) > _LISTED)
    return _wrapped(f"{head}: {', '.join([*map(str, entries[:_LISTED]), *more])}", width) if entries else []


def _end(reason: Reason) -> str:
    place = f" at {short_location(reason.location)}" if reason.location else ""
    if reason.cause == "planner":
        return reason.annotation
    return f"{reason.annotation or 'annotation'}{place}" if place else f"{reason.annotation or 'annotation'} of {reason.value}"


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]
