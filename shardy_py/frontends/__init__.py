"""Readers of programs: jaxprs, and StableHLO + SDY modules."""
