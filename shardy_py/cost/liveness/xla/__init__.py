"""XLA's optimizations of a graph, and its placement of buffers."""
