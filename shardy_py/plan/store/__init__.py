"""Plans as JSON text and files, with a version; reading one runs no code."""

from shardy_py.plan.store.checks import StoreError as StoreError
from shardy_py.plan.store.document import VERSION as VERSION
from shardy_py.plan.store.document import read_plan as read_plan
from shardy_py.plan.store.document import write_plan as write_plan
from shardy_py.plan.store.files import load_plan as load_plan
from shardy_py.plan.store.files import save_text as save_text
