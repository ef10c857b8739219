"""The subcommands: names, options and functions of all."""

from __future__ import annotations

from shardy_py.cli import check, diff, explain, opt, pipedream, plan, view
from shardy_py.cli.command import Command

_PIPEDREAM = "profile a model, divide it into pipeline stages"

COMMANDS = (
    Command("plan", "plan a function, and show, save or draw the plan", plan.add, plan.run),
    Command("explain", "say why a value has its sharding, or why it lacks an axis", explain.add, explain.run),
    Command("check", "list what deserves a look; exit 1 if there are warnings or errors", check.add, check.run),
    Command("diff", "say what differs between two plans", diff.add, diff.run),
    Command("view", "open a plan as a page in the browser", view.add, view.run),
    Command(opt.NAME, "run Shardy's passes on an MLIR module", opt.add, opt.run),
    Command("pipedream", f"{_PIPEDREAM}, write them as code, simulate schedules", pipedream.add, pipedream.run, former="stages"),
)
