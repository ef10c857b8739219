"""Layouts inside of a region, the axes under which an op can run there, and the collectives between layouts."""
