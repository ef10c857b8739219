"""The cost of a plan: links, compute, memory."""
