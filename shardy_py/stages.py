"""The former name of `shardy_py.pipedream` and of the schedules in `shardy_py.pipelines`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardy_py import pipedream, pipelines

if TYPE_CHECKING:
    from shardy_py.pipedream import *  # noqa: F403
    from shardy_py.pipelines import *  # noqa: F403

__all__ = [*pipedream.__all__, *pipelines.__all__]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(pipedream if name in pipedream.__all__ else pipelines, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
