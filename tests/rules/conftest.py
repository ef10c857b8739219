from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _stop_reference() -> Iterator[None]:
    yield
    from tests.rules.reference import stop_worker

    stop_worker()
