"""Our own partitioner: every equation of a jaxpr on local arrays, every collective written out."""
