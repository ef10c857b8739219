"""Agreement: before the processes of a mesh run a signature for the first time, they compare what they are about to run.

Processes that run different programs on one mesh wait in each other's collectives for ever, and those that pass different values for one
array go on with a mixture of them. So each states its program: versions, mesh, signature, and the program with its shardings, its
constants by content; and the values of arguments that every process has to have. `rendezvous` compares the statements by digest; their
texts travel only where they differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jax.sharding import Mesh

from shardy_py.api.comparing import compare
from shardy_py.api.errors import ValueMismatchError
from shardy_py.api.peer_states import Verdict
from shardy_py.api.peers import peers_of
from shardy_py.api.planning import Planned
from shardy_py.api.rendezvous import Rendezvous, digest, listed
from shardy_py.api.statement import passed_values, preview, statement

AHEAD = 10.0
"""Seconds that a process waits for the others where a program is lowered and need not run: it may be the only one that looks at it."""


class Agreement:
    """Compares the statement of one signature with those of other processes, once; `settled` if they agreed to run it by itself."""

    def __init__(self, peers: Rendezvous, planned: Planned, devices: Sequence[Any]) -> None:
        self.peers = peers
        self._planned = planned
        self._devices = tuple(devices)
        self._lock = threading.Lock()
        self._settled_within = False
        self.settled = False

    def settle(self, leaves: Sequence[Any], prepare: Callable[[], Any]) -> None:
        """Returns when all processes are about to run the program by itself, after `prepare`; at once after the first time."""
        if _COVERED.programs:
            return
        with self._lock:
            text = self._text(_BY_ITSELF)
            if not self.settled and digest(text) not in self.peers.agreed:  # forgetting a plan and making it again asks nobody
                self._compare(text, passed_values(leaves), leaves, self._timeout)
                with covering():
                    prepare()
                self._compare(f"{text}\nready to run", (), (), None)
                self.peers.agreed.add(digest(text))
            self.settled = True

    def settle_within(self, leaves: Sequence[Any] = (), *, ahead: bool = False) -> None:
        """As `settle`, for a program that runs inside another program or a derivative.

        Args:
            ahead: The other program is only lowered and need not run: where others do not come soon, they are not waited for.
        """
        if _COVERED.programs:
            return
        with self._lock:
            if self.settled or self._settled_within:
                return
            text = self._text(_WITHIN)
            if digest(text) not in self.peers.agreed:
                verdict = self._compare(text, passed_values(leaves), leaves, AHEAD if ahead else self._timeout, ahead=ahead)
                if ahead and verdict.kind == "missing":
                    return
                self.peers.agreed.add(digest(text))
            self._settled_within = True

    def _text(self, role: str) -> str:
        return f"called {role}\n{statement(self._planned.plan, self._planned.traced, self._devices)}"

    @property
    def _timeout(self) -> float | None:
        return self._planned.traced.request.settings.options.peer_timeout

    def _compare(
        self, text: str, values: Sequence[str | None], leaves: Sequence[Any], timeout: float | None, *, ahead: bool = False
    ) -> Verdict:
        verdict = compare(self.peers, text, self._where, values=values, timeout=timeout, ahead=ahead)
        if verdict.kind == "values":
            raise self._different_values(verdict, digest(text), leaves, f"first call of {self._where}")
        return verdict

    @property
    def _where(self) -> str:
        return self._planned.traced.request.location

    def _different_values(self, verdict: Verdict, program: str, leaves: Sequence[Any], where: str) -> ValueMismatchError:
        all_leaves, own, first = self._planned.traced.request.leaves, self.peers.own, verdict.leaves[0]
        groups = verdict.groups[:8]
        if any(own == group[0] for group in groups):
            self.peers.send(f"{program}/{first}/{own}", preview(leaves[first]))
        previews = [f"{listed(group)}: {self.peers.receive(f'{program}/{first}/{group[0]}') or 'unknown'}" for group in groups]
        paths = [all_leaves[leaf].path for leaf in verdict.leaves]
        others = f" and {len(paths) - 6} more" if len(paths) > 6 else ""
        return ValueMismatchError(
            f"{', '.join(paths[:6])}{others} {'has' if len(paths) == 1 else 'have'} other values in {listed(groups[1])} than in "
            f"{listed(groups[0])}",
            where=f"{all_leaves[first]}, argument of the {where}, in process {own}",
            why=f"{'; '.join(previews)}; an argument that is no global array counts as one value that every process has, and each would go "
            "on with its own",
            fix="make it equal everywhere: the same seed, the same file, or jax.experimental.multihost_utils.broadcast_one_to_all(value); "
            "if every process has a part of it, jax.make_array_from_process_local_data(sharding, part)",
        )


_BY_ITSELF, _WITHIN = "by itself", "within another program or a derivative"


def agreement_of(planned: Planned, mesh: Mesh) -> Agreement | None:
    """The agreement of the processes of a mesh; None where nothing is to be compared."""
    if planned.traced.request.settings.options.peer_timeout == 0:
        return None
    devices = tuple(mesh.devices.flat)
    peers = peers_of(devices)
    return None if peers is None else Agreement(peers, planned, devices)


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
