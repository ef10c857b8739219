"""What is fed: arguments that come from the host in every call, and results that go back to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shardy_py.errors import UserError, did_you_mean
from shardy_py.ir import Program
from shardy_py.plan.paths import is_backward, names_of, names_path
from shardy_py.plan.values import PlannedValue

Values = Sequence[PlannedValue]


@dataclass(frozen=True, slots=True)
class Feeding:
    """Numbers of the arguments and results that move between the host and the devices in every call."""

    arguments: tuple[int, ...] = ()
    results: tuple[int, ...] = ()


NOTHING = Feeding()


def feeding_of(program: Program, inputs: Values, outputs: Values, donated: Collection[int], dropped: Collection[int]) -> Feeding:
    """What is fed in a training step, one that has a backward pass and replaces arguments: all that it does not replace.

    A result replaces an argument of its type and name, and a donated or nameless one of its type. Nothing is fed elsewhere: what inference
    does not replace, such as parameters beside a cache, is there already. It depends on no sharding. Arguments that the compiled program
    does not have are `dropped`.
    """
    ins, outs = ([(value.type, _name(value.path)) for value in values] for values in (inputs, outputs))
    names_in, names_out = ({key for key in keys if key[1]} for keys in (ins, outs))
    results = [n for n, key in enumerate(outs) if key not in names_in]
    arguments: list[int] = []
    for n in sorted((n for n, key in enumerate(ins) if key not in names_out), key=lambda n: n not in donated):
        type_, name = ins[n]
        result = next((r for r in results if outs[r][0] == type_ and (n in donated or not (name or outs[r][1]))), None)
        if result is not None:
            results.remove(result)
        elif n not in dropped:
            arguments.append(n)
    scopes = (program.locate(op.location) for op in program.walk())
    trains = len(results) < len(outs) and any(where is not None and is_backward(where.scope) for where in scopes)
    return Feeding(tuple(sorted(arguments)), tuple(results)) if trains else NOTHING


def _name(path: str) -> tuple[str, ...]:
    """The end of a path from its last name on, the argument or `result` left out: of `params['layers'][0]` it is `layers`, `0`."""
    names = names_of(path)[1:]
    return names[max((i for i, name in enumerate(names) if not name.isdigit()), default=len(names)) :]


def stated(feeding: Feeding, inputs: Values, outputs: Values, fed: Sequence[str], resident: Sequence[str]) -> Feeding:
    """Feeding with what the user says by patterns of paths; what is named as both is fed.

    Raises:
        UserError: A pattern matches no argument or result.
    """
    paths = [value.path for value in (*inputs, *outputs)]
    named: dict[str, set[str]] = {}
    for option, patterns in (("resident", resident), ("fed", fed)):
        for pattern in patterns:
            matches = [path for path in paths if names_path(pattern, path)]
            if not matches:
                why = "no argument or result has such a path"
                raise UserError(f"{option} has {pattern!r}", where=f"Planner({option}=...)", why=why, fix=did_you_mean(pattern, paths[:12]))
            named.setdefault(option, set()).update(matches)

    def chosen(values: Values, default: Collection[int]) -> tuple[int, ...]:
        rest = {values[n].path for n in default} - named.get("resident", set())
        return tuple(n for n, value in enumerate(values) if value.path in named.get("fed", ()) or value.path in rest)

    return Feeding(chosen(inputs, feeding.arguments), chosen(outputs, feeding.results))
