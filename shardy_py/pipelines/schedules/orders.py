"""The order of one mesh in every schedule that has a closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardy_py.pipelines.schedules.tasks import Task


@dataclass(frozen=True)
class Row:
    """A schedule of the table."""

    order: Callable[[int, int, int, int], list[Task]]
    virtual: bool


def _alternating(mesh: int, microbatches: int, warmup: int) -> list[Task]:
    """`warmup` forwards, then one backward and one forward in turn, then the backwards that are left."""
    warmup = min(warmup, microbatches)
    tasks = [Task("F", mesh, m) for m in range(warmup)]
    for m in range(microbatches):
        tasks.append(Task("B", mesh, m))
        if warmup + m < microbatches:
            tasks.append(Task("F", mesh, warmup + m))
    return tasks


def _gpipe(mesh: int, meshes: int, microbatches: int, virtual: int) -> list[Task]:
    return _alternating(mesh, microbatches, microbatches)


def _gpipe_but_last(mesh: int, meshes: int, microbatches: int, virtual: int) -> list[Task]:
    return _alternating(mesh, microbatches, 1 if mesh == meshes - 1 else microbatches)


def _one_f_one_b(mesh: int, meshes: int, microbatches: int, virtual: int) -> list[Task]:
    return _alternating(mesh, microbatches, meshes - mesh)


def _eager(mesh: int, meshes: int, microbatches: int, virtual: int) -> list[Task]:
    return _alternating(mesh, microbatches, 2 * (meshes - mesh) - 1)


def _with_weights(tasks: list[Task], mesh: int, microbatches: int, lag: int, after_forward: bool) -> list[Task]:
    """Puts W of microbatch m behind B of m + lag, or behind the forward that follows it; the others come last.

    The first mesh has no input gradient to hurry for, so that its backward stays whole.
    """
    if mesh == 0:
        return tasks
    out: list[Task] = []
    waiting: list[Task] = []
    for task in tasks:
        if waiting and (task.kind == "B" or not after_forward):
            out += waiting
            waiting = []
        out.append(task)
        if task.kind == "B" and task.microbatch >= lag:
            waiting = [Task("W", mesh, task.microbatch - lag)]
    out += waiting
    return out + [Task("W", mesh, m) for m in range(max(microbatches - lag, 0), microbatches)]


def _zero_bubble_h1(mesh: int, meshes: int, microbatches: int, virtual: int) -> list[Task]:
    return _with_weights(_one_f_one_b(mesh, meshes, microbatches, 1), mesh, microbatches, mesh, False)


def _zero_bubble_h2(mesh: int, meshes: int, microbatches: int, virtual: int) -> list[Task]:
    return _with_weights(_eager(mesh, meshes, microbatches, 1), mesh, microbatches, 2 * mesh, mesh < meshes - 1)


def _rounds(mesh: int, meshes: int, microbatches: int, virtual: int, kind: str) -> Iterator[Task]:
    """Microbatches in groups of one per mesh; each group goes through all stages of the mesh before the next one comes."""
    chunks = [*range(virtual)] if kind == "F" else [*reversed(range(virtual))]
    group = meshes if virtual > 1 else microbatches
    for start in range(0, microbatches, group):
        for chunk in chunks:
            for m in range(start, min(start + group, microbatches)):
                yield Task(kind, chunk * meshes + mesh, m)


def _circular(mesh: int, meshes: int, microbatches: int, virtual: int) -> list[Task]:
    return [*_rounds(mesh, meshes, microbatches, virtual, "F"), *_rounds(mesh, meshes, microbatches, virtual, "B")]


def _circular_reversed(mesh: int, meshes: int, microbatches: int, virtual: int) -> list[Task]:
    backward = [Task("B", chunk * meshes + mesh, m) for chunk in reversed(range(virtual)) for m in range(microbatches)]
    return [*_rounds(mesh, meshes, microbatches, virtual, "F"), *backward]


def _interleaved(mesh: int, meshes: int, microbatches: int, virtual: int) -> list[Task]:
    if virtual == 1:
        return _one_f_one_b(mesh, meshes, microbatches, 1)
    forwards = [*_rounds(mesh, meshes, microbatches, virtual, "F")]
    backwards = [*_rounds(mesh, meshes, microbatches, virtual, "B")]
    warmup = min(2 * (meshes - mesh - 1) + (virtual - 1) * meshes, len(forwards))
    tasks = forwards[:warmup]
    for done, forward in enumerate(forwards[warmup:]):
        tasks += [forward, backwards[done]]
    return tasks + backwards[len(forwards) - warmup :]


SCHEDULES: dict[str, Row] = {
    "gpipe": Row(_gpipe, False),  # all forwards, then all backwards
    "gpipe-1f1b-last": Row(_gpipe_but_last, False),  # GPipe, but the last mesh alternates
    "1f1b": Row(_one_f_one_b, False),  # as many forwards as there are stages behind, then one backward and one forward in turn
    "eager-1f1b": Row(_eager, False),  # 1F1B with twice the forwards in front, which hides transfers
    "interleaved": Row(_interleaved, True),  # 1F1B over several stages per mesh
    "circular": Row(_circular, True),  # groups of microbatches go round all stages forwards, then all backwards
    "circular-reversed": Row(_circular_reversed, True),  # circular, with the backwards of one stage together
    "zb-h1": Row(_zero_bubble_h1, False),  # 1F1B with gradients of parameters put off, in the memory of 1F1B
    "zb-h2": Row(_zero_bubble_h2, False),  # the same behind twice the forwards, for twice the memory
}

ALIASES: dict[str, str] = {
    "one-fwd-one-bwd": "1f1b",
    "eager": "eager-1f1b",
    "eager1f1b": "eager-1f1b",
    "interleaved1f1b": "interleaved",
    "interleaved-1f1b": "interleaved",
    "circular-with-reversed-backward": "circular-reversed",
    "gpipe-but-1f1b-for-last-mesh": "gpipe-1f1b-last",
    "h1": "zb-h1",
    "h2": "zb-h2",
    "zbh1": "zb-h1",
    "zbh2": "zb-h2",
    "zero-bubble-h1": "zb-h1",
    "zero-bubble-h2": "zb-h2",
    "zero-bubble-h2-zero-tx-latency": "zb-h2",
    "automatic": "auto",
    "automatic-greedy": "auto",
    "greedy": "auto",
}
"""Other names that are in use, in lower case with hyphens."""
