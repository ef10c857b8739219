"""Runs an example and applies the fixes of its plans' findings: `python -m tests.judged_example examples/decode.py --tokens=8`."""

from __future__ import annotations

import runpy
import sys
from unittest import mock

from shardy_py.api.partitioning import Planned
from tests.fixes import judge, small_programs_count


def report(planned: Planned) -> None:
    """Judges in place of the report of a first run."""
    with small_programs_count():
        print(f"{len(judge(planned.plan))} fixes of {len(planned.plan.findings)} findings applied")


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    with mock.patch("shardy_py.api.auto.report", report):
        runpy.run_path(sys.argv[0], run_name="__main__")
