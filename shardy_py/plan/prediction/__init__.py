"""Predicts the shardings that XLA gives a program that it is left to partition."""
