"""From a graph with stages, or a jaxpr with stages, to a package of readable modules."""
