"""Propagation: basic, aggressive, op-priority and user-priority passes over one driver."""
