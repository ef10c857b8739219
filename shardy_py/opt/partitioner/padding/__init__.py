"""Conversions of ops whose operands and results are padded to sizes that their shardings divide."""
