"""The planner: shardings chosen by costs, with a lower bound on what any choice costs."""
