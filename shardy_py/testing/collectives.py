"""Assertions on the number and bytes of the collectives of a plan, and on the memory of its compiled program."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from shardy_py.cost.hardware import Hardware
from shardy_py.cost.quantity import quantity
from shardy_py.facade import Plan
from shardy_py.plan.collectives import KINDS, format_bytes, lines, received_by

_RELATIONS: dict[str, Callable[[float, float], bool]] = {"==": operator.eq, "<": operator.lt, "<=": operator.le}
_LIMIT = re.compile(r"(?P<relation><=|<|==)?\s*(?P<amount>\d.*)")
_MAX_LISTED = 30


def assert_collectives(plan: Plan, expected: Mapping[str, int | str], *, others: bool = False) -> None:
    """Asserts which collectives a call runs.

    Args:
        plan: The plan.
        expected: For each kind (`all_gather`), or kind over given axes (`all_gather(model)`), how many there are in the program, or the
            bytes that a device receives in a call: `2`, `"<= 3"`, `"240 KiB"`, `"< 1.5 GiB"`. Those in loops count once, their bytes as
            often as the loop runs.
        others: Whether there may be collectives that are not named; by default there may not.

    Raises:
        AssertionError: There are others, or other bytes; the message lists them with their source lines.
        ValueError: A kind or a limit that means nothing.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> x = jax.ShapeDtypeStruct((8, 16), jnp.float32)
        >>> plan = sp.auto_shard(jnp.sum, mesh={"data": 4}, in_shardings=jax.P("data")).plan(x)
        >>> assert_collectives(plan, {"all_reduce(data)": 1})
        >>> assert_collectives(plan, {"all_reduce": "<= 1 KiB"})
    """
    __tracebackhide__ = True
    limits = {key: _limit(key, value) for key, value in expected.items()}
    for key in expected:
        kind = key.partition("(")[0]
        if kind not in KINDS:
            raise ValueError(f"there is no kind of collectives {kind!r}; the kinds are {', '.join(KINDS)}")
    problems: list[str] = []
    named: set[int] = set()
    for key, (is_bytes, holds) in limits.items():
        matches = [(i, c) for i, c in enumerate(plan.collectives) if key in (c.kind, c.title)]
        named |= {i for i, _ in matches}
        actual = received_by([c for _, c in matches]) if is_bytes else len(matches)
        if not holds(actual):
            shown = f"{format_bytes(actual)} ({actual} B)" if is_bytes else actual
            problems.append(f"{shown} {key}, expected {expected[key]}")
    if not others:
        counts: dict[str, int] = {}
        for i, c in enumerate(plan.collectives):
            if i not in named:
                counts[c.title] = counts.get(c.title, 0) + 1
        problems += (f"{n} {key}, expected none" for key, n in counts.items())
    if problems:
        listed = [f"  {line}" for line in lines(plan.collectives)] if plan.collectives else ["  none"]
        more = [f"  ... and {len(listed) - _MAX_LISTED} more"] if len(listed) > _MAX_LISTED else []
        raise AssertionError(
            "\n".join((f"collectives of the plan of {plan.name}: {'; '.join(problems)}", "it has", *listed[:_MAX_LISTED], *more))
        )


def assert_fits(plan: Plan, topology: str | None = None, *, hardware: str | Hardware | int | None = None) -> None:
    """Asserts that the compiled program of a plan fits the memory of a device.

    Args:
        plan: The plan.
        topology: As for `Plan.compile_for`.
        hardware: As for `Plan.compile_for`.

    Raises:
        AssertionError: It does not fit; the message has the compiler's figures.
        CompileError: It cannot be compiled.

    Example:
        >>> import jax, jax.numpy as jnp, shardy_py as sp
        >>> plan = sp.auto_shard(jnp.tanh, mesh={"data": 4}, in_shardings=jax.P("data")).plan(jnp.ones((8, 8)))
        >>> assert_fits(plan, hardware="v5e")
    """
    __tracebackhide__ = True
    compiled = plan.compile_for(topology, hardware=hardware)
    if not compiled.fits:
        raise AssertionError(compiled.as_text())


def _limit(key: str, value: int | str) -> tuple[bool, Callable[[float], bool]]:
    """Whether a limit is one of bytes, and whether a number is within it."""
    match = None if isinstance(value, bool) or not isinstance(value, int | str) else _LIMIT.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"{key}: expected a number or a text like '<= 3' or '1.5 MiB', got {value!r}")
    number, holds = quantity(match["amount"], key), _RELATIONS[match["relation"] or "=="]
    return "b" in match["amount"].lower(), lambda actual: holds(actual, number)
