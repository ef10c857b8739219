"""Agreement: before the processes of a mesh run a signature for the first time, they compare what they are about to run.

Processes that run different programs on one mesh wait in each other's collectives for ever, and those that pass different values for one
array go on with a mixture of them. So each states its program: versions, mesh, signature, and the program with its shardings, its
constants by content; and the values of arguments that every process has to have. `peers` compares them.

A call under `jax.jit` is written down, and what is written down may run later, or never, or in one process only: nobody can be waited for
while it is traced. So the results of a planned function pass a gate, an identity, and the processes agree where that is lowered. Tangents
and cotangents pass it as well, for a derivative may need nothing else of a call.
"""

from __future__ import annotations

import functools
import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jaxlib
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import Mesh

from shardy_py.api.peers import Peers, peers_of
from shardy_py.api.signature import settings_by_name
from shardy_py.api.tracing import TracedCall
from shardy_py.frontends.context import is_extended_dtype, is_lowered_ahead, known_value
from shardy_py.ir.printer import print_program
from shardy_py.plan.record import PlanRecord

AHEAD = 10.0
"""Seconds that a process waits for the others where a program is lowered and need not run: it may be the only one that looks at it."""


class Agreement:
    """The agreement of the processes of a mesh on one signature; `settled` if they agreed to run it by itself."""

    def __init__(self, peers: Peers, plan: PlanRecord, traced: TracedCall, devices: Sequence[Any]) -> None:
        self._peers = peers
        self._program = plan, traced, devices
        self._asked_within = False
        self.settled = False

    def settle(self, leaves: Sequence[Any], prepare: Callable[[], Any]) -> None:
        """Returns when all processes are about to run the program by itself, after `prepare`; at once after the first time."""
        if _COVERED.programs or self.settled:
            return
        if self._agree("by itself", leaves):
            with covering():
                prepare()
            self._agree("by itself, ready to run")
        self.settled = True

    def settle_within(self, leaves: Sequence[Any] = (), *, ahead: bool = False) -> None:
        """As `settle`, for a program that runs inside another program or a derivative.

        Args:
            ahead: The other program is only lowered and need not run: where others do not come soon, they are not waited for.
        """
        if not (_COVERED.programs or self.settled or self._asked_within):
            self._agree("within another program or a derivative", leaves, ahead=ahead)
            self._asked_within = not ahead

    def _agree(self, role: str, leaves: Sequence[Any] = (), *, ahead: bool = False) -> bool:
        request = self._program[1].request
        values = [(leaf, passed_value(value)) for leaf, value in zip(request.leaves, leaves)]
        timeout = AHEAD if ahead else request.settings.options.peer_timeout
        return self._peers.agree(f"called {role}\n{self._statement}", request.location, values, timeout=timeout, ahead=ahead)

    @functools.cached_property
    def _statement(self) -> str:
        return statement(*self._program)


def agreement_of(plan: PlanRecord, traced: TracedCall, mesh: Mesh) -> Agreement | None:
    """The agreement of the processes of a mesh; None where nothing is to be compared."""
    if traced.request.settings.options.peer_timeout == 0:
        return None
    devices = tuple(mesh.devices.flat)
    peers = peers_of(devices)
    return None if peers is None else Agreement(peers, plan, traced, devices)


class _Covered(threading.local):
    programs = 0
    """Number of agreed programs being lowered; programs lowered meanwhile are part of them."""


_COVERED = _Covered()


@contextmanager
def covering() -> Iterator[None]:
    """A context without comparisons: calls and lowerings in it are part of a program that was compared, or will be."""
    _COVERED.programs += 1
    try:
        yield
    finally:
        _COVERED.programs -= 1


def statement(plan: PlanRecord, traced: TracedCall, devices: Sequence[Any]) -> str:
    """A program that is about to run, one fact per line: equal in all processes that run the same."""
    request = traced.request
    layout = request.layout
    ids = " ".join(f"{device.process_index}:{device.id}" for device in devices)
    lines = [
        f"function {request.name}",
        f"jax {jax.__version__}, jaxlib {jaxlib.__version__}",
        f"lowering {plan.lowering}",
        f"mesh {request.view.describe()}",
        f"devices {ids}",
        *(f"{name} = {value!r}" for name, value in settings_by_name().items()),
        f"donated {', '.join(layout.labels[i] for i in layout.donated) or 'nothing'}",
        *(f"input {value}" for value in plan.inputs),
        *(f"output {value}" for value in plan.outputs),
        print_program(plan.program),
        *(f"closed over {_type(value)} {_content(value) or ''}".rstrip() for value in traced.jaxpr.consts),
    ]
    # Names of callables may hold their addresses, which differ between processes.
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(lines))


def passed_value(value: Any) -> str | None:
    """The content of an argument that has to be equal in all processes; None for arrays over several, and tracers without a value."""
    value = known_value(value)
    return None if isinstance(value, jax.Array) and not value.is_fully_addressable else _content(value)


def _content(value: Any) -> str | None:
    """The digest and first elements of a value, PRNG keys by their data; None where this process does not have all of it."""
    value = known_value(value)
    if isinstance(value, jax.Array):
        if not value.is_fully_replicated and not value.is_fully_addressable:
            return None
        if is_extended_dtype(value.dtype):
            value = jax.random.key_data(value)
        if not value.is_fully_addressable:
            value = value.addressable_data(0)
    elif not isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        return None
    # Bytes, whatever the element type: bfloat16 and the like export no buffer.
    flat = np.ascontiguousarray(value).reshape(-1)
    digest = hashlib.sha256(flat.view(np.uint8).data if flat.size else b"").hexdigest()[:16]
    shown = [f"{x:.6g}" if np.issubdtype(flat.dtype, np.floating) else str(x) for x in flat[:4]]
    return f"{digest} {', '.join(shown)}{', ...' if flat.size > 4 else ''}"


def _type(value: Any) -> str:
    return f"{getattr(value, 'dtype', type(value).__name__)}{list(getattr(value, 'shape', ()))}"


agreed_p = Primitive("agreed")
"""One operand, given back; `agreement` is between the processes of a mesh."""


def gated(agreement: Agreement, results: Sequence[Any]) -> list[Any]:
    """Results of a traced function, behind a gate."""
    return [agreed_p.bind(x, agreement=agreement) for x in results]


def _run(x: Any, *, agreement: Agreement) -> Any:
    agreement.settle_within()
    return x


def _lower(ctx: Any, x: Any, *, agreement: Agreement) -> list[Any]:
    agreement.settle_within(ahead=is_lowered_ahead())
    return [x]


agreed_p.def_impl(_run)
agreed_p.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(agreed_p, _lower, cacheable=False)
ad.deflinear2(agreed_p, lambda ct, _, agreement: [agreed_p.bind(ct, agreement=agreement)])
batching.defvectorized(agreed_p)
