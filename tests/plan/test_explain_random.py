"""Explanations of random programs suffice, and name all that could bring what they explain."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from shardy_py.dialect import TensorSharding
from shardy_py.dialect.format import format_axis
from shardy_py.facade import Plan
from shardy_py.passes.propagation.graph import Holder
from shardy_py.plan.explain import find
from shardy_py.plan.explainer import explainer_of
from shardy_py.plan.explanation import Explanation, Reason
from shardy_py.plan.values import PlannedValue
from tests.passes.propagation.test_random_modules import USER_PRIORITY, imported, options
from tests.plan.explained_plans import plan_of_module
from tests.plan.explained_removal import Elsewhere, End, compared, has, planned
from tests.plan.explained_replay import Replay, holds
from tests.random_programs import program_of_seed

QUICK = range(8)
MANY = range(8, 28)


def holder_of(plan: Plan, value: PlannedValue) -> Holder:
    return explainer_of(plan).holder(find(plan, value).value)


def chains(plan: Plan) -> Iterator[tuple[PlannedValue, tuple[Reason, ...]]]:
    for value in plan.values:
        for chain in plan.explain(value).chains:
            yield value, chain


def check_replay(plan: Plan, what: str) -> int:
    count, replay = 0, Replay(plan)
    for value, chain in chains(plan):
        assert holds(replay, chain, holder_of(plan, value)), f"{what}: {value.path}\n{plan.explain(value).chains}"
        count += 1
    return count


def check_missing(plan: Plan, what: str) -> Counter[str]:
    """An explanation of a missing axis is true: who has it, who lacks it, and the obstacle."""
    kinds: Counter[str] = Counter()
    history = explainer_of(plan).history
    held: dict[str, list[TensorSharding | None]] = {}
    for holder in dict.fromkeys((*explainer_of(plan).neighbourhood.at, *history.steps, *history.annotated)):
        held.setdefault(explainer_of(plan).name(holder), []).append(history.at(holder, history.end))
    for value in plan.values:
        for axis in plan.mesh.shape:
            for missing in plan.explain(value, axis=axis).missing:
                kinds[missing.kind] += 1
                said = f"{what}: {value.path} {missing}"
                assert not has(value, missing.dim, axis), said
                if missing.winner:
                    assert any(_begins(sharding, missing.winner[0]) for sharding in held[missing.winner[0].value]), said
                if missing.source:
                    assert any(_has(sharding, missing.source_dim, axis) for sharding in held[missing.source]), said
                if missing.stopped >= 0:
                    assert any(not _has(sharding, missing.stopped, axis) for sharding in held[missing.value]), said
    return kinds


def _begins(sharding: TensorSharding | None, reason: Reason) -> bool:
    axes = () if sharding is None or reason.dim >= sharding.rank else sharding.dims[reason.dim].axes
    return tuple(map(format_axis, axes))[: len(reason.axes) - 1] == reason.axes[:-1] and _has(
        sharding, reason.dim, reason.axis.partition(":")[0]
    )


def _has(sharding: TensorSharding | None, dim: int, axis: str) -> bool:
    return sharding is not None and dim < sharding.rank and any(a.name == axis for a in sharding.dims[dim].axes)


def ends(explanation: Explanation, *, also: bool = False, connected: bool = False) -> tuple[End, ...]:
    """The annotations that an explanation names: those of its chains, and the further ones."""
    found = [(r.annotation, r.location or r.value) for chain in explanation.chains for r in chain if not r.needs]
    found += [(s.annotation, s.location or s.value) for s in explanation.also if also]
    found += [(s.annotation, s.location or s.value) for s in explanation.connected if connected]
    return tuple(dict.fromkeys(found))


def places(found: tuple[End, ...]) -> set[End]:
    """Annotations that can be compared between plans: a nested `jit` is called otherwise where there are fewer of them."""
    return {("jit" if " of jit " in said else said, where) for said, where in found}


def check_removal(seed: int, most: int) -> Counter[str]:
    """Takes away what explanations of some values name, and plans again."""
    text = program_of_seed(seed)
    plan = planned(text)
    constraints = {p for v, p in plan.intermediates if v.defining_op is not None and v.defining_op.name == "sdy.reshard"}
    spots = [
        (value, d, axis.name)
        for value in plan.values
        if value.sharding is not None and value not in constraints
        for d, dim in enumerate(value.sharding.dims[: len(value.shape)])
        for axis in dim.axes
    ]
    random.Random(seed).shuffle(spots)
    plans: dict[tuple[End, ...], Plan] = {}
    counts: Counter[str] = Counter()
    for value, dim, axis in spots[:most]:
        why = plan.explain(value, axis=axis, dim=dim)
        named, everything = ends(why), ends(why, also=True, connected=True)
        what = f"program_of_seed({seed}): {value.path} {why.chains}"
        try:
            for without in dict.fromkeys((named, everything)):
                if without not in plans:
                    plans[without] = planned(text, without)
                same = next((b for a, b in compared(plan, plans[without]) if a is value), None)
                if same is None:
                    counts["another program"] += 1
                elif not has(same, dim, axis):
                    counts["gone"] += 1
                else:
                    assert without != everything, f"{axis} stays without all of {everything}\n{what}"
                    again = places(ends(plans[without].explain(same, axis=axis, dim=dim)))
                    assert again <= places(everything), f"{axis} comes from {again}, which is not named\n{what}"
                    counts["also" if again <= places(ends(why, also=True)) else "connected"] += 1
        except Elsewhere:
            counts["elsewhere"] += 1
    return counts


@pytest.mark.parametrize("seed", QUICK)
def test_replayed_steps_bring_the_axis(seed: int) -> None:
    plan = planned(program_of_seed(seed))
    check_replay(plan, f"program_of_seed({seed})")
    check_missing(plan, f"program_of_seed({seed})")


@pytest.mark.parametrize("seed", QUICK)
def test_without_what_is_named_the_axis_goes(seed: int) -> None:
    check_removal(seed, 2)


@pytest.mark.filterwarnings("ignore::shardy_py.passes.propagation.rounds.ShardingGroupConflictWarning")
@pytest.mark.parametrize("seed", QUICK)
def test_modules_with_groups_barriers_and_priorities(seed: int) -> None:
    source = random.Random(seed)
    text = imported(seed, source)
    plan = plan_of_module(text, **options(USER_PRIORITY, source))
    check_replay(plan, f"imported({seed})")
    check_missing(plan, f"imported({seed})")


@pytest.mark.slow
def test_many_removals() -> None:
    counts: Counter[str] = Counter()
    for seed in MANY:
        counts.update(check_removal(seed, 5))
    assert counts["gone"] > 50, counts
    assert counts["also"] > 3, counts


@pytest.mark.slow
def test_many_replays_and_missing_axes() -> None:
    counts: Counter[str] = Counter()
    replayed = 0
    for seed in MANY:
        plan, what = planned(program_of_seed(seed)), f"program_of_seed({seed})"
        replayed += check_replay(plan, what)
        counts.update(check_missing(plan, what))
    assert replayed > 500
    assert not {"conflict", "closed", "used", "unrelated", "blocked", "indivisible", "major"} - counts.keys()
    assert counts["late"] < 0.01 * counts.total(), counts


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::shardy_py.passes.propagation.rounds.ShardingGroupConflictWarning")
def test_many_modules() -> None:
    for seed in MANY:
        test_modules_with_groups_barriers_and_priorities(seed)
