"""Reference results: the program under `jax.jit` on one device, without annotations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardy_py.backends.compare import fetch
from shardy_py.backends.flat import with_variables
from shardy_py.backends.named_shardings import NamedShardings
from shardy_py.backends.rewriting import Copier, Pins, Replacement, constraint_params
from shardy_py.frontends.jaxprs import equations
from shardy_py.frontends.mesh_context import traced_on

LEFT_OUT = frozenset(
    {
        "sharding_constraint",
        "sdy_sharding_constraint",
        "sdy_sharding_group",
        "sdy_propagation_barrier",
        "shard_alike",
        "mesh_cast",
        "reshard",
    }
)
"""Primitives that change where a value is, not what it is."""

Program = Callable[[Sequence[Sequence[Any]]], list[list[Any]]]
"""Takes and gives one list of arrays per jaxpr."""


class Reference:
    """Runs jaxprs unsharded.

    A program that holds a `jax.shard_map` needs its mesh; it runs on all devices, everything replicated but those regions.
    """

    def __init__(self, mesh: Mesh) -> None:
        own = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
        self.device = own[0] if own else jax.local_devices()[0]
        self.mesh = mesh
        self.replicated = NamedSharding(mesh, PartitionSpec())

    def jitted(self, jaxprs: Sequence[tuple[Jaxpr, Sequence[Any]]]) -> Program:
        """Compiles several jaxprs, each with its constants, as one program."""
        on_mesh = any(_is_manual(jaxpr) for jaxpr, _ in jaxprs)
        stripped = [(self.stripped(jaxpr), [fetch(c) for c in consts]) for jaxpr, consts in jaxprs]

        def run(operands: Sequence[Sequence[Any]]) -> list[list[Any]]:
            return [eval_jaxpr(jaxpr, consts, *xs) for (jaxpr, consts), xs in zip(stripped, operands)]

        call = jax.jit(run, in_shardings=self.replicated, out_shardings=self.replicated) if on_mesh else jax.jit(run)

        def outside(operands: Sequence[Sequence[Any]]) -> list[list[Any]]:
            values = [list(xs) for xs in operands]
            with without_mesh():
                return call(values if on_mesh else jax.device_put(values, self.device))

        return outside

    def of(self, closed: ClosedJaxpr) -> Callable[[Sequence[Any]], list[Any]]:
        """A compiled program of one jaxpr."""
        call = self.jitted([(closed.jaxpr, closed.consts)])
        return lambda xs: call([list(xs)])[0]

    def stripped(self, jaxpr: Jaxpr) -> Jaxpr:
        """The jaxpr without annotations."""
        copier = Copier(NamedShardings(self.mesh.abstract_mesh), lambda eqn, scope: self._replacement(eqn, jaxpr))
        with traced_on(self.mesh.abstract_mesh):
            return copier.copy(jaxpr, Pins(), None).jaxpr

    def _replacement(self, eqn: JaxprEqn, like: Jaxpr) -> Replacement | None:
        name = eqn.primitive.name
        if name in LEFT_OUT or (name == "device_put" and any(isinstance(d, jax.sharding.Sharding) for d in eqn.params["devices"])):
            return lambda *xs: list(xs)
        if name == "partitioned_call" or (name == "jit" and _has_shardings(eqn)):
            inner = eqn.params["jaxpr"]
            return lambda *xs: eval_jaxpr(self.stripped(inner.jaxpr), inner.consts, *xs)
        if name == "shard_map":
            alone = with_variables(
                like, (fresh := [Var(v.aval) for v in eqn.invars]), eqn.outvars, constvars=[], eqns=[eqn.replace(invars=fresh)]
            )
            return lambda *xs: [self._whole(y) for y in eval_jaxpr(alone, (), *(self._whole(x) for x in xs))]
        return None

    def _whole(self, x: Any) -> Any:
        params = constraint_params(NamedSharding(self.mesh.abstract_mesh, PartitionSpec()))
        return jax.lax.sharding_constraint_p.bind(x, **params)


def without_mesh() -> AbstractContextManager[Any]:
    """As outside of `jax.set_mesh`."""
    return jax.set_mesh(Mesh(np.empty((), object), ()))


def _has_shardings(eqn: JaxprEqn) -> bool:
    return any(isinstance(s, jax.sharding.Sharding) for s in (*eqn.params["in_shardings"], *eqn.params["out_shardings"]))


def _is_manual(jaxpr: Jaxpr) -> bool:
    """Whether a jaxpr holds regions over a mesh."""
    return any(eqn.primitive.name == "shard_map" for eqn in equations(jaxpr))
