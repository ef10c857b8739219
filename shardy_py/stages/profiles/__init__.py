"""Profiles: what the pieces of a program cost, and what they hand each other."""
