"""Predicts the shardings of a program that XLA partitions."""
