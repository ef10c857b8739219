"""Partitions: which pieces of a profile each stage of a pipeline runs, on how many machines."""
