"""Passes that turn explicit reshards and collectives into a program of local arrays, as Shardy's own partitioner does."""
