"""What XLA makes of a graph before it runs it, and where it puts the buffers."""
