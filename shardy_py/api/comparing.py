"""Compares a text with those of the other processes of a mesh, and raises where they do not come with the same."""

from __future__ import annotations

from collections.abc import Sequence

from shardy_py.api.errors import PeerFailedError, PeerMissingError, PlanMismatchError
from shardy_py.api.peer_states import Verdict
from shardy_py.api.rendezvous import Rendezvous, digest, listed


def compare(
    peers: Rendezvous, text: str, where: str, *, values: Sequence[str | None] = (), timeout: float | None = None, ahead: bool = False
) -> Verdict:
    """Waits at most `timeout` seconds (None: as long as the others live) until all processes of a mesh come with the same text."""
    place = f"first call of {where}"
    try:
        verdict = peers.wait(digest(text), values, where, timeout=timeout, ahead=ahead)
    except (RuntimeError, ValueError) as error:
        raise PeerMissingError(
            "the key-value store of jax.distributed does not answer",
            where=place,
            why=f"process 0, which keeps it, may have ended: {error}",
            fix="look at its output for an earlier error",
        ) from error
    match verdict.kind:
        case "programs":
            raise _different_programs(peers, verdict, text, place)
        case "failed" | "ended":
            raise _failed(verdict, place)
        case "elsewhere":
            raise PeerMissingError(
                f"process {verdict.process} did not come: it runs a program that this process has not started",
                where=place,
                why="it waits in the collectives of that program, and this process waits for it here; neither can go on",
                fix="call the same functions in the same order in every process, with arguments of the same shapes; a last batch that is "
                "shorter in one process is the usual reason",
            )
        case "left":
            raise PeerMissingError(
                "the other processes have given up waiting for this one",
                where=place,
                why=f"process {verdict.process} waited to compare plans with it, until it was interrupted or its time was up",
                fix="start them again; raise Options(peer_timeout=...) if this process takes longer than the others until it gets here",
            )
        case "missing" if not ahead:
            raise PeerMissingError(
                f"{listed(verdict.missing) if verdict.missing else 'a process'} did not come within {timeout:g} s",
                where=place,
                why="the processes of a mesh compare plans before they run one for the first time; the missing ones wait elsewhere, or "
                "are slow",
                fix="look at the output of the missing ones for an earlier error; call the same functions in the same order in every "
                "process; raise Options(peer_timeout=...), or leave it out, if they are only slow",
            )
        case _:
            return verdict


def _failed(verdict: Verdict, where: str) -> PeerFailedError:
    reason = f": {verdict.reason}" if verdict.reason else ""
    return PeerFailedError(
        f"process {verdict.process} has {'failed' if verdict.kind == 'failed' else 'ended'}{reason}",
        where=where,
        why="every process of a mesh has to run its programs, and this one waited for that process to come with the same program",
        fix=f"look at the output of process {verdict.process}",
    )


def _different_programs(peers: Rendezvous, verdict: Verdict, text: str, where: str) -> PlanMismatchError:
    groups, programs, own = verdict.groups, verdict.programs, peers.own
    mine = next((i for i, group in enumerate(groups) if own in group), 0)
    i, j = (0, mine) if mine else (0, 1)
    if own in (group[0] for group in groups):
        peers.send(programs[mine], text)
    other = peers.receive(programs[j if mine == i else i])
    first, second = listed(groups[i]), listed(groups[j])
    why = "every process of a mesh has to run the same program, or their collectives wait for each other for ever"
    if other is not None:
        why = f"{_difference(first, *((text, second, other) if mine == i else (other, second, text)))}; {why}"
    return PlanMismatchError(
        f"{first} and {second} are about to run different programs",
        where=f"{where}, in process {own}",
        why=why,
        fix="give every process the same code, shapes, shardings, options, settings of JAX and versions, call the same functions in the "
        "same order, and let nothing of it depend on jax.process_index() or on the order of a set",
    )


def _difference(first: str, one: str, second: str, other: str) -> str:
    """The first line that two statements do not share."""
    ours, theirs = one.splitlines(), other.splitlines()
    for mine, its in zip(ours, theirs):
        if mine != its:
            return f"{first}: `{mine.strip()}`, {second}: `{its.strip()}`"
    longer, rest = (first, ours[len(theirs) :]) if len(ours) > len(theirs) else (second, theirs[len(ours) :])
    return f"only {longer}: `{rest[0].strip() if rest else ''}`"
