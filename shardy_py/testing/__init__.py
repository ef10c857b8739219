"""Shardings as regression tests: assertions for pytest, unittest, or a script.

All of them raise `AssertionError` with the actual value, the expected one, and the reason.
"""

from shardy_py.testing.collectives import assert_collectives as assert_collectives
from shardy_py.testing.collectives import assert_fits as assert_fits
from shardy_py.testing.pinned import assert_plan_matches as assert_plan_matches
from shardy_py.testing.shardings import assert_sharding as assert_sharding
