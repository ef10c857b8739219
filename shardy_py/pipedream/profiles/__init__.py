"""Profiles: costs of the pieces of a program, and bytes that they hand each other."""
