"""Live memory of a program: which values lie in memory, from when to when, and where the peak is."""
