"""Plans: decisions, their reasons, and findings; independent of JAX."""
