"""The memory that a call of a plan takes: the graph of one device's nodes and values, and its analysis."""
