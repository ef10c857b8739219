"""Checks of a plan that report findings: one file per idea, all of them in `table.KINDS`."""
