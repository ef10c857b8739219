"""One program per plan: texts, pages, files, findings, reshards, collectives, cost and memory speak of the same collectives."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardy_py as sp
from shardy_py.plan.checks import costs
from shardy_py.plan.collectives import format_bytes
from shardy_py.plan.executed import executed
from shardy_py.plan.memory.analysis import lifetimes
from shardy_py.testing.pinned import pinned
from shardy_py.view.html.payload import payload
from tests.zoo import ZOO, programs

MESH = {"x": 2, "y": 4}


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def mlp(up: Any, down: Any, x: Any) -> Any:
    return jnp.mean((jax.nn.relu(x @ up) @ down) ** 2)


def layers(x: Any, stack: Any, shared: Any) -> Any:
    return lax.scan(lambda c, w: (jnp.tanh(c @ w @ shared), None), x, stack)[0].sum()


def until(a: Any, x: Any) -> Any:
    return lax.while_loop(lambda x: jnp.linalg.norm(a @ x) > 1e-3, lambda x: x - 0.01 * (a @ x), x)


def either(x: Any, w: Any) -> Any:
    return lax.cond(x.sum() > 0, lambda x: x @ w, lambda x: jnp.sin(x @ w), x)


def joined(a: Any, b: Any) -> Any:
    return jnp.concatenate([jnp.sin(a), jnp.cos(b)]) * 2


def by_hand(x: Any) -> Any:
    def body(y: Any) -> Any:
        return lax.psum_scatter(lax.all_gather(y, "y", axis=1, tiled=True), "y", scatter_dimension=1, tiled=True)

    return sp.manual_computation(body, in_specs=P("x", "y"), out_specs=P("x", "y"), check_vma=False)(x) @ x.T


def called(x: Any) -> Any:
    return jax.pure_callback(np.sin, f32(16, 16), x) @ x


def convolved(image: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "products": (jax.grad(mlp, (0, 1)), (f32(32, 64), f32(64, 32), f32(16, 32)), (P("x", "y"), P("y"), P("x"))),
    "scan": (jax.grad(layers, (1, 2)), (f32(16, 32), f32(5, 32, 32), f32(32, 32)), (P("x", "y"), P(None, "y"), P(None, "y"))),
    "while": (until, (f32(64, 64), f32(64, 16)), (P(None, "y"), P("y"))),
    "cond": (either, (f32(16, 32), f32(32, 32)), (P("x", "y"), P("y"))),
    "concatenate": (joined, (f32(64, 64), f32(64, 64)), (P("y"), P("y"))),
    "shard_map": (by_hand, (f32(8, 8),), (P("x", "y"),)),
    "callback": (called, (f32(16, 16),), (P("x", "y"),)),
    "windows": (convolved, (f32(4, 16, 16, 8), f32(3, 3, 8, 8)), (P("x", "y"), P())),
}


def total(figures: Any) -> int:
    return sum(size * (1 if trips is None else trips) for size, trips in figures)


@pytest.mark.parametrize("lowering", ["jit", "shard_map"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_surfaces_agree(name: str, lowering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "GRAVE", 256)
    monkeypatch.setattr(costs, "NOTABLE", 64)
    function, args, specs = PROGRAMS[name]
    plan = sp.auto_shard(function, mesh=MESH, in_shardings=specs, lowering=lowering).plan(*args)
    assert plan.collectives
    check(plan)


def check(plan: sp.Plan) -> None:
    received = total((c.received_bytes, c.trips) for c in plan.collectives)
    steps = Counter((step.kind, step.group_size, step.received_bytes, r.trips) for r in plan.reshards for step in r.collectives)
    assert steps == Counter((c.kind, c.group_size, c.received_bytes, c.trips) for c in plan.collectives)
    assert total((r.bytes_per_device, r.trips) for r in plan.reshards) == received

    lines = re.findall(r"^collectives  .*, which brings? (?:at least )?(.*) to each device in a call$", str(plan), re.M)
    assert lines == [format_bytes(received)] * bool(plan.collectives)

    cost = plan.cost_analysis()
    assert [c.collective for c in cost.collectives] == list(plan.collectives)
    assert cost.communicated_bytes == received
    timed = [c.collective for c in plan.cost_analysis("h100").collectives]
    assert [(c.operand_bytes, c.trips) for c in timed] == [(c.operand_bytes, c.trips) for c in plan.collectives]

    transfers = executed(plan).transfers
    assert [collective for collective, _ in transfers] == list(plan.collectives)
    program = lifetimes(plan).running
    assert {step for _, step in transfers if step is not None} <= set(program.walk())

    check_memory(plan)
    check_page(plan)
    check_files(plan)
    for finding in plan.findings:
        if finding.kind == "costly-reshard":
            moved = [r for r in plan.reshards if (r.value, r.location) == (finding.path, finding.location)]
            assert moved
            assert finding.bytes in {sum(s.received_bytes for s in r.collectives if s.kind != "all_reduce") * (r.trips or 1) for r in moved}


def check_memory(plan: sp.Plan) -> None:
    memory = plan.memory_analysis()
    assert re.findall(r"^inputs  .*, (.*) on each device", str(plan), re.M) == [format_bytes(memory.argument_size_in_bytes)]
    assert memory.peak_memory_in_bytes >= memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes


def check_page(plan: sp.Plan) -> None:
    data = payload(plan)
    assert [(row[1], row[2], row[6]) for row in data["collectives"]] == [(c.value, c.kind, c.received_bytes) for c in plan.collectives]


def check_files(plan: sp.Plan) -> None:
    assert total((entry["bytes"], 1) for entry in pinned(plan)["reshards"].values()) == total(
        (r.bytes_per_device, r.trips) for r in plan.reshards
    )
    cut = sp.auto_shard(lambda x: x, mesh=MESH).plan(f32(8, 8))
    diff = cut.diff(plan)
    assert len(diff.reshards) == len(plan.reshards)
    assert total((change.bytes_after, 1) for change in diff.reshards) == diff.bytes[1]


def annotated(leaf: Any, number: int) -> P | None:
    """Every other array is cut along the first dimension that an axis divides, by one axis and by the other in turns."""
    axis = ("x", "y")[number // 2 % 2]
    fitting = [d for d, n in enumerate(leaf.shape) if n and n % MESH[axis] == 0]
    return P(*[None] * fitting[0], axis) if fitting and number % 2 else None


@pytest.mark.slow
@pytest.mark.skipif(not ZOO.exists(), reason="the programs are not there")
def test_surfaces_of_many_programs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "GRAVE", 256)
    monkeypatch.setattr(costs, "NOTABLE", 64)
    for build, lowering in zip(programs().values(), itertools.cycle(("jit", "shard_map"))):
        function, args = build()
        leaves, tree = jax.tree.flatten(args)
        specs = jax.tree.unflatten(tree, [annotated(leaf, i) for i, leaf in enumerate(leaves)])
        check(sp.auto_shard(function, mesh=MESH, in_shardings=specs, lowering=lowering).plan(*args))
