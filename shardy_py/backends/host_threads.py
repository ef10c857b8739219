"""Worker threads for CPU devices: enough of them, or calls that wait for their results.

With several CPU devices in one process, a program that was dispatched while an earlier one still runs takes worker threads too. When
there are fewer than about two per device, each program can hold the threads that the other's collectives wait for, and both wait for
ever. JAX takes as many threads as there are processors, or as the environment says, once, when its devices start.

Nothing here imports JAX before the program does.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

_NAMES = ("PJRT_NPROC", "NPROC")
"""Environment variables from which jaxlib takes the number of threads, in this order."""

SWITCH = "SHARDY_PY_SET_NPROC"
"""Set to 0, the environment of the process and of its children stays; calls that would need more threads wait for their results."""

_PER_DEVICE = 2
_FORCED = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def provide() -> None:
    """Asks for enough threads by `PJRT_NPROC` where several CPU devices are asked for and nobody has said how many threads there are.

    Does nothing where the machine has enough processors, or where the devices have started already: see `too_few`; nor where the
    environment has `SHARDY_PY_SET_NPROC=0`.
    """
    if os.environ.get(SWITCH, "1") == "0":
        return
    devices = _requested_devices()
    if devices > 1 and not any(os.environ.get(name) for name in _NAMES) and too_few(devices) and not _started():
        os.environ[_NAMES[0]] = str(max(64, 4 * devices))


def too_few(devices: int) -> bool:
    """Whether so many CPU devices in one process have too few threads for programs that overlap."""
    return devices > 1 and _threads() < _PER_DEVICE * devices


def must_wait(devices: Sequence[Any]) -> bool:
    """Whether calls on these devices have to wait for their results, for want of threads."""
    return len(devices) > 1 and devices[0].platform == "cpu" and _threads() < _PER_DEVICE * len(devices)


def _threads() -> int:
    for name in _NAMES:
        value = os.environ.get(name, "")
        if value.isdigit():
            return max(1, int(value))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _requested_devices() -> int:
    """CPU devices that JAX will make: by its own setting, else by the flag of XLA."""
    jax = sys.modules.get("jax")
    configured = getattr(getattr(jax, "config", None), "jax_num_cpu_devices", None)
    if configured is None:
        named = os.environ.get("JAX_NUM_CPU_DEVICES", "")
        configured = int(named) if named.isdigit() else -1
    forced = _FORCED.findall(os.environ.get("XLA_FLAGS", ""))
    return configured if configured > 0 else int(forced[-1]) if forced else 1


def _started() -> bool:
    if "jax" not in sys.modules:
        return False
    from shardy_py.frontends.context import devices_started

    return devices_started()
