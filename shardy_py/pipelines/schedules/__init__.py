"""Schedules: in which order each mesh of a pipeline runs the tasks of its stages."""
