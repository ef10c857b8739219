"""The memory that a call of a plan takes: a graph of what one device computes and keeps, and the analysis of it."""
