"""Certificates of stored plans: what the duals prove, and what is refused."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardy_py as sp
from shardy_py.plan.search import Search
from shardy_py.planner.certificate import Certificate, CertificateError, check, decode, encode, main


def step(params, x):
    grads = jax.grad(lambda params: jnp.mean((jnp.tanh(x @ params[0]) @ params[1]) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def planned(**options: object) -> sp.Plan:
    mesh = jax.sharding.AbstractMesh((4, 2), ("x", "y"))
    layer = (jax.ShapeDtypeStruct((1024, 4096), jnp.float32), jax.ShapeDtypeStruct((4096, 1024), jnp.float32))
    planner = sp.Planner(hardware="v5e", **options)
    return sp.auto_shard(step, mesh=mesh, planner=planner, donate_argnums=0).plan(layer, jax.ShapeDtypeStruct((8192, 1024), jnp.float32))


@pytest.fixture(scope="module")
def plan() -> sp.Plan:
    return planned(memory_bytes="63MiB")


@pytest.fixture(scope="module")
def stored(plan: sp.Plan) -> sp.Plan:
    return sp.Plan.from_json(plan.to_json())


def with_certificate(plan: sp.Plan, change: Callable[[Certificate], Certificate]) -> Search:
    assert plan.search is not None
    return replace(plan.search, stored_certificate=encode(change(decode(plan.search.certificate))))


def cheaper_table(certificate: Certificate) -> Certificate:
    """The entries of a table that are not the plan's are dearer, so that the plan seems to be the best, and the duals prove it."""
    first, *rest = certificate.problem.tables
    return replace(certificate, problem=replace(certificate.problem, tables=(replace(first, costs=first.costs + 1e-3), *rest)))


def other_assignment(certificate: Certificate) -> Certificate:
    table = certificate.problem.tables[0]
    other = list(certificate.assignment)
    other[table.classes[0]] = (other[table.classes[0]] + 1) % certificate.problem.strategies[table.classes[0]]
    return replace(certificate, assignment=tuple(other))


def with_first_duals(certificate: Certificate, **changes: Callable[[np.ndarray], np.ndarray]) -> Certificate:
    first, *rest = certificate.stages
    first = replace(first, **{name: change(getattr(first, name)) for name, change in changes.items()})
    return replace(certificate, stages=(first, *rest))


TAMPERED: dict[str, tuple[Callable[[sp.Plan], Search], str]] = {
    "another objective": (
        lambda plan: replace(plan.search, objective_seconds=0.9 * plan.search.objective_seconds),
        "step of the stored plan is",
    ),
    "a higher bound": (
        lambda plan: replace(plan.search, lower_bound_seconds=1.01 * plan.search.objective_seconds),
        "stated bound, .* is above",
    ),
    "a dearer table": (lambda plan: with_certificate(plan, cheaper_table), "model's cost of the plan is"),
    "another assignment": (lambda plan: with_certificate(plan, other_assignment), "model's cost of the plan|forbids the assignment"),
    "other messages": (
        lambda plan: with_certificate(plan, lambda c: with_first_duals(c, messages=lambda m: m + np.arange(len(m)) * 1e-4)),
        "bound of the duals is|is damaged",
    ),
    "a negative share": (lambda plan: with_certificate(plan, lambda c: with_first_duals(c, shares=lambda s: s - 1e-3)), "is negative"),
    "a negative multiplier": (
        lambda plan: with_certificate(plan, lambda c: with_first_duals(c, multipliers=lambda m: m - 1e-9)),
        "is negative",
    ),
    "a claim that no dual proves": (
        lambda plan: with_certificate(plan, lambda c: replace(c, facts={**c.facts, "bound": 1.01 * c.facts["objective"]})),
        "bound of the duals is",
    ),
    "a damaged text": (lambda plan: replace(plan.search, stored_certificate=plan.search.certificate[:-40]), "certificate is damaged"),
    "no certificate": (lambda plan: replace(plan.search, stored_certificate=""), "has no certificate"),
}


def test_duals_prove_the_bound_of_a_stored_plan_and_the_module_says_so(plan: sp.Plan, tmp_path: pathlib.Path, capsys):
    plan.save(tmp_path / "plan.json.gz")
    assert main([str(tmp_path / "plan.json.gz")]) == 0
    printed = capsys.readouterr().out
    assert f"step {plan.search.objective_seconds:.9g} s\nat least " in printed
    proven = float(printed.split("at least ")[1].split(" s")[0])
    assert 0.99 * plan.search.lower_bound_seconds <= proven <= plan.search.objective_seconds * (1 + 1e-8)  # it is printed with nine digits


def test_a_budget_is_a_limit_of_the_certificate(stored: sp.Plan):
    assert len(decode(stored.search.certificate).problem.limits) == 1


@pytest.mark.parametrize("name", TAMPERED)
def test_what_does_not_add_up_is_refused(stored: sp.Plan, name: str):
    change, message = TAMPERED[name]
    with pytest.raises(CertificateError, match=message):
        check(replace(stored, search=change(stored)))


def test_a_plan_that_no_planner_chose_is_refused(tmp_path: pathlib.Path, capsys):
    sp.auto_shard(lambda x: x * 2, mesh={"x": 1}).plan(jnp.ones(8)).save(tmp_path / "plan.json")
    assert main([str(tmp_path / "plan.json")]) == 1
    assert "refused: the plan has no certificate" in capsys.readouterr().out


def test_options_that_the_objective_depends_on_are_kept():
    plan = planned(overlap=0.5, constraints=False)
    assert "proven by" in check(sp.Plan.from_json(plan.to_json()))
