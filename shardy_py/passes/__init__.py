"""Passes over a program: what they are called, they are called in Shardy, and they do what they do there."""
