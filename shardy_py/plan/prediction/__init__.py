"""Which collectives XLA's partitioner makes of a plan that it is left to partition."""
