"""Strategies of ops on a mesh, the data that moves for them, and the cost of both."""
