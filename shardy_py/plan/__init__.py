"""Plans: decisions, their reasons, and findings; independent of JAX."""

from shardy_py.plan.collectives import Collective as Collective
from shardy_py.plan.donation import Donated as Donated
from shardy_py.plan.explanation import Explanation as Explanation
from shardy_py.plan.explanation import Missing as Missing
from shardy_py.plan.explanation import Reason as Reason
from shardy_py.plan.explanation import Source as Source
from shardy_py.plan.findings import Finding as Finding
from shardy_py.plan.progress import Timings as Timings
from shardy_py.plan.record import PlanError as PlanError
from shardy_py.plan.reshards import Reshard as Reshard
from shardy_py.plan.store.codec import StoreError as StoreError
from shardy_py.plan.values import PlannedValue as PlannedValue
